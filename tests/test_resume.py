"""Resuming: a run that goes on is the run that was never stopped, with its own options."""

import importlib
import json
import re

import helpers
import jax
import numpy as np
import pytest
from helpers import call, flags, run_differences, saved_state, small_config, small_run
from runs import FILES, assert_finished, contents, directory_of, one, summary_of

import runner.training
from common.buffer import read
from runner.devices.placement import compile_init, make_placement

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


def test_a_finished_run_can_be_lengthened():
    """Without a schedule its first iterations do not depend on its length."""
    script, changes = "dqn", {"anneal_learning_rate": False, "epsilon_start": 0.05, "eval_episodes": 0}
    assert_finished(call(script, *small_run(script, 12, name="long", **changes)))
    assert_finished(call(script, *small_run(script, 6, name="short", **changes)))
    long, short = directory_of(script, "long"), directory_of(script, "short")
    assert (saved_state(short)[0], saved_state(long)[0]) == (6, 12)
    total = small_config(script, 12).total_timesteps
    result = call(script, "--resume", str(short), *flags(total_timesteps=total, eval_episodes=0))
    assert_finished(result)
    assert run_differences(short, long) == []
    assert summary_of(short) == summary_of(long)
    assert json.loads((short / "config.json").read_text())["config"]["total_timesteps"] == total


def test_a_finished_run_is_evaluated_again_and_not_changed(script, undisturbed, finished):
    unchanged = FILES - {"config.json", "curve.png", "metrics.png", "summary.json"}
    before, summary = contents(finished), summary_of(finished)
    (finished / "summary.json").unlink()
    result = call(script, "--resume", str(finished), *flags(eval_episodes=2))
    assert_finished(result)
    assert "greedy evaluation" in result.stdout
    after = contents(finished)
    assert after.keys() == before.keys()
    for path, content in before.items():
        if path.relative_to(finished).parts[0] in unchanged:
            assert after[path] == content, path
    assert summary_of(finished) == summary
    assert run_differences(finished, undisturbed[2]) == []
    records = [json.loads((folder / "config.json").read_text()) for folder in (finished, undisturbed[2])]
    assert records[0]["config"] == records[1]["config"]


def test_a_run_begins_with_the_types_with_which_it_is_resumed(script):
    """Otherwise the resumed program is another one, which has to be compiled and may round differently."""
    algorithm, trials = importlib.import_module(script).make(small_config(script)), make_placement(2, 99)
    init = compile_init(lambda settings: algorithm, trials, {})
    state = init({}, trials.place(jax.vmap(jax.random.key)(np.arange(2))))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    assert [jax.tree_util.keystr(path) for path, x in leaves if getattr(x, "weak_type", False)] == []


@one
def test_settings_may_be_repeated_when_resuming(script, undisturbed, finished):
    arguments = undisturbed[1]
    assert_finished(call(script, *arguments, "--resume", str(finished)))
    assert run_differences(finished, undisturbed[2]) == []


OPTIONS = {"eval_episodes": 3, "checkpoint_every": 0.0, "checkpoint_buffer": False, "devices": 1}


def test_a_resumed_run_uses_the_options_that_it_was_started_with(monkeypatch):
    used = {}

    def train(trainer, part, progress):
        used.update({name: getattr(trainer.experiment.options, name) for name in OPTIONS})
        return trained(trainer, part, progress)

    trained = runner.training.Trainer.train
    assert_finished(call("ppo", *small_run("ppo", name="begun", **OPTIONS)))
    monkeypatch.setattr(runner.training.Trainer, "train", train)
    directory = directory_of("ppo", "begun")
    result = call("ppo", "--resume", str(directory))
    assert_finished(result)
    assert used == OPTIONS
    assert "greedy evaluation of 2 seeds, 3 whole episodes each" in result.stdout
    result = call("ppo", "--resume", str(directory), *flags(eval_episodes=4, devices=2))
    assert_finished(result)
    assert used == {**OPTIONS, "eval_episodes": 4, "devices": 2}
    assert "greedy evaluation of 2 seeds, 4 whole episodes each" in result.stdout
    assert "3 whole" not in call("ppo", "--resume", str(directory)).stdout, "what was overridden is recorded"


def test_no_window_leads_from_before_a_resumption_to_after_it(monkeypatch):
    script, started = "dqn", []

    def train(trainer, part, progress):
        started.append(jax.tree.map(np.array, progress.state.buffer))
        return trained(trainer, part, progress)

    trained = runner.training.Trainer.train
    config = small_config(script)
    assert_finished(call(script, *small_run(script, 2, name="run", n_step=3, checkpoint_buffer=False, eval_episodes=0)))
    monkeypatch.setattr(runner.training.Trainer, "train", train)
    result = call(script, "--resume", str(directory_of(script, "run")), *flags(total_timesteps=config.env_steps(3)))
    assert_finished(result)
    assert "it is filled again with random transitions" in result.stdout
    (buffer,) = started
    rows = np.arange(config.learning_starts)
    truncated = jax.vmap(lambda buffer: read(buffer, rows).truncated)(buffer)
    assert (np.asarray(buffer.count) == config.learning_starts).all()
    assert np.asarray(truncated)[:, -config.num_envs :].all()
    assert not np.asarray(truncated)[:, : -config.num_envs].all()


@pytest.mark.parametrize(("precision", "level"), [(None, "HIGHEST"), ("tf32", "HIGH")])
def test_matrix_products_have_the_precision_of_the_run(precision, level, monkeypatch):
    levels, expected = set(), {(level, level), ("HIGHEST", "HIGHEST")}  # orthogonal initialisation has the highest

    def compile(lowered, *args, **kwargs):
        levels.update(re.findall(r"dot_general.*precision = \[(\w+), (\w+)\]", lowered.as_text()))
        return compiled(lowered, *args, **kwargs)

    compiled = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    monkeypatch.setattr(helpers, "PROGRAMS", {})  # no program of another test
    given = {} if precision is None else {"matmul_precision": precision}
    try:
        assert_finished(call("ppo", *small_run("ppo", 2, name="run", **given)))
        assert levels == expected
        levels.clear()
        assert_finished(call("ppo", "--resume", str(directory_of("ppo", "run")), *flags(total_timesteps=1280)))
        assert levels == {(level, level)}, "a resumed run keeps it"
    finally:
        jax.config.update("jax_default_matmul_precision", "float32")
