"""Ctrl-C, SIGTERM and SIGHUP, at every moment of a run."""

import json
import signal
import time

import pytest
from helpers import (
    ITERATIONS,
    Process,
    call,
    differences,
    flags,
    path_of,
    run_differences,
    saved_metrics,
    saved_state,
    small_config,
    small_run,
)
from runs import FILES, OFTEN, assert_finished, directory_of, one

import runner.devices.programs
import runner.training

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


@pytest.mark.parametrize(
    ("script", "number"), [("ppo", signal.SIGINT), ("dqn", signal.SIGTERM)], indirect=["script"], scope="module"
)
def test_a_signal_ends_a_run_after_its_segment(script, undisturbed, monkeypatch, number):
    def append_metrics(metrics, records):
        metrics = append(metrics, records)
        if metrics["episode_return"].shape[1] == 5:
            signal.raise_signal(number)
        return metrics

    append = runner.training.append_metrics
    monkeypatch.setattr(runner.training, "append_metrics", append_metrics)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = call(script, *small_run(script, name="stopped"), *OFTEN)
    directory = directory_of(script, "stopped")
    assert result.status == 128 + number, result
    assert "Traceback" not in result.stderr
    assert f"--resume {directory}\n" in result.stderr
    assert "--resume" not in result.stdout, "one command to continue it"
    assert "greedy evaluation" in result.stdout
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers

    assert {path.name for path in directory.iterdir()} == FILES
    assert saved_state(directory)[0] == 5
    whole = saved_metrics(undisturbed[2])
    expected = {name: x[..., :5] for name, x in whole.items()}
    is_reached = whole["eval_env_steps"] < expected["env_steps"][-1]  # one that is due there is made after resuming
    expected |= {name: x[..., is_reached] for name, x in whole.items() if name.startswith("eval_")}
    assert differences(saved_metrics(directory), expected) == []
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["env_steps"] == small_config(script).env_steps(5)

    monkeypatch.setattr(runner.training, "append_metrics", append)
    assert_finished(call(script, "--resume", str(directory), *flags(eval_episodes=2)))
    assert run_differences(directory, undisturbed[2]) == []


@one
def test_a_signal_from_outside(script, folder):
    directory = folder / directory_of(script, "stopped")
    with Process(path_of(script), *small_run(script, name="stopped"), *OFTEN, cwd=folder) as process:
        process.wait_for_checkpoint(directory, 1)
        process.send(signal.SIGTERM)
        result = process.finish()
    assert result.status == 143, result
    assert "Traceback" not in result.stderr
    assert f"--resume {directory.relative_to(folder)}\n" in result.stderr
    iteration, _ = saved_state(directory)
    assert 1 <= iteration < ITERATIONS, "it did not stop before the end"
    assert saved_metrics(directory)["env_steps"].shape == (iteration,)
    assert {path.name for path in directory.iterdir()} == FILES


@one
def test_a_second_ctrl_c_quits_at_once(script, folder):
    endless = {"ppo": {"num_epochs": 1_000_000}, "dqn": {"steps_per_iteration": 16_000_000}}[script]
    arguments = small_run(script, 2, hidden_sizes=(64, 64), name="long", eval_episodes=0, **endless)
    with Process(path_of(script), *arguments, cwd=folder) as process:
        process.wait_for_text("compiled in")
        time.sleep(2)  # now it is inside of its segment of minutes, on a busy machine too
        process.send(signal.SIGINT)
        process.wait_for_text("again quits at once")
        time.sleep(0.5)
        assert process.process.poll() is None, "the first Ctrl-C did not wait for the end of the segment"
        process.send(signal.SIGINT)
        result = process.finish()
    assert result.status == 130
    assert not (folder / directory_of(script, "long") / "summary.json").exists(), "it waited for the end of the segment"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@one
def test_a_signal_during_compilation(script, undisturbed, monkeypatch, number):
    def compile_segment(*args):
        signal.raise_signal(number)
        return compiled(*args)

    compiled = runner.devices.programs.compile_segment
    monkeypatch.setattr(runner.devices.programs, "compile_segment", compile_segment)
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP, and so would the run
    try:
        result = call(script, *small_run(script, name="early"))
    finally:
        signal.signal(number, before)
    directory = directory_of(script, "early")
    assert result.status == 128 + number, result
    assert "Traceback" not in result.stderr
    assert f"--resume {directory}\n" in result.stderr

    monkeypatch.setattr(runner.devices.programs, "compile_segment", compiled)
    assert_finished(call(script, "--resume", str(directory), *flags(eval_episodes=2)))
    assert run_differences(directory, undisturbed[2]) == []


@one
def test_a_closed_terminal_leaves_a_run_that_ignores_it(script, monkeypatch):
    """nohup starts a run like this."""

    def compile_segment(*args):
        signal.raise_signal(signal.SIGHUP)
        return compiled(*args)

    compiled = runner.devices.programs.compile_segment
    monkeypatch.setattr(runner.devices.programs, "compile_segment", compile_segment)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert_finished(call(script, *small_run(script, name="alone")))
    finally:
        signal.signal(signal.SIGHUP, before)
