"""Shared parts of the tests of whole runs."""

import json
from pathlib import Path

import pytest
from helpers import ENVS, SCRIPTS, flags

FILES = {
    "config.json",
    "metrics.npz",
    "curve.csv",
    "curve.png",
    "metrics.png",
    "summary.json",
    "checkpoint.safetensors",
}

# The host looks after every iteration, and saves after every one.
OFTEN = flags(checkpoint_every=0.0)
CASES = [(script, env) for script in SCRIPTS for env in ENVS[script]]
# What the runner decides alone is tested with one script.
one = pytest.mark.parametrize("script", ["ppo"], indirect=True, scope="module")


def directory_of(script, name, env=None):
    return Path("runs", script, env or ENVS[script][0], name)


def summary_of(directory):
    """The content of summary.json without its times."""
    summary = json.loads((directory / "summary.json").read_text())
    del summary["timing"]
    return summary


def contents(folder):
    """Every file below a folder, with what is in it."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def assert_finished(result):
    assert (result.status, result.stderr) == (0, ""), result


def assert_refused(result, *words):
    """Status 2 and one line on stderr, which has these words."""
    assert result.status == 2, result
    assert result.stderr.startswith("error: "), result
    assert result.stderr.count("\n") == 1, result
    for word in words:
        assert str(word) in result.stderr, result
    assert "Traceback" not in result.stdout


class FakeRun:
    """A stand-in for a wandb run, with all that the tracker uses."""

    def __init__(self, logged):
        self.summary, self.logged, self.step, self.last = {}, logged, 0, None

    def define_metric(self, *args, **kwargs):
        pass

    def log(self, values, step):
        assert step == values["env_steps"] >= self.step, "wandb drops what is logged at an earlier step"
        if self.last and step == self.step:  # joined, as wandb does
            self.last.update(values)
            return
        self.step, self.last = step, values
        self.logged.append(values)

    def finish(self):
        pass
