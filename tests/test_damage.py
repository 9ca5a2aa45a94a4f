"""Runs whose files are damaged, or not those of one run."""

import json

import numpy as np
import pytest
from helpers import ITERATIONS, call, execute, path_of, saved_metrics
from runs import assert_refused, contents, one

from runner.files import store

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


@one
def test_damaged_metrics(script, finished):
    cut(finished / "metrics.npz")
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), finished / "metrics.npz")
    assert contents(finished) == before


def test_metrics_that_end_before_the_checkpoint(script, finished):
    metrics = saved_metrics(finished)
    np.savez(finished / "metrics.npz", **{name: x[..., :-1] for name, x in metrics.items()})
    assert_refused(call(script, "--resume", str(finished)), finished / "metrics.npz", ITERATIONS)


def test_damaged_config(script, finished):
    (finished / "config.json").write_text('{"algorithm": "pp')
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), finished / "config.json")
    assert contents(finished) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(config=[]),
        lambda record: record["config"].update(gamma=2.0),
        lambda record: record["options"].update(num_seeds=3),
        lambda record: record["options"].update(sweep=["gamma=0.5,0.9"]),
        lambda record: record.update(parts=[[0, float("inf")]]),
    ],
)
@one
def test_a_record_changed_by_hand(script, change, finished):
    record = json.loads((finished / "config.json").read_text())
    change(record)
    (finished / "config.json").write_text(json.dumps(record))
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)))
    assert contents(finished) == before


@one
def test_metrics_of_another_run(script, finished):
    metrics = saved_metrics(finished)
    np.savez(finished / "metrics.npz", **{**metrics, "seed": metrics["seed"] + 1})
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), finished / "metrics.npz", "another run")
    assert contents(finished) == before


@one
def test_a_damaged_checkpoint(script, finished):
    cut(finished / store.CHECKPOINT)
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), finished / store.CHECKPOINT)
    assert contents(finished) == before


@one
def test_a_damaged_checkpoint_in_a_process_of_its_own(script, finished, tmp_path):
    content = bytearray((finished / store.CHECKPOINT).read_bytes())
    content[-9] ^= 4
    (finished / store.CHECKPOINT).write_bytes(content)
    assert_refused(execute(path_of(script), "--resume", str(finished), cwd=tmp_path), finished / store.CHECKPOINT)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
