"""A run of an earlier version can be compared, and is not resumed with a setting that is gone.

old_runs/ppo is a run as commit 0d8034e wrote it, without its pictures:
python ppo.py --env CartPole-v1 --num-seeds 2 --name ppo --num-envs 2 --num-steps 16 --num-epochs 1 --num-minibatches 2
    --hidden-sizes 8 --normalize-obs --normalize-reward --total-timesteps 320 --eval-episodes 2 --eval-max-steps 50
    --eval-every 96
It has settings that are recipes now, switched off, and a metric that is gone, num_updates.
"""

import json
import shutil
from pathlib import Path

import pytest
from helpers import call, capture

from runner.compare import __main__ as compare

pytestmark = pytest.mark.slow

OLD = Path(__file__).parent / "old_runs" / "ppo"


@pytest.fixture
def run(folder):
    """A copy of the old run in an empty folder."""
    return Path(shutil.copytree(OLD, folder / "ppo"))


def change(run, edit):
    content = json.loads((run / "config.json").read_text())
    edit(content)
    (run / "config.json").write_text(json.dumps(content))


def as_of_another_version(content):
    """It lacks a setting and an option, and has others that are not known."""
    del content["config"]["layer_norm"], content["options"]["matmul_precision"]
    content["config"]["momentum"] = 0.9
    content["options"]["zip"] = True


def with_a_recipe(content):
    content["config"]["target_kl"] = 0.02


def resume(run):
    return call("ppo", "--resume", str(run), "--total-timesteps", "640")


@pytest.mark.parametrize(
    ("edit", "names"),
    [(as_of_another_version, "momentum"), (with_a_recipe, "target_kl (see docs/recipes.md)")],
    ids=["unknown", "a recipe"],
)
def test_not_resumed_with_an_unknown_setting(run, edit, names):
    change(run, edit)
    before = (run / "config.json").read_bytes()
    result = resume(run)
    assert (result.status, result.stdout) == (2, "")
    assert result.stderr.endswith(f"ppo.py does not know, so it cannot train on: {names}\n")
    assert (run / "config.json").read_bytes() == before


def test_compared(run):
    result = capture(compare.main, "compare", str(run), str(shutil.copytree(OLD, run.parent / "again")))
    assert (result.status, result.stderr) == (0, ""), result
    assert "P(A > B)" in result.stdout
    assert (run.parent / "compare.png").exists()
