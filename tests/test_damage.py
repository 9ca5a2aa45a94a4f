"""Commands refuse a run whose files are damaged, or not those of one run, and leave it as it is.

What is refused, and in which words: test_files.py, test_checkpoint.py.
"""

import json

import numpy as np
import pytest
from helpers import call, saved_metrics
from runs import assert_refused, contents, one

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_seeds(path):
    metrics = saved_metrics(path.parent)
    np.savez(path, **{**metrics, "seed": metrics["seed"] + 1})


def more_seeds(path):
    record = json.loads(path.read_text())
    record["options"]["num_seeds"] = 3
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("metrics.npz", cut, "metrics.npz"),
        ("metrics.npz", other_seeds, "metrics.npz belongs to another run"),
        ("checkpoint.safetensors", cut, "checkpoint.safetensors"),
        ("config.json", cut, "config.json"),
        ("config.json", more_seeds, "the recorded parts are not those of 3 trials"),
    ],
)
@one
def test_a_damaged_run_is_not_resumed(script, name, damage, message, finished):
    damage(finished / name)
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), message)
    assert contents(finished) == before
