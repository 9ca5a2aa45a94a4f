"""Runs of earlier versions can be resumed, loaded, drawn and compared.

old_runs/ has two runs as commit 0cc098c wrote them, without their pictures, before records had a version:
ppo: python ppo.py --env CartPole-v1 --num-seeds 2 --name ppo --num-envs 2 --num-steps 16 --num-epochs 1
    --num-minibatches 2 --hidden-sizes 8 --normalize-obs --normalize-reward --total-timesteps 320 --eval-episodes 2
    --eval-max-steps 50 --eval-every 96
sac: python sac.py --env Pendulum-v1 --num-seeds 2 --name sac --num-envs 2 --steps-per-iteration 16
    --learning-starts 32 --buffer-size 64 --batch-size 8 --train-interval 2 --gradient-steps 1 --hidden-sizes 8
    --total-timesteps 192 --eval-episodes 2 --eval-max-steps 20 --sweep gamma=0.9,0.99 --lanes-per-batch 2
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
from runner.folder.load import load

OLD = Path(__file__).parent / "old_runs"
RUNS = {"ppo": 640, "sac": 384}  # env steps to which each is extended
pytestmark = pytest.mark.usefixtures("compilations")


@pytest.fixture(params=RUNS)
def run(request, folder):
    """A copy of an old run in an empty folder."""
    return Path(shutil.copytree(OLD / request.param, folder / request.param))


def note(run):
    """What is said of the settings that did not exist then."""
    lacks = "lacks reward_scale = 1.0, value_hidden_sizes = () (the default)"
    return f"note: {run / 'config.json'} is of another version and {lacks}\n"


def change(run, edit):
    content = json.loads((run / "config.json").read_text())
    edit(content)
    (run / "config.json").write_text(json.dumps(content))


def as_of_another_version(content):
    """It lacks a setting and an option, and has others that are not known."""
    del content["config"]["layer_norm"], content["options"]["matmul_precision"]
    content["config"]["momentum"] = 0.9
    content["options"]["zip"] = True


def resume(run):
    return call(run.name, "--resume", str(run), "--total-timesteps", str(RUNS[run.name]))


def test_resumed(run):
    before = saved_metrics(run)
    result = resume(run)
    assert (result.status, result.stderr) == (0, note(run)), result
    assert "has no preset" not in result.stdout
    after = saved_metrics(run)
    assert after.keys() == before.keys()
    assert after["env_steps"][-1] == RUNS[run.name]
    for name, x in before.items():
        assert x.tobytes() == np.ascontiguousarray(after[name][tuple(slice(n) for n in x.shape)]).tobytes(), name
    assert np.isfinite(after["grad_norm" if run.name == "ppo" else "critic_loss"]).all()
    assert json.loads((run / "config.json").read_text())["version"] == 2


def test_resumed_without_a_setting_and_an_option(run):
    def edit(content):
        as_of_another_version(content)
        del content["config"]["momentum"]

    change(run, edit)
    result = resume(run)
    assert result.status == 0, result
    path = run / "config.json"
    assert result.stderr.splitlines() == [
        f"note: {path} is of another version and lacks reward_scale = 1.0, value_hidden_sizes = (), "
        "layer_norm = False (the default)",
        f"note: {path} is of another version and lacks matmul_precision = float32 (the default)",
        f"note: {path} is of another version; not used: zip",
    ]


def test_not_resumed_with_a_setting_that_the_script_does_not_have(run):
    change(run, as_of_another_version)
    before = (run / "config.json").read_bytes()
    result = resume(run)
    assert (result.status, result.stdout) == (2, "")
    assert result.stderr.endswith(f"{run.name}.py does not know, so it cannot train on: momentum\n")
    assert (run / "config.json").read_bytes() == before


@pytest.mark.parametrize("edit", [lambda _: None, as_of_another_version], ids=["as it was", "another version"])
def test_loaded_and_drawn(run, edit, capsys):
    change(run, edit)
    config, algorithm, state = load(run, seed_index=1)
    notes = capsys.readouterr().err
    assert (notes == note(run)) == (edit is not as_of_another_version)
    env = make_env(config.env)
    obs, _ = env.reset(jax.random.split(jax.random.key(0), 3))
    assert np.isfinite(algorithm.value(state, obs)).all()
    assert len(algorithm.act(state, obs)) == 3
    assert config.hidden_sizes == (8,)
    result = capture(render.main, "render", str(run), "--max-steps", "3")
    assert (result.status, result.stderr.replace(notes, "")) == (0, ""), result
    assert (run.parent / "episode.gif").stat().st_size > 1000


@pytest.mark.parametrize("edit", [lambda _: None, as_of_another_version], ids=["as it was", "another version"])
def test_compared(run, edit):
    change(run, edit)
    result = capture(compare.main, "compare", str(run), str(shutil.copytree(OLD / run.name, run.parent / "again")))
    assert (result.status, result.stderr) == (0, ""), result
    assert "P(A > B)" in result.stdout
    assert (run.parent / "compare.png").exists()
