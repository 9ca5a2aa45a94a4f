"""The scripts' command line from start to end: files, segments, kills."""

import csv
import dataclasses
import itertools
import json
import re
import shlex
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    ENVS,
    ITERATIONS,
    Process,
    call,
    flags,
    path_of,
    run_differences,
    saved_iteration,
    saved_metrics,
    saved_state,
    small_config,
    small_run,
)
from matplotlib import image
from runs import CASES, FILES, OFTEN, assert_finished, directory_of, one, summary_of

import runner.devices.programs
import runner.report.results
import runner.rungs
import runner.training
from runner.files import checkpoint, store

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


# -- What a run leaves -------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_does(script, undisturbed):
    result, _, _ = undisturbed
    assert_finished(result)
    total, twice = f"{small_config(script).total_timesteps:,}", 2 * small_config(script).total_timesteps
    expected = [
        rf"{script} on {ENVS[script][0]}, seeds 0 to 1, \d+ x .+",
        rf"{total} env steps per seed in {ITERATIONS} iterations; [\d.]+ [KM]?i?B of state per seed, "
        r"at most [\d,]+ fit in [\d.]+ [GT]iB of memory",
        r"compiling \.\.\.",
        r"compiled in [\d.]+ s, [\d.]+ [KM]?i?B on each device",
        rf" +[\d,]+ / {total} steps  [\d,]+ steps/s  return -?(\d+\.\d|nan)(  greedy -?\d+\.\d)?  \d+ s left",
        rf" +{total} / {total} steps  [\d,]+ steps/s  return -?\d+\.\d  0 s left",
        r"greedy evaluation of 2 seeds, 2 whole episodes each:",
        r" +mean +IQM +95 % CI of the IQM +min +max",
        r" +-?\d+\.\d +-?\d+\.\d +-?\d+\.\d to -?\d+\.\d +-?\d+\.\d +-?\d+\.\d",
        rf"results in {(run := directory_of(script, 'undisturbed'))}",
        rf"  extend:      python {re.escape(path_of(script))} --resume {run} --total-timesteps {twice}",
        rf"  draw:        python -m runner.render {run}",
        rf"  export:      python -m runner.export {run} --out policy\.onnx",
        rf"  compare:     python -m runner.compare {run} OTHER_RUN",
    ]
    lines = iter(result.stdout.splitlines())
    for pattern in expected:
        assert any(re.fullmatch(pattern, line) for line in lines), f"{pattern} is missing in\n{result.stdout}"


@one
def test_output_into_a_pipe_has_no_control_characters(undisturbed):
    result, _, _ = undisturbed
    assert not re.findall(r"[^\n -~]", result.stdout)


def test_a_run_leaves_its_files_and_nothing_else(undisturbed):
    directory = undisturbed[2]
    assert {path.name for path in directory.iterdir()} == FILES
    assert saved_state(directory)[0] == ITERATIONS


def test_config_json_holds_all_that_is_needed_to_run_it_again(script, undisturbed):
    _, arguments, directory = undisturbed
    record = json.loads((directory / "config.json").read_text())
    config = dataclasses.asdict(small_config(script))
    assert record["config"] == json.loads(json.dumps(config))
    assert (record["algorithm"], record["script"]) == (script, path_of(script))
    assert (record["options"]["seed"], record["options"]["num_seeds"]) == (0, 2)
    assert shlex.split(record["command"]) == ["python", path_of(script), *arguments]
    for package in ("jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "safetensors", "numpy"):
        assert record["packages"][package] == version(package)
    assert re.fullmatch(r"\d+ x .+", record["device"])
    assert record["python"] == "{}.{}.{}".format(*sys.version_info)
    assert record["platform"]
    assert record["git_commit"] is None or re.fullmatch("[0-9a-f]{40}", record["git_commit"])


def test_metrics_have_a_row_per_seed_and_a_column_per_iteration(script, undisturbed):
    metrics = saved_metrics(undisturbed[2])
    config = small_config(script)
    env_steps = metrics.pop("env_steps")
    np.testing.assert_array_equal(metrics.pop("seed"), [0, 1])
    np.testing.assert_array_equal(env_steps, [config.env_steps(i + 1) for i in range(ITERATIONS)])
    np.testing.assert_array_equal(metrics.pop("is_healthy"), [True, True])
    assert env_steps[-1] == config.total_timesteps
    assert metrics.keys() >= {"episode_return", "episode_length", "num_episodes"}
    assert len(metrics) > 5
    evaluations = {name: metrics.pop(name) for name in ("eval_env_steps", "eval_episode_return", "eval_episode_length")}
    assert {name: x.shape for name, x in metrics.items()} == dict.fromkeys(metrics, (2, ITERATIONS))
    differing = [name for name, x in metrics.items() if not np.array_equal(x[0], x[1], equal_nan=True)]
    assert len(differing) >= len(metrics) // 2, f"both seeds are one, but for {differing}"
    multiples = -(-config.total_timesteps // 20) * np.arange(1, 20)
    expected = [0, *env_steps[np.searchsorted(env_steps, multiples)], env_steps[-1]]
    np.testing.assert_array_equal(evaluations["eval_env_steps"], expected)
    assert evaluations["eval_episode_return"].shape == evaluations["eval_episode_length"].shape == (2, 21)
    assert np.isfinite(evaluations["eval_episode_return"]).all()


def test_the_learning_curve_is_a_table_and_a_picture(script, undisturbed):
    directory = undisturbed[2]
    with (directory / "curve.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["return", "env_step", "mean", "iqm", "ci_low", "ci_high"]
    assert {row[0] for row in rows} == {"training", "evaluation"}
    for kind in ("training", "evaluation"):
        curve = np.array([row[1:] for row in rows if row[0] == kind], float)
        assert 1 <= len(curve) <= 100
        assert curve[-1, 0] == small_config(script).total_timesteps
        assert (np.diff(curve[:, 0]) > 0).all()
        assert np.isfinite(curve).all()
    assert curve[0, 0] == 0, "the evaluation begins before training"
    metrics = saved_metrics(directory)
    np.testing.assert_allclose(curve[:, 1], metrics["eval_episode_return"].mean(axis=0), rtol=1e-5)
    picture = image.imread(directory / "curve.png")
    assert picture.shape[0] > 300
    assert picture.shape[1] > 500
    assert picture[..., :3].std() > 0, "nothing is drawn"


def test_summary_json_agrees_with_the_table(script, undisturbed):
    result, _, directory = undisturbed
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["env"] == ENVS[script][0]
    assert summary["env_steps"] == small_config(script).total_timesteps
    assert summary["diverged_seeds"] == []
    for name in ("eval_episode_return", "eval_episode_length"):
        score = summary[name]
        assert len(score["per_seed"]) == 2
        assert score["mean"] == pytest.approx(np.mean(score["per_seed"]))
        assert (score["min"], score["max"]) == (min(score["per_seed"]), max(score["per_seed"]))
    lines = result.stdout.splitlines()
    (table,) = (after.split() for line, after in itertools.pairwise(lines) if line.split()[:2] == ["mean", "IQM"])
    score = summary["eval_episode_return"]
    assert [float(table[0]), float(table[-2]), float(table[-1])] == pytest.approx(
        [score["mean"], score["min"], score["max"]], abs=0.051
    )


def test_summary_json_says_how_fast_it_was_and_where(script, undisturbed):
    result, _, directory = undisturbed
    summary = json.loads((directory / "summary.json").read_text())
    record = json.loads((directory / "config.json").read_text())
    for name in ("device", "platform", "python", "packages"):
        assert summary[name] == record[name]
    timing, config = summary["timing"], small_config(script)
    assert timing["env_steps_trained"] == 2 * (config.env_steps(ITERATIONS) - config.env_steps(0))
    assert timing["env_steps_per_second"] == pytest.approx(
        timing["env_steps_trained"] / timing["training_seconds"], rel=0.05, abs=0.1
    )
    parts = [timing[f"{name}_seconds"] for name in ("compile", "training", "evaluation", "saving", "report")]
    assert min(parts) > 0
    assert sum(parts) < timing["wall_seconds"]
    (printed,) = re.findall(r"compiled in ([\d.]+) s", result.stdout)
    assert float(printed) == pytest.approx(timing["compile_seconds"], abs=0.051)


def test_the_time_of_saving_and_of_the_report_is_told_apart(monkeypatch):
    def slow(function, seconds):
        return lambda *args: time.sleep(seconds) or function(*args)

    monkeypatch.setattr(checkpoint, "save", slow(checkpoint.save, 0.2))
    monkeypatch.setattr(store, "write_metrics", slow(store.write_metrics, 0.1))
    monkeypatch.setattr(runner.report.results, "plot_curve", slow(runner.report.results.plot_curve, 0.6))
    assert_finished(call("ppo", *small_run("ppo", name="slow", eval_every="0")))
    timing = json.loads((directory_of("ppo", "slow") / "summary.json").read_text())["timing"]
    assert 0.2 + 2 * 0.1 <= timing["saving_seconds"] < timing["wall_seconds"] - timing["report_seconds"]
    assert timing["report_seconds"] >= 0.6


@one
def test_without_evaluation_there_is_no_table_but_all_files(script):
    result = call(script, *small_run(script, name="quick", eval_episodes=0))
    assert_finished(result)
    assert "evaluation" not in result.stdout
    assert "\ntraining return of 2 seeds over the last tenth:\n" in result.stdout
    assert {path.name for path in directory_of(script, "quick").iterdir()} == FILES
    assert "eval_episode_return" not in json.loads((directory_of(script, "quick") / "summary.json").read_text())
    assert not any(name.startswith("eval") for name in saved_metrics(directory_of(script, "quick")))


# -- Segments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "env"), [CASES[0], CASES[2]])
def test_segments_of_any_length_give_the_same_numbers(script, env, monkeypatch):
    lengths = []

    def compile_segment(*args):
        segment = compiled(*args)

        def watched(settings, state, start, stop):
            lengths.append(int(stop - start))
            return segment(settings, state, start, stop)

        watched.memory_analysis = segment.memory_analysis
        return watched

    compiled = runner.devices.programs.compile_segment
    monkeypatch.setattr(runner.devices.programs, "compile_segment", compile_segment)
    directories = []
    for seconds, expected in ((1e9, [1, ITERATIONS - 1]), (0.01, None), (0.0, [1] * ITERATIONS)):
        lengths.clear()
        out = f"segments-{seconds}"
        monkeypatch.setattr(runner.training, "SECONDS_PER_SEGMENT", seconds)
        arguments = small_run(script, env=env, out=out, eval_episodes=0, checkpoint_every=1e9)
        assert_finished(call(script, *arguments))
        assert lengths == expected or (expected is None and sum(lengths) == ITERATIONS), lengths
        (directory,) = Path(out, script, env).iterdir()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", directory.name), "the default name"
        directories.append(directory)
    for directory in directories[1:]:
        assert run_differences(directories[0], directory) == []


# -- Kills -------------------------------------------------------------------------------------------------------------


@one
def test_a_run_killed_again_and_again_ends_as_if_undisturbed(script, undisturbed, folder):
    reference = undisturbed[2]
    directory = folder / directory_of(script, "killed")
    moments = np.random.default_rng(0)
    arguments = small_run(script, name="killed")
    for iteration in (0, 19):
        with Process(path_of(script), *arguments, *OFTEN, cwd=folder) as process:
            if iteration:
                process.wait_for_checkpoint(directory, iteration)
            else:
                process.wait_for_text("of state")
            time.sleep(moments.uniform(0, 0.05))
            process.send(signal.SIGKILL)
            assert process.finish().status == -signal.SIGKILL, "it ended before it could be killed"
        assert (directory / "training.lock").exists(), "the next command takes it over"
        assert iteration <= saved_iteration(directory) < ITERATIONS
        arguments = ["--resume", str(directory)]
    result = call(script, *arguments, *flags(eval_episodes=2))
    assert_finished(result)
    assert f"resumed {directory} at " in result.stdout
    assert {path.name for path in directory.iterdir()} == FILES, "litter is left"
    assert run_differences(directory, reference) == []
    assert summary_of(directory) == summary_of(reference)


@pytest.mark.parametrize("function", ["write_record", "print_header", "divide_trials"])
def test_the_record_is_there_before_the_run_says_that_it_begins(function, monkeypatch):
    """A run that is killed after its header can be resumed."""

    def dies(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.rungs, function, dies)
    result = call("ppo", *small_run("ppo", name="killed"))
    assert result.status != 0
    directory = directory_of("ppo", "killed")
    assert (directory / "config.json").exists() == (function != "write_record")
    assert (result.stdout != "") == (function == "divide_trials")
