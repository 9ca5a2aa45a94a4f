"""Settings and fixtures of all tests."""

import ctypes
import functools
import os
import platform
import shutil

import hypothesis
import jax
import pytest
from helpers import ENVS, execute, keep_evaluations, keep_programs, path_of, small_run

import common  # noqa: F401  # before any test imports gymnax: it sets the number of CPU devices
import runner.devices.programs
from runner.devices.programs import Programs

jax.config.update("jax_numpy_rank_promotion", "raise")  # a [B, 1] against a [B] is a mistake, not a matrix
jax.config.update("jax_default_matmul_precision", "float32")  # as numpy computes; the default of a GPU is TF32
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")

# The tests compile far longer than they run: these flags more than halve it. JAX reads them when its backend
# starts, and aborts the process if it does not know one.
FLAGS = ["backend_optimization_level=0", "cpu_parallel_codegen_split_count=1", "llvm_disable_expensive_passes=true"]
if jax.__version_info__ < (0, 11):
    FLAGS.append("cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in FLAGS))


runner.devices.programs.compile_segment = keep_programs(runner.devices.programs.compile_segment)
runner.devices.programs.compile_init = keep_programs(runner.devices.programs.compile_init)
Programs._compile_evaluation = keep_evaluations(Programs._compile_evaluation)


def pytest_configure(config):
    """Keep compiled programs for the other processes and for the next run of the tests, on this machine alone."""
    if not hasattr(config, "cache"):  # -p no:cacheprovider
        return
    folder = config.cache.mkdir(f"compiled-on-{platform.node()}")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(scope="module")
def rank_promotion():
    """distrax needs it; test_scripts.py has a test of the other mode."""
    with jax.numpy_rank_promotion("allow"):
        yield


def pytest_collection_modifyitems(items):
    """A test that is not marked slow is quick: `-m quick` runs after each edit."""
    for item in items:
        if not item.get_closest_marker("slow"):
            item.add_marker("quick")


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs(request):
    """Compiled programs of a module are not kept for the next one: a process would grow to several GB."""
    yield
    for x in vars(request.module).values():
        if isinstance(x, functools._lru_cache_wrapper):
            x.cache_clear()
    jax.clear_caches()
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)  # glibc keeps what is freed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- Whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["ppo", "dqn"])
def script(request):
    """A script of each kind."""
    return request.param


@functools.cache
def undisturbed_run(script, folder):
    """The result of an undisturbed run, its flags, and its folder; one run for all modules."""
    arguments = small_run(script, name="undisturbed")
    folder.mkdir(parents=True)
    result = execute(path_of(script), *arguments, cwd=folder)
    assert result.status == 0, result
    return result, arguments, folder / "runs" / script / ENVS[script][0] / "undisturbed"


@pytest.fixture(scope="module")
def undisturbed(script, tmp_path_factory):
    return undisturbed_run(script, tmp_path_factory.getbasetemp() / "undisturbed" / script)


@pytest.fixture(scope="module")
def undisturbed_ppo(tmp_path_factory):
    """The folder of a run of ppo.py."""
    return undisturbed_run("ppo", tmp_path_factory.getbasetemp() / "undisturbed" / "ppo")[2]


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A copy of the folder of a finished run, to be resumed or damaged."""
    return shutil.copytree(undisturbed[2], tmp_path / "finished")
