"""runner/files: what is written can be read back; what is damaged is refused."""

import csv
import dataclasses
import errno
import fcntl
import importlib.metadata
import json
import math
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import jax
import numpy as np
import pytest
from helpers import environ
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.config import NonNegative
from runner.experiment import EVAL_METRICS, Experiment, Part, Rung, append_metrics
from runner.files import record as record_module
from runner.files.lock import discard, locked_folder, out_of_memory_hint
from runner.files.record import check_parts, read_config, read_experiment, read_options, read_record, versions
from runner.files.store import CHECKPOINT, read_metrics, replacing, write_json, write_metrics, write_table
from runner.options.fields import Options
from runner.report.results import curve_rows
from runner.report.statistics import Curve

# -- Atomic writes -----------------------------------------------------------------------------------------------------


def test_the_new_content_replaces_the_old_alone(tmp_path):
    path = tmp_path / "file.txt"
    for content in (b"a long first version", b"", b"\x00\xff second"):
        with replacing(path) as aside:
            aside.write_bytes(content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def full_disk():
    """No file can grow past 1000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_old_file(tmp_path, full_disk):
    path = tmp_path / "file.txt"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="too large"), replacing(path) as aside:
        aside.write_bytes(bytes(5000))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_that_does_not_fit_leaves_the_old_one(tmp_path, full_disk):
    write_table(tmp_path / "curve.csv", ["x"], [[i] for i in range(3)])
    before = (tmp_path / "curve.csv").read_bytes()
    with pytest.raises(OSError, match="too large"):
        write_table(tmp_path / "curve.csv", ["x"], [[i] for i in range(5000)])
    assert (tmp_path / "curve.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["curve.csv"]


def test_metrics_that_do_not_fit_on_the_disk_leave_the_old_ones(tmp_path, full_disk):
    trials = {"seed": np.arange(1)}
    write_metrics(tmp_path, np.arange(2), trials, {"loss": np.ones((1, 2), np.float32)}, {})
    with pytest.raises(OSError, match="too large"):
        write_metrics(tmp_path, np.arange(2000), trials, {"loss": np.zeros((1, 2000), np.float32)}, {})
    np.testing.assert_array_equal(read_metrics(tmp_path, np.arange(2), trials)[0]["loss"], [[1.0, 1.0]])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.npz"]


# -- The lock ----------------------------------------------------------------------------------------------------------

TRAINED = Options(name="run")


def test_the_lock_of_a_killed_process_is_taken_over(folder):
    program = f"""
from runner.files.lock import locked_folder
from runner.options.fields import Options
import sys
with locked_folder("ppo", "Env", {TRAINED!r}):
    print(flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ()) as process:
        process.stdout.readline()
        with pytest.raises(ValueError, match=f"^runs/ppo/Env/run is being trained by process {process.pid} since "):
            locked_folder("ppo", "Env", TRAINED).__enter__()
        process.kill()
        process.wait()
    lock = Path("runs/ppo/Env/run/training.lock")
    assert lock.read_text().startswith(f"process {process.pid} since ")
    with locked_folder("ppo", "Env", TRAINED):
        assert lock.read_text().startswith(f"process {os.getpid()} since ")
    assert not lock.exists()


def test_a_lock_that_is_removed_at_this_moment_is_taken_again(folder, monkeypatch):
    def flock(file, operation):
        lock(file, operation)
        if not taken:
            path.unlink()
        taken.append(file)

    lock, taken, path = fcntl.flock, [], Path("runs/ppo/Env/run/training.lock")
    monkeypatch.setattr(fcntl, "flock", flock)
    with locked_folder("ppo", "Env", TRAINED):
        assert path.exists()
        monkeypatch.setattr(fcntl, "flock", lock)
        with pytest.raises(ValueError, match="is being trained by process"):
            locked_folder("ppo", "Env", TRAINED).__enter__()


def test_a_file_system_without_locks_has_runs_too(folder, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked_folder("ppo", "Env", TRAINED) as directory:
        assert [path.name for path in directory.iterdir()] == ["training.lock"]
    assert not directory.exists()


@pytest.mark.parametrize(("process", "names"), [(0, set()), (1, {"config.json"})])
def test_only_process_0_removes_a_run_that_cannot_begin(process, names, folder, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    with locked_folder("ppo", "Env", TRAINED) as directory:
        (directory / "config.json").write_text("{}")
        discard(directory)
    assert {path.name for path in directory.glob("*")} == names
    assert directory.exists() == bool(names)


def test_a_run_for_which_the_memory_does_not_suffice_names_what_helps(folder):
    directory = Path("my runs", "run")
    directory.mkdir(parents=True)
    assert out_of_memory_hint(directory, TRAINED).startswith("lower --trials-per-batch, ")
    with_more = "continue it on a machine with more memory, with --resume 'my runs/run'"
    assert out_of_memory_hint(directory, dataclasses.replace(TRAINED, resume="my runs/run")) == with_more
    (directory / CHECKPOINT).touch()
    assert out_of_memory_hint(directory, TRAINED) == with_more


def test_runs_that_start_together_have_their_own_folders(folder):
    with locked_folder("ppo", "Env", Options()) as first, locked_folder("ppo", "Env", Options()) as second:
        assert first != second


# -- JSON --------------------------------------------------------------------------------------------------------------


def no_constant(name):
    raise AssertionError(f"{name} is not JSON")


def test_nan_and_infinity_become_null_at_any_depth(tmp_path):
    content = {"a": math.nan, "b": [1.5, math.inf], "c": (np.float64("nan"),), "d": {"e": {"f": -math.inf}}, "g": "NaN"}
    write_json(tmp_path / "x.json", content)
    written = json.loads((tmp_path / "x.json").read_text(), parse_constant=no_constant)
    assert written == {"a": None, "b": [1.5, None], "c": [None], "d": {"e": {"f": None}}, "g": "NaN"}


finite = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(
    content=st.dictionaries(
        st.text(), st.recursive(finite, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8)
    )
)
@settings(max_examples=50)
def test_everything_else_is_read_back_as_it_was(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "round_trip.json"
    write_json(path, content)
    assert json.loads(path.read_text()) == content


# -- Metrics -----------------------------------------------------------------------------------------------------------


def metrics_of(num_seeds, num_iterations):
    rng = np.random.default_rng(0)
    returns = rng.normal(size=(num_seeds, num_iterations)).astype(np.float32)
    returns[:, 0] = np.nan
    return {
        "episode_return": returns,
        "num_episodes": rng.integers(0, 9, (num_seeds, num_iterations)).astype(np.int32),
    }


def assert_same_metrics(metrics, expected):
    assert metrics.keys() == expected.keys()
    for name, x in expected.items():
        assert metrics[name].dtype == x.dtype
        np.testing.assert_array_equal(metrics[name], x)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6)),
    kept=st.integers(0, 6),
    dtype=st.sampled_from([np.float32, np.float64, np.int32, bool]),
    data=st.data(),
)
@settings(max_examples=40)
def test_metrics_are_read_back_up_to_an_iteration(tmp_path_factory, shape, kept, dtype, data):
    directory = tmp_path_factory.getbasetemp()
    metrics = {name: data.draw(hnp.arrays(dtype, shape)) for name in ("episode_return", "loss")}
    trials = {"seed": np.arange(shape[0])}
    write_metrics(directory, np.arange(shape[1]), trials, metrics, {})
    kept = min(kept, shape[1])
    read, _ = read_metrics(directory, np.arange(kept), trials)
    assert read.keys() == metrics.keys()
    for name, x in metrics.items():
        assert read[name].dtype == x.dtype
        assert read[name].tobytes() == x[:, :kept].tobytes()


@pytest.mark.parametrize(("kept", "num_evaluations"), [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2)])
def test_evaluations_are_read_back_up_to_the_iteration_asked_for(tmp_path, kept, num_evaluations):
    trials, env_steps = {"seed": np.arange(3)}, 10 * np.arange(1, 6)
    evaluations = {"eval_env_steps": np.array([20, 50])}
    evaluations |= {name: np.random.default_rng(0).normal(size=(3, 2)) for name in EVAL_METRICS}
    write_metrics(tmp_path, env_steps, trials, metrics_of(3, 5), evaluations)
    metrics, read = read_metrics(tmp_path, env_steps[:kept], trials)
    assert metrics.keys() == metrics_of(3, 5).keys()
    assert_same_metrics(read, {name: x[..., :num_evaluations] for name, x in evaluations.items()})


def test_metrics_file_is_plain_numpy_with_env_steps(tmp_path):
    write_metrics(tmp_path, np.array([10, 20, 30]), {"seed": np.array([5, 6])}, metrics_of(2, 3), {})
    with np.load(tmp_path / "metrics.npz") as file:
        assert set(file.files) == {"env_steps", "seed", "episode_return", "num_episodes"}
        np.testing.assert_array_equal(file["env_steps"], [10, 20, 30])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.npz"]


def test_too_few_metrics_are_an_error(tmp_path):
    trials = {"seed": np.arange(2)}
    write_metrics(tmp_path, np.arange(3), trials, metrics_of(2, 3), {})
    assert read_metrics(tmp_path, np.arange(3), trials)[0]["num_episodes"].shape == (2, 3)
    with pytest.raises(ValueError, match=r"metrics\.npz has fewer than the 4 iterations"):
        read_metrics(tmp_path, np.arange(4), trials)


@pytest.mark.parametrize(
    ("env_steps", "trials"),
    [
        ([0, 2, 4], {"seed": [0, 1]}),
        ([0, 1, 2], {"seed": [1, 2]}),
        ([0, 1, 2], {"seed": [0, 1, 2]}),
        ([0, 1, 2], {"seed": [0]}),
        ([0, 1, 2], {"seed": [0, 1], "sweep_gamma": [0.5, 0.5]}),
    ],
)
def test_metrics_of_another_run_are_an_error_that_names_the_file(tmp_path, env_steps, trials):
    write_metrics(tmp_path, np.arange(3), {"seed": np.arange(2)}, metrics_of(2, 3), {})
    with pytest.raises(ValueError, match=r"metrics\.npz belongs to another run"):
        read_metrics(tmp_path, np.array(env_steps), {name: np.array(x) for name, x in trials.items()})


def test_missing_metrics_are_an_error_that_names_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"metrics\.npz"):
        read_metrics(tmp_path, np.arange(1), {"seed": np.arange(1)})


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_metrics_are_an_error_or_no_damage(tmp_path_factory, data):
    """Any part of the arrays overwritten, or the file cut anywhere. The arrays make up nearly all of the file."""
    directory = tmp_path_factory.getbasetemp()
    expected = metrics_of(3, 50)
    trials = {"seed": np.arange(3)}
    write_metrics(directory, np.arange(50), trials, expected, {})
    raw = (directory / "metrics.npz").read_bytes()
    if data.draw(st.booleans()):
        damaged = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        start = data.draw(st.integers(0, raw.index(b"PK\x01\x02") - 1))  # the zip's index has no checksum of its own
        noise = data.draw(st.binary(min_size=1, max_size=64))
        damaged = raw[:start] + noise + raw[start + len(noise) :]
    (directory / "metrics.npz").write_bytes(damaged)
    try:
        metrics, _ = read_metrics(directory, np.arange(50), trials)
    except ValueError as error:
        assert str(directory / "metrics.npz") in str(error)  # noqa: PT017
    else:
        assert_same_metrics(metrics, expected)


def test_metrics_are_appended_in_order():
    metrics = metrics_of(2, 7)
    parts = [{name: x[:, a:b] for name, x in metrics.items()} for a, b in ((0, 2), (2, 3), (3, 7))]
    joined = {}
    for part in parts:
        joined = append_metrics(joined, part)
    assert_same_metrics(joined, metrics)


# -- Record of the run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    env: str = "CartPole-v1"
    num_envs: int = 4
    learning_rate: NonNegative = 0.1
    anneal: bool = True
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"


def write_record(directory, config, options, settings=None, parts=((0, 5),), rungs=()):
    experiment = Experiment("scripts/algorithm.py", None, config, options, settings or {})
    record_module.write_record(directory, experiment, rungs or [Rung((0,), 1, parts)], "abc")
    return directory / "config.json"


OPTIONS = Options(num_seeds=5, seed=3, eval_episodes=2, wandb="offline", checkpoint_every=0.5, name="x")


def test_a_record_gives_config_options_and_parts_back(tmp_path):
    config = Config(env="Pendulum-v1", learning_rate=1e-4, anneal=False, hidden_sizes=(8,))
    path = write_record(tmp_path, config, OPTIONS, parts=[Part(0, 2), Part(2, 5)])
    record = read_record(tmp_path)
    assert (read_config(record, Config), read_options(record)) == (config, OPTIONS)
    assert (record.algorithm, record.wandb_id) == ("algorithm", "abc")
    assert record.parts == [(0, 2), (2, 5)]
    content = json.loads(path.read_text())
    assert content["packages"]["numpy"] == np.__version__


def test_a_record_has_the_versions_of_simulators_that_are_installed(monkeypatch):
    def version(name):
        if name == "brax":
            raise importlib.metadata.PackageNotFoundError
        return f"of {name}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = versions()
    assert found["mujoco"] == "of mujoco"
    assert "brax" not in found


HALVED = dataclasses.replace(OPTIONS, num_seeds=2, sweep=("learning_rate=0.1,0.2,0.3",), sweep_halve="3")
RATES = {"learning_rate": np.float32([0.1, 0.2, 0.3])}
RUNGS = [Rung((0, 1, 2), 4, [Part(0, 4), Part(4, 6)]), Rung((1,), 12, [])]


def test_a_record_gives_rungs_back(tmp_path):
    write_record(tmp_path, Config(), HALVED, RATES, rungs=RUNGS)
    record = read_record(tmp_path)
    assert (record.rungs, record.parts) == (RUNGS, [])
    read_experiment(record, SimpleNamespace(Config=Config, make=None))


@pytest.mark.parametrize(
    "rungs",
    [
        3,
        [3],
        [{"stop": 4, "parts": []}],
        [{"settings": [0.5], "stop": 4, "parts": []}],
        [{"settings": [0, 1, 2], "stop": True, "parts": []}],
        [{"settings": [0, 1, 2], "stop": 4, "parts": [[0]]}],
        [{"settings": [0, 1, 3], "stop": 4, "parts": []}],
        [{"settings": [0, 1, 2], "stop": 4, "parts": [[0, 5]]}],
    ],
    ids=str,
)
def test_recorded_rungs_changed_by_hand_are_refused(tmp_path, rungs):
    change(write_record(tmp_path, Config(), HALVED, RATES, rungs=RUNGS), rungs=rungs)
    with pytest.raises(ValueError, match=r"rungs|parts"):
        read_experiment(read_record(tmp_path), SimpleNamespace(Config=Config, make=None))


@pytest.mark.parametrize("changes", [{"rank_by": "mean"}, {"eval_sampled": True, "eval_episodes": 0}], ids=str)
def test_what_resuming_takes_can_be_read_again(tmp_path, changes):
    """Options without effect, which a new run refuses and a resumed one takes and records."""
    options = dataclasses.replace(OPTIONS, **changes)
    write_record(tmp_path, Config(), options)
    assert read_options(read_record(tmp_path)) == options


def test_a_record_of_a_sweep_gives_its_experiment_back(tmp_path):
    options = dataclasses.replace(OPTIONS, sweep=("learning-rate=0.1,0.2",))
    settings = {"learning_rate": np.float32([0.1, 0.2])}
    path = write_record(tmp_path, Config(), options, settings, parts=[(0, 10)])
    experiment = read_experiment(read_record(tmp_path), SimpleNamespace(Config=Config, make=None))
    assert (experiment.config, experiment.options) == (Config(), options)
    np.testing.assert_array_equal(experiment.settings["learning_rate"], settings["learning_rate"])
    assert json.loads(path.read_text())["settings"] == {"learning_rate": [0.1, 0.2]}


@pytest.mark.parametrize("num_seeds", [2, 6])
@pytest.mark.parametrize("parts", [[(0, 5)], [(0, 2), (2, 5)]])
def test_parts_of_another_number_of_trials_are_refused(tmp_path, num_seeds, parts):
    write_record(tmp_path, Config(), dataclasses.replace(OPTIONS, num_seeds=num_seeds), parts=parts)
    with pytest.raises(ValueError, match=f"the recorded parts are not those of {num_seeds} trials"):
        read_experiment(read_record(tmp_path), SimpleNamespace(Config=Config, make=None))


@pytest.mark.parametrize(
    "parts",
    [
        *([[1, 5]], [[0, 4]], [[-1, 5]], [[5, 0]], [[0, 2], [3, 5]], [[0, 7], [7, 5]], [[0, 3], [2, 5]]),
        *([[0, 0], [0, 5]], [[0, 5], [5, 5]], [[0, 2], [2, 2], [2, 5]]),  # one of no trials
    ],
)
def test_parts_that_do_not_follow_each_other_are_refused(parts):
    with pytest.raises(ValueError, match="parts"):
        check_parts([Part(*part) for part in parts], 5)


def test_what_describes_a_process_is_not_recorded(tmp_path):
    options = dataclasses.replace(OPTIONS, resume="there", coordinator="a:1", num_processes=2, process_id=1)
    write_record(tmp_path, Config(), options)
    assert read_options(read_record(tmp_path)) == OPTIONS


def change(path, *keys, **values):
    """Take keys out of a JSON file, or put values in, each named by its path: `config__gamma`."""
    content = json.loads(path.read_text())
    for key in keys:
        outer, _, name = key.rpartition("__")
        del (content[outer] if outer else content)[name]
    for key, value in values.items():
        outer, _, name = key.rpartition("__")
        (content[outer] if outer else content)[name] = value
    path.write_text(json.dumps(content))


def test_a_record_of_before_a_field_has_its_default(tmp_path, capsys):
    path = write_record(tmp_path, Config(num_envs=9), dataclasses.replace(OPTIONS, eval_max_steps=3))
    change(path, "config__anneal", "config__activation", "options__matmul_precision", "options__eval_every")
    record = read_record(tmp_path)
    for to_resume in (False, True):
        assert read_config(record, Config, to_resume) == Config(num_envs=9)
        lacks = "lacks anneal = True, activation = tanh (the default)"
        assert capsys.readouterr().err == f"note: {path} is of another version and {lacks}\n"
    assert read_options(record) == dataclasses.replace(OPTIONS, eval_max_steps=3)
    lacks = "lacks eval_every = auto, matmul_precision = float32 (the default)"
    assert capsys.readouterr().err == f"note: {path} is of another version and {lacks}\n"


def test_what_this_version_does_not_know_is_left_out_and_said(tmp_path, capsys):
    path = write_record(tmp_path, Config(), OPTIONS)
    change(path, config__momentum=0.9, options__zip=True, options__more=1, other=[3])
    record = read_record(tmp_path)
    assert (read_config(record, Config), read_options(record)) == (Config(), OPTIONS)
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"note: {path} is of another version; not used: momentum"
    assert second == f"note: {path} is of another version; not used: more, zip"


def test_only_resuming_refuses_an_unknown_field(tmp_path):
    path = write_record(tmp_path, Config(), OPTIONS)
    change(path, config__momentum=0.9, config__zeta=1)
    with pytest.raises(ValueError, match=r"config\.json has settings that this version of algorithm\.py does not know"):
        read_config(read_record(tmp_path), Config, to_resume=True)
    with pytest.raises(ValueError, match=r": momentum, zeta$"):
        read_config(read_record(tmp_path), Config, to_resume=True)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        *((("options", name), value) for name in ("num_seeds", "seed") for value in ("x", None, 1.5, True, [3])),
        *((("options", "num_seeds"), value) for value in (0, -5, 10**12)),
        (("options", "checkpoint_every"), "often"),
        (("options", "checkpoint_every"), None),
        (("options", "sweep"), "gamma=1"),
        (("options", "sweep"), [1]),
        (("options", "wandb"), 7),
        (("options", "wandb"), "maybe"),
        (("options", "name"), "../x"),
        (("options", "matmul_precision"), "float16"),
        *((("parts",), value) for value in (None, 3, [3], [None], ["05"], [[0]], [[0, 1, 2]], [{"0": 1, "5": 2}])),
        *((("parts",), [[0, value]]) for value in ("5", 5.0, 5.5, True, None, math.nan, math.inf)),
        (("config",), []),
        (("script",), 3),
        (("wandb_id",), None),
        (("options",), None),
    ],
    ids=str,
)
def test_a_record_changed_by_hand_is_refused(tmp_path, keys, value):
    path = write_record(tmp_path, Config(), OPTIONS)
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"config\.json(:| cannot be read:) "):
        read_options(read_record(tmp_path))


@pytest.mark.parametrize("key", ["options", "config", "parts", "wandb_id", "script"])
def test_a_record_from_which_something_is_missing_is_refused(tmp_path, key):
    path = write_record(tmp_path, Config(), OPTIONS)
    change(path, key)
    with pytest.raises(ValueError, match=r"config\.json cannot be read: "):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_envs", None),
        ("num_envs", "4"),
        ("num_envs", 4.0),
        ("learning_rate", "x"),
        ("learning_rate", -1.0),
        ("learning_rate", None),
        ("anneal", 1),
        ("hidden_sizes", 64),
        ("hidden_sizes", [64, "x"]),
        ("activation", "gelu"),
        ("activation", ["tanh"]),
    ],
    ids=str,
)
def test_a_config_that_the_script_cannot_have_is_refused(tmp_path, field, value):
    path = write_record(tmp_path, Config(), OPTIONS)
    content = json.loads(path.read_text())
    content["config"][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=field):
        read_config(read_record(tmp_path), Config)


@pytest.mark.parametrize("field", ["learning_rate", "num_envs"])
def test_a_number_of_hundreds_of_digits_is_refused(tmp_path, field):
    path = write_record(tmp_path, Config(), OPTIONS)
    change(path, **{f"config__{field}": 10**400})
    with pytest.raises(ValueError, match=r"config\.json: "):
        read_config(read_record(tmp_path), Config)


@pytest.mark.parametrize("field", ["config", "parts", "more"])
def test_json_that_is_nested_too_deep_is_refused(tmp_path, field):
    path = write_record(tmp_path, Config(), OPTIONS)
    change(path, **{field: "deep"})
    path.write_text(path.read_text().replace('"deep"', "[" * 100_000 + "]" * 100_000))
    with pytest.raises(ValueError, match=r"config\.json cannot be read: "):
        read_record(tmp_path)


def test_a_missing_record_is_an_error_that_names_the_folder(tmp_path):
    with pytest.raises(ValueError, match="no-such-run"):
        read_record(tmp_path / "no-such-run")


@pytest.mark.parametrize("content", [b"", b'{"config": ', b"\xff\xfe", b"[]", b"3", b"{}"])
def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_record(tmp_path)


# -- Learning curve ----------------------------------------------------------------------------------------------------


def test_the_curve_is_written_as_csv(tmp_path):
    mean, nan = np.array([1.5, -201.125]), np.full(2, np.nan)
    curve = Curve(np.array([1000, 123_456_789]), mean[None], mean, mean + 1, nan, mean + 2)
    columns = ["return", "env_step", "mean", "iqm", "ci_low", "ci_high"]
    write_table(tmp_path / "curve.csv", columns, curve_rows({}, {"training": [curve]}))
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["return"] for row in rows] == ["training", "training"]
    assert [int(row["env_step"]) for row in rows] == [1000, 123_456_789]
    assert [float(row["mean"]) for row in rows] == [1.5, -201.125]
    assert [float(row["iqm"]) for row in rows] == [2.5, -200.125]
    assert [float(row["ci_high"]) for row in rows] == [3.5, -199.125]
    assert all(math.isnan(float(row["ci_low"])) for row in rows)
