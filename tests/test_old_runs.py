"""A run of an earlier version can be resumed, loaded, drawn and compared.

old_runs/ppo is a run as commit 0d8034e wrote it, without its pictures:
python ppo.py --env CartPole-v1 --num-seeds 2 --name ppo --num-envs 2 --num-steps 16 --num-epochs 1 --num-minibatches 2
    --hidden-sizes 8 --normalize-obs --normalize-reward --total-timesteps 320 --eval-episodes 2 --eval-max-steps 50
    --eval-every 96
It has settings that are recipes now, switched off, and a metric that is gone, num_updates.
"""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import call, capture, saved_metrics

from common.environment import make_env
from runner import render
from runner.compare import __main__ as compare
from runner.files.load import load

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


def test_resumed(run):
    before = saved_metrics(run)
    result = resume(run)
    assert (result.status, result.stderr) == (0, ""), result
    assert "has no preset" not in result.stdout
    after = saved_metrics(run)
    assert after["env_steps"][-1] == 640
    assert after.keys() == before.keys() - {"num_updates"}
    for name in after:
        part = after[name][tuple(slice(n) for n in before[name].shape)]
        assert before[name].tobytes() == np.ascontiguousarray(part).tobytes(), name
    assert np.isfinite(after["grad_norm"]).all()


def test_resumed_without_a_setting_and_an_option(run):
    def edit(content):
        as_of_another_version(content)
        del content["config"]["momentum"]

    change(run, edit)
    result = resume(run)
    assert result.status == 0, result
    note = f"note: {run / 'config.json'} is of another version"
    assert result.stderr.splitlines() == [
        f"{note} and lacks layer_norm = False (the default)",
        f"{note} and lacks matmul_precision = float32 (the default)",
        f"{note}; not used: zip",
    ]


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


@pytest.mark.parametrize("edit", [lambda _: None, as_of_another_version, with_a_recipe])
def test_loaded_and_drawn(run, edit, capsys):
    change(run, edit)
    config, algorithm, state = load(run, seed_index=1)
    notes = capsys.readouterr().err
    assert ("another version" in notes) == (edit in (as_of_another_version, with_a_recipe))
    env = make_env(config.env)
    obs, _ = env.reset(jax.random.split(jax.random.key(0), 3))
    assert np.isfinite(algorithm.value(state, obs)).all()
    assert len(algorithm.act(state, obs)) == 3
    assert config.hidden_sizes == (8,)
    result = capture(render.main, "render", str(run), "--max-steps", "3")
    assert (result.status, result.stderr.replace(notes, "")) == (0, ""), result
    assert (run.parent / "episode.gif").stat().st_size > 1000


def test_compared(run):
    result = capture(compare.main, "compare", str(run), str(shutil.copytree(OLD, run.parent / "again")))
    assert (result.status, result.stderr) == (0, ""), result
    assert "P(A > B)" in result.stdout
    assert (run.parent / "compare.png").exists()
