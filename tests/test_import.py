"""Importing the kit: the number of CPU devices, and no runner; what a command imports and keeps for the next."""

import math
import os
import pwd
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from helpers import ROOT, execute

from common import NUM_CORES, cpu_quota
from runner.devices.imports import _kind_of_cpu, keep_programs

pytestmark = pytest.mark.slow


def python(code, **environment):
    variables = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""} | environment
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)


def test_there_is_a_device_for_each_core():
    result = python("import common, jax; print(jax.device_count())")
    assert (result.stdout, result.stderr) == (f"{NUM_CORES}\n", "")


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        ("", {"JAX_NUM_CPU_DEVICES": "3"}),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}),
        ("import jax; jax.config.update('jax_num_cpu_devices', 3)", {}),
    ],
)
def test_another_number_of_devices_may_be_chosen(code, variables):
    result = python(f"{code}\nimport common, jax; print(jax.device_count())", **variables)
    assert (result.stdout, result.stderr) == ("3\n", "")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"job/cpu.max": "300000 100000\n", "cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_the_quota_of_a_container_is_read_in_both_versions(files, cores, tmp_path):
    for name, text in (files | {"../../../proc/self/cgroup": "4:cpu:/docker/0a1b\n0::/job"}).items():
        path = (tmp_path / "sys/fs/cgroup" / name).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_quota(tmp_path) == cores


def test_a_quota_bounds_the_number_of_devices():
    code = """
import pathlib
exists, read = pathlib.Path.exists, pathlib.Path.read_text
pathlib.Path.exists = lambda path: path.name == "cpu.max" or exists(path)
pathlib.Path.read_text = lambda path, **_: "50000 100000" if path.name == "cpu.max" else read(path, **_)
import common, jax
print(jax.device_count())
"""
    assert python(code).stdout == "1\n"


@pytest.mark.skipif(NUM_CORES < 2, reason="one core has nothing to lose")
def test_starting_jax_before_the_kit_is_said_in_one_line():
    result = python("import jax; jax.devices(); import common; print(jax.device_count())")
    assert result.stdout == "1\n"
    assert result.stderr == (
        f"warning: JAX started before `common` was imported and uses 1 of {NUM_CORES} CPU cores; "
        "import `common` before gymnax, which starts JAX\n"
    )
    chosen = python("import jax; jax.devices(); import common", JAX_NUM_CPU_DEVICES="1")
    assert chosen.stderr == ""


SEEN = """
import sys, ppo, dqn, sac, td3
slow = ["orbax", "matplotlib", "scipy.stats", "wandb", "gymnax", "tyro", "safetensors", "runner"]
print([name for name in slow if name in sys.modules])
"""


def test_the_scripts_import_nothing_of_the_runner():
    """Nor anything else that a copied script does not need."""
    assert python(SEEN).stdout == "[]\n"


HELPS = """
import os, runpy, sys
import flax, jax, optax, tyro
path, files = sys.path[1:], sys.argv[1:]
for file in files:
    if os.fork() == 0:
        sys.argv, sys.path = [file, "--help"], [os.path.dirname(file), *path]
        runpy.run_path(file, run_name="__main__")
    assert os.wait()[1] == 0, file
"""


def test_commands_find_the_modules_of_this_repository(tmp_path):
    """As in a fresh clone no path is set, and the current folder is another one. Forks of one process import the
    libraries once."""
    names = ["environments", "gymnasium_scores", "kernels", "results", "settings", "speed"]
    files = [ROOT / "benchmarks" / f"{name}.py" for name in names] + sorted((ROOT / "variants").glob("*.py"))
    result = execute("-c", HELPS, *map(str, files), cwd=tmp_path, PYTHONPATH=None)
    assert (result.status, result.stderr) == (0, ""), result
    assert result.stdout.count("usage: ") == len(files), result


def test_help_imports_nothing_that_it_does_not_need():
    code = """
import sys, runpy
sys.argv = ["ppo.py", "--help"]
try:
    runpy.run_path("ppo.py", run_name="__main__")
except SystemExit:
    pass
print([name for name in ["gymnax", "matplotlib", "scipy.stats", "wandb"] if name in sys.modules], file=sys.stderr)
"""
    assert python(f"import os; os.chdir({str(ROOT)!r})\n{code}").stderr == "[]\n"


DRAWN = """
import sys
from runner.devices.imports import import_gymnax
import_gymnax()
print([name for name in ["pandas", "seaborn", "matplotlib.pyplot"] if name in sys.modules])
from gymnax.environments.misc import pong
print(pong.plt.Figure.__name__, pong.sns.__version__ != "")
import matplotlib.pyplot, seaborn
print(matplotlib.pyplot.Figure is pong.plt.Figure, seaborn.__version__ != "")
"""


def test_plotting_libraries_are_imported_when_they_are_used():
    assert python(DRAWN).stdout == "[]\nFigure True\nTrue True\n"


def test_whoever_imports_the_kit_has_whole_plotting_libraries():
    code = "import common, matplotlib.pyplot; print(matplotlib.pyplot.plot())"
    assert python(code).stdout == "[]\n"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Call keep_programs with these variables and return the folder that JAX is told."""
    updates, home = {}, tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MPLCONFIGDIR", "")
    for name in ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def call(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        keep_programs()
        return updates.get("jax_compilation_cache_dir")

    return call


@pytest.mark.parametrize("place", [None, "", "relative"])
def test_programs_are_kept_at_home_or_where_xdg_says(place, kept, tmp_path, capsys):
    at_home, at_xdg = (
        kept(**({} if place is None else {"XDG_CACHE_HOME": place})),
        kept(XDG_CACHE_HOME=f"{tmp_path}/xdg"),
    )
    kind = Path(at_home).name
    assert at_home == f"{tmp_path}/home/.cache/single-file-jax-rl/{kind}"
    assert at_xdg == f"{tmp_path}/xdg/single-file-jax-rl/{kind}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "xdg"]
    assert capsys.readouterr().err == ""


def test_each_kind_of_cpu_has_a_folder(tmp_path):
    kinds = set()
    for flags in ("fpu avx2", "fpu avx2 avx512f"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n\nprocessor : 1\nflags : {flags}\n")
        kinds.add(_kind_of_cpu(tmp_path / "cpuinfo"))
    assert len(kinds) == 2
    assert _kind_of_cpu(tmp_path / "none") not in kinds


def test_a_cache_that_cannot_be_written_is_said_in_one_line(kept, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert kept(XDG_CACHE_HOME=f"{tmp_path}/file") is None
    note = capsys.readouterr().err
    assert note.startswith("note: compiled programs are not kept: [Errno 20] Not a directory: ")
    assert note.count("\n") == 1


def test_a_command_needs_no_home_directory(kept, monkeypatch, capsys):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert kept() is None
    assert capsys.readouterr().err.startswith("note: compiled programs are not kept: there is no home directory; ")
