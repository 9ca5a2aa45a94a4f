"""common/files.py: what a run writes can be read back, and a failed write never leaves a part of a file."""

import csv
import json
import math
import resource
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.checkpoint import read_config, read_record
from common.files import (
    append_metrics,
    read_metrics,
    write_atomically,
    write_curves,
    write_json,
    write_metrics,
    write_record,
)
from common.statistics import Curve

# -- Atomic writes -----------------------------------------------------------------------------------------------------


def test_the_new_content_replaces_the_old_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "file.txt"
    for content in (b"a long first version", b"", b"\x00\xff second"):
        write_atomically(path, content)
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
    write_atomically(path, b"old")
    with pytest.raises(OSError, match="too large"):
        write_atomically(path, bytes(5000))
    assert path.read_bytes() == b"old"


def test_metrics_that_do_not_fit_on_the_disk_leave_the_old_ones(tmp_path, full_disk):
    write_metrics(tmp_path, np.arange(2), {}, {"loss": np.ones((1, 2), np.float32)})
    with pytest.raises(OSError, match="too large"):
        write_metrics(tmp_path, np.arange(2000), {}, {"loss": np.zeros((1, 2000), np.float32)})
    np.testing.assert_array_equal(read_metrics(tmp_path, 2)["loss"], [[1.0, 1.0]])


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
def test_metrics_are_read_back_bit_by_bit_up_to_the_iteration_asked_for(tmp_path_factory, shape, kept, dtype, data):
    directory = tmp_path_factory.getbasetemp()
    metrics = {name: data.draw(hnp.arrays(dtype, shape)) for name in ("episode_return", "loss")}
    write_metrics(directory, np.arange(shape[1]), {"seed": np.arange(shape[0])}, metrics)
    kept = min(kept, shape[1])
    read = read_metrics(directory, kept)
    assert read.keys() == metrics.keys()
    for name, x in metrics.items():
        assert read[name].dtype == x.dtype
        assert read[name].tobytes() == x[:, :kept].tobytes()


def test_metrics_file_is_plain_numpy_with_env_steps(tmp_path):
    write_metrics(tmp_path, np.array([10, 20, 30]), {"seed": np.array([5, 6])}, metrics_of(2, 3))
    with np.load(tmp_path / "metrics.npz") as file:
        assert set(file.files) == {"env_steps", "seed", "episode_return", "num_episodes"}
        np.testing.assert_array_equal(file["env_steps"], [10, 20, 30])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.npz"]


def test_metrics_that_are_too_few_are_an_error_that_names_the_file(tmp_path):
    write_metrics(tmp_path, np.arange(3), {}, metrics_of(2, 3))
    assert read_metrics(tmp_path, 3)["num_episodes"].shape == (2, 3)
    with pytest.raises(ValueError, match=r"metrics\.npz has fewer than the 4 iterations"):
        read_metrics(tmp_path, 4)


def test_missing_metrics_are_an_error_that_names_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"metrics\.npz"):
        read_metrics(tmp_path, 1)


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_metrics_are_an_error_that_names_the_file_or_no_damage(tmp_path_factory, data):
    """Any part of the arrays overwritten, or the file cut anywhere. The arrays make up nearly all of the file."""
    directory = tmp_path_factory.getbasetemp()
    expected = metrics_of(3, 50)
    write_metrics(directory, np.arange(50), {}, expected)
    raw = (directory / "metrics.npz").read_bytes()
    if data.draw(st.booleans()):
        damaged = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        start = data.draw(st.integers(0, raw.index(b"PK\x01\x02") - 1))  # the zip's index has no checksum of its own
        noise = data.draw(st.binary(min_size=1, max_size=64))
        damaged = raw[:start] + noise + raw[start + len(noise) :]
    (directory / "metrics.npz").write_bytes(damaged)
    try:
        metrics = read_metrics(directory, 50)
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


LANES = {
    **{"seed": 3, "num_seeds": 5, "sweep": [], "sweep_samples": 0, "lanes_per_batch": "auto"},
    **{"settings": {}, "parts": [[0, 5]]},
}


@dataclass(frozen=True)
class Config:
    env: str = "CartPole-v1"
    learning_rate: float = 0.1
    anneal: bool = True
    hidden_sizes: tuple[int, ...] = (64, 64)


def test_a_record_gives_the_config_back(tmp_path):
    config = Config(env="Pendulum-v1", learning_rate=1e-4, anneal=False, hidden_sizes=(8,))
    write_record(tmp_path, "scripts/algorithm.py", config, LANES)
    record = read_record(tmp_path)
    assert read_config(Config, record) == config
    assert (record["algorithm"], record["seed"], record["num_seeds"]) == ("algorithm", 3, 5)
    assert record["packages"]["numpy"] == np.__version__


def test_a_record_of_other_fields_is_refused(tmp_path):
    write_record(tmp_path, "algorithm.py", Config(), LANES)
    record = read_record(tmp_path)
    record["config"]["momentum"] = 0.9
    with pytest.raises(ValueError, match="momentum"):
        read_config(Config, record)


def test_a_missing_record_is_an_error_that_names_the_folder(tmp_path):
    with pytest.raises(ValueError, match="no-such-run"):
        read_record(tmp_path / "no-such-run")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"config": ',
        b"\xff\xfe",
    ],
)
def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_record(tmp_path)


# -- Learning curve ----------------------------------------------------------------------------------------------------


def test_the_curve_is_written_as_csv(tmp_path):
    mean, nan = np.array([1.5, -201.125]), np.full(2, np.nan)
    curve = Curve(np.array([1000, 123_456_789]), mean[None], mean, mean + 1, nan, mean + 2)
    write_curves(tmp_path / "curve.csv", {}, [curve])
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["env_step"]) for row in rows] == [1000, 123_456_789]
    assert [float(row["mean"]) for row in rows] == [1.5, -201.125]
    assert [float(row["iqm"]) for row in rows] == [2.5, -200.125]
    assert [float(row["ci_high"]) for row in rows] == [3.5, -199.125]
    assert all(math.isnan(float(row["ci_low"])) for row in rows)
