"""Evaluation in a run: when it happens, what it says, and that it changes nothing."""

import dataclasses
import json
import signal
import sys
import threading
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams, EnvState
from helpers import (
    ROOT,
    call,
    differences,
    run_differences,
    saved_iteration,
    saved_metrics,
    saved_state,
    small_config,
    small_run,
)
from runs import FILES, assert_finished, directory_of, summary_of

import runner.devices.programs
import runner.report.results
from runner.experiment import Experiment
from runner.options.fields import Options

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


def test_evaluation_in_batches_of_episodes_where_memory_is_short(monkeypatch):
    """The first batch is what evaluation without batches begins with."""
    assert_finished(call("ppo", *small_run("ppo", name="whole", eval_episodes=7)))
    monkeypatch.setattr(runner.devices.programs, "share_of_memory", lambda *_: 2.0)
    monkeypatch.setattr(runner.devices.memory, "check_fits", lambda *_: None)
    sizes = []
    evaluate = runner.devices.programs.evaluate
    monkeypatch.setattr(runner.devices.programs, "evaluate", lambda *args: sizes.append(args[-2]) or evaluate(*args))
    assert_finished(call("ppo", *small_run("ppo", name="batches", eval_episodes=7, trials_per_batch="2")))
    assert sizes == [7, 3, 1]
    whole, batches = (
        json.loads((directory_of("ppo", name) / "summary.json").read_text())["eval_episode_return"]["per_seed"]
        for name in ("whole", "batches")
    )
    assert len(whole) == len(batches) == 2
    assert whole != batches
    assert any(score % 1 for score in batches), "one episode in all batches would have a whole number as mean return"


@pytest.mark.parametrize(
    ("eval_every", "iterations"),
    [("auto", range(0, 41, 2)), ("0", [40]), ("300", [0, 10, 19, 29, 38, 40]), ("1", range(41)), ("1e9", [0, 40])],
)
def test_evaluation_changes_nothing(eval_every, iterations, undisturbed_ppo):
    """Training, and the evaluation at the end, are bit for bit the same however often it is evaluated before."""
    assert_finished(call("ppo", *small_run("ppo", name="often", eval_every=eval_every)))
    often = directory_of("ppo", "often")
    state, metrics = saved_state(often), saved_metrics(often)
    expected_state, expected = saved_state(undisturbed_ppo), saved_metrics(undisturbed_ppo)
    assert differences(state[1], expected_state[1]) == []
    assert set(differences(metrics, expected)) <= {"eval_env_steps", "eval_episode_return", "eval_episode_length"}
    config = small_config("ppo")
    np.testing.assert_array_equal(metrics["eval_env_steps"], [config.env_steps(i) for i in iterations])
    assert summary_of(often) == summary_of(undisturbed_ppo)
    shared = np.isin(expected["eval_env_steps"], metrics["eval_env_steps"])
    of_shared = np.isin(metrics["eval_env_steps"], expected["eval_env_steps"])
    np.testing.assert_array_equal(
        metrics["eval_episode_return"][:, of_shared], expected["eval_episode_return"][:, shared]
    )
    score = summary_of(often)["eval_episode_return"]["per_seed"]
    np.testing.assert_array_equal(metrics["eval_episode_return"][:, -1], score)


def test_an_evaluation_with_sampled_actions_says_so(undisturbed_ppo, monkeypatch):
    keys, programs = {}, runner.devices.programs
    evaluate, sampled_policy = programs.evaluate, programs.sampled_policy
    monkeypatch.setattr(programs, "evaluate", lambda *args: keys.update(episodes=args[3]) or evaluate(*args))
    monkeypatch.setattr(programs, "sampled_policy", lambda *args: keys.update(actions=args[3]) or sampled_policy(*args))
    result = call("ppo", *small_run("ppo", name="sampled", eval_sampled=True))
    assert_finished(result)
    assert keys["actions"] is not keys["episodes"], "actions and environments would share random numbers"
    assert "\nsampled evaluation of 2 seeds, 2 whole episodes each:\n" in result.stdout
    assert "greedy" not in result.stdout
    directory = directory_of("ppo", "sampled")
    assert json.loads((directory / "config.json").read_text())["options"]["eval_sampled"]
    assert summary_of(directory)["eval_sampled"]
    metrics = [saved_metrics(x) for x in (undisturbed_ppo, directory)]
    assert set(differences(*metrics)) == {"eval_episode_return", "eval_episode_length"}


class Switched(Environment):
    """Example 13.1 of Sutton & Barto (2018): one of four places, which look alike, turns the actions round."""

    default_params = EnvParams(max_steps_in_episode=100)

    def reset_env(self, key, params):
        return jnp.ones(1), EnvState(time=jnp.int32(0))  # here the time is the place

    def step_env(self, key, state, action, params):
        right = (action == 1) ^ (state.time == 1)
        place = jnp.maximum(state.time + jnp.where(right, 1, -1), 0)
        return jnp.ones(1), EnvState(time=place), jnp.float32(-1), place == 3, {}

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Box(0.0, 1.0, (1,))


@pytest.mark.parametrize("eval_sampled", [False, True])
def test_a_policy_that_needs_its_randomness_is_told(eval_sampled):
    if "Probe-Switched" not in gymnax.registered_envs:
        gymnax.register("Probe-Switched", Switched)
    result = call("ppo", *small_run("ppo", env="Probe-Switched", eval_sampled=eval_sampled, eval_every="64"))
    assert_finished(result)
    said = "greedy actions score -100.0, far below the training return of -1"
    assert (said in result.stdout) == (not eval_sampled)
    assert ("train with --eval-sampled" in result.stdout) == (not eval_sampled)


@pytest.fixture
def evaluations(monkeypatch):
    """Iterations after which a part is evaluated, in order."""
    iterations, evaluate = [], runner.devices.programs.Programs.evaluate

    def keep(self, part, state, iteration):
        iterations.append(iteration)
        return evaluate(self, part, state, iteration)

    monkeypatch.setattr(runner.devices.programs.Programs, "evaluate", keep)
    return iterations


def test_each_part_is_evaluated_once_before_training(evaluations, undisturbed_ppo):
    assert_finished(call("ppo", *small_run("ppo", name="parts", trials_per_batch="1")))
    assert evaluations == 2 * list(range(0, 41, 2))
    directory = directory_of("ppo", "parts")
    before, alone = saved_metrics(directory), saved_metrics(undisturbed_ppo)
    np.testing.assert_array_equal(before["eval_env_steps"], alone["eval_env_steps"])
    np.testing.assert_array_equal(before["eval_episode_return"][:, 0], alone["eval_episode_return"][:, 0])
    evaluations.clear()
    assert_finished(call("ppo", "--resume", str(directory), "--total-timesteps", "1600"))
    assert 0 not in evaluations
    after = saved_metrics(directory)
    np.testing.assert_array_equal(after["eval_env_steps"][:21], before["eval_env_steps"])
    np.testing.assert_array_equal(after["eval_episode_return"][:, :21], before["eval_episode_return"])


def test_stopped_before_a_checkpoint_a_run_is_evaluated_again(evaluations, undisturbed_ppo, monkeypatch):
    def stop(*args):
        signal.raise_signal(signal.SIGTERM)
        return evaluate(*args)

    evaluate = runner.devices.programs.Programs.evaluate
    with monkeypatch.context() as patch:
        patch.setattr(runner.devices.programs.Programs, "evaluate", stop)
        assert call("ppo", *small_run("ppo", name="stopped")).status == 128 + signal.SIGTERM
    directory = directory_of("ppo", "stopped")
    assert (evaluations, saved_iteration(directory)) == ([0], 0)
    assert_finished(call("ppo", "--resume", str(directory)))
    assert evaluations[:3] == [0, 0, 2]
    assert run_differences(directory, undisturbed_ppo) == []


@pytest.mark.parametrize("is_late", [True, False])
def test_a_run_says_when_it_waits_for_the_evaluation_program(is_late, monkeypatch):
    """It says so only when it waits. Here the program is late until the run asks for it, or there before."""
    is_asked, programs = threading.Event(), runner.devices.programs.Programs
    compile_evaluation, evaluate = programs._compile_evaluation, programs.evaluate

    def late(self):
        assert is_asked.wait(timeout=60)
        return compile_evaluation(self)

    def ask(self, *args):
        if is_late:
            threading.Timer(0.5, is_asked.set).start()
        else:
            self.evaluation.result()
        return evaluate(self, *args)

    if is_late:
        monkeypatch.setattr(programs, "_compile_evaluation", late)
    monkeypatch.setattr(programs, "evaluate", ask)
    result = call("ppo", *small_run("ppo", name="waiting"))
    assert_finished(result)
    assert result.stdout.count("\nwaiting for the evaluation program to compile ...\n") == is_late


@pytest.mark.parametrize(("env", "is_drawn"), [("CartPole-v1", True), ("DeepSea-bsuite", False)])
def test_draw_is_offered_where_the_environment_can_be_drawn(env, is_drawn, capsys):
    experiment = Experiment(
        str(ROOT / "ppo.py"), None, dataclasses.replace(small_config("ppo"), env=env), Options(), {}
    )
    runner.report.results.print_commands(experiment, Path("folder"), False)
    output = capsys.readouterr().out
    assert ("  draw:        python -m runner.render folder\n" in output) == is_drawn
    assert "  compare:     python -m runner.compare folder OTHER_RUN\n" in output


@pytest.mark.parametrize(
    ("started", "argv", "script", "extend", "draw"),
    [
        (["ppo.py", "--seed", "1"], 0, "ppo.py", "ppo.py", "-m runner.render folder"),
        (["-u", "ppo.py"], 1, "ppo.py", "ppo.py", "-m runner.render folder"),
        (
            ["corridor.py", "ppo.py", "--seed", "1"],
            1,
            "ppo.py",
            "corridor.py ppo.py",
            "corridor.py runner/render.py folder",
        ),
        (["corridor.py", "ppo.py"], 1, "ppo.py", "corridor.py ppo.py", "corridor.py runner/render.py folder"),
        (["own.py", "--seed", "1"], 0, "ppo.py", "own.py", "-m runner.render folder"),
        (["lab/own.py"], 0, "lab/own.py", "lab/own.py", "-m runner.render folder --script lab/own.py"),
        (["-m", "ipykernel_launcher"], None, "ppo.py", "ppo.py", "-m runner.render folder"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_the_commands_name_the_file_that_started_the_run(started, argv, script, extend, draw, capsys, monkeypatch):
    """It may have registered the environment."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "orig_argv", ["python", *started])
    monkeypatch.setattr(sys, "argv", ["/kernel.py"] if argv is None else started[argv:])
    experiment = Experiment(str(ROOT / script), None, small_config("ppo"), Options(), {})
    runner.report.results.print_commands(experiment, Path("folder"), False)
    output = capsys.readouterr().out
    assert f"  extend:      python {extend} --resume folder --total" in output
    assert f"  draw:        python {draw}\n" in output
    assert (
        f"  export:      python {draw.replace('render.py', 'export/__main__.py').replace('.render', '.export')} "
        in output
    )


def test_each_evaluation_plays_other_episodes():
    """With a learning rate of 0 the policy stays the same, and its scores differ all the same."""
    assert_finished(call("ppo", *small_run("ppo", name="still", learning_rate=0.0)))
    returns = saved_metrics(directory_of("ppo", "still"))["eval_episode_return"]
    assert all(len(set(row)) > 3 for row in returns)


def test_an_evaluation_that_fails_leaves_the_results_of_training(monkeypatch):
    def fails(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.")

    monkeypatch.setattr(runner.devices.programs.Programs, "evaluate", fails)
    result = call("ppo", *small_run("ppo", name="unlucky"))
    assert result.status == 0, result
    warning = "warning: no evaluation: RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.; lower --eval-episodes\n"
    assert result.stderr == 21 * warning
    directory = directory_of("ppo", "unlucky")
    assert {path.name for path in directory.iterdir()} == FILES
    assert "eval_episode_return" not in json.loads((directory / "summary.json").read_text())


def test_an_error_in_an_evaluation_that_is_no_lack_of_memory_keeps_its_traceback(monkeypatch):
    def fails(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: a callback of the environment failed")

    monkeypatch.setattr(runner.devices.programs.Programs, "evaluate", fails)
    result = call("ppo", *small_run("ppo", name="unlucky"))
    assert result.status == 1
    assert "in fails" in result.stderr


def test_a_part_that_is_stopped_is_not_evaluated(evaluations, monkeypatch):
    """Its scores would be thrown away: the others are not trained."""

    def append(*args):
        signal.raise_signal(signal.SIGTERM)
        return appended(*args)

    appended = runner.training.append_metrics
    monkeypatch.setattr(runner.training, "append_metrics", append)
    assert call("ppo", *small_run("ppo", name="parts", trials_per_batch="1")).status == 128 + signal.SIGTERM
    assert evaluations == [0]


def test_episodes_that_are_cut_are_counted():
    result = call("ppo", *small_run("ppo", name="cut", eval_max_steps=3))
    assert_finished(result)
    assert "4 of 4 evaluation episodes had not ended after 3 steps and were cut\n" in result.stdout
    assert json.loads((directory_of("ppo", "cut") / "summary.json").read_text())["eval_cut_episodes"] == 4
