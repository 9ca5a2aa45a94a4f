"""The scripts' command line from start to end: files, segments, kills, resuming, signals, bad input, divergence."""

import contextlib
import csv
import dataclasses
import importlib
import io
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from gymnax.environments.classic_control.cartpole import CartPole
from gymnax.environments.environment import Environment, EnvParams, EnvState
from helpers import (
    ENVS,
    ITERATIONS,
    SCRIPTS,
    Process,
    call,
    capture,
    differences,
    execute,
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

import runner.folder.claim
import runner.folder.record
import runner.machine.programs
import runner.main
import runner.tell.report
import runner.training
from common.buffer import read
from runner.ask.options import Options
from runner.experiment import Experiment
from runner.folder import checkpoint
from runner.folder import files as run_folder
from runner.folder.claim import claimed_folder
from runner.machine.devices import compile_init, make_placement
from runner.tell.progress import print_header

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


pytestmark = pytest.mark.usefixtures("compilations", "folder")


@pytest.fixture(scope="module", params=["ppo", "dqn"])
def script(request):
    """A script of each kind."""
    return request.param


@pytest.fixture(scope="module")
def undisturbed(script, compilations, tmp_path_factory):
    """What a run says that nothing disturbed, its flags, and its folder."""
    cwd = tmp_path_factory.mktemp(script)
    arguments = small_run(script, name="undisturbed")
    result = execute(path_of(script), *arguments, cwd=cwd)
    assert result.status == 0, result
    return result, arguments, cwd / "runs" / script / ENVS[script][0] / "undisturbed"


@pytest.fixture(scope="module")
def undisturbed_ppo(compilations, tmp_path_factory):
    """The folder of a run of ppo.py that was made in this process."""
    out = tmp_path_factory.mktemp("ppo")
    assert_finished(call("ppo", *small_run("ppo", name="undisturbed", out=str(out))))
    return out / "ppo" / "CartPole-v1" / "undisturbed"


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A copy of the folder of a finished run, to be resumed or damaged."""
    return shutil.copytree(undisturbed[2], tmp_path / "finished")


def directory_of(script, name, env=None):
    return Path("runs", script, env or ENVS[script][0], name)


def summary_of(directory):
    """What summary.json says, without the time that it took."""
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


# -- What a run leaves -------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_does(script, undisturbed):
    result, _, _ = undisturbed
    assert_finished(result)
    total, twice = f"{small_config(script).total_timesteps:,}", 2 * small_config(script).total_timesteps
    expected = [
        rf"{script} on {ENVS[script][0]}, seeds 0 to 1, \d+ x .+",
        rf"{total} env steps per seed in {ITERATIONS} iterations; [\d.]+ [KM]?i?B of state per lane, "
        r"at most [\d,]+ fit in [\d.]+ [GT]iB of memory",
        r"compiling \.\.\.",
        r"compiled in [\d.]+ s, [\d.]+ [KM]?i?B on each device",
        rf" +[\d,]+ / {total} steps  [\d,]+ steps/s  return -?(\d+\.\d|nan)(  greedy -?\d+\.\d)?  \d+ s left",
        rf" +{total} / {total} steps  [\d,]+ steps/s  return -?\d+\.\d  0 s left",
        r"greedy evaluation of 2 seeds, 2 whole episodes each:",
        r" +mean +IQM +95 % CI of the IQM +min +max",
        r" +-?\d+\.\d +-?\d+\.\d +-?\d+\.\d to -?\d+\.\d +-?\d+\.\d +-?\d+\.\d",
        rf"results in {(run := directory_of(script, 'undisturbed'))}",
        rf"  extend:      python {script}.py --resume {run} --total-timesteps {twice}",
        rf"  draw:        python -m runner.render {run}",
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
    assert env_steps[-1] == config.total_timesteps
    assert metrics.keys() >= {"episode_return", "episode_length", "num_episodes"}
    assert len(metrics) > 5
    evaluations = {name: metrics.pop(name) for name in ("eval_env_steps", "eval_episode_return", "eval_episode_length")}
    assert {name: x.shape for name, x in metrics.items()} == dict.fromkeys(metrics, (2, ITERATIONS))
    differing = [name for name, x in metrics.items() if not np.array_equal(x[0], x[1], equal_nan=True)]
    assert len(differing) >= len(metrics) // 2, f"both seeds are one, but for {differing}"
    number = min(20, 16 * config.total_timesteps // (2 * 500))  # of two episodes of at most 500 steps
    multiples = -(-config.total_timesteps // number) * np.arange(1, number)
    expected = [0, *env_steps[np.searchsorted(env_steps, multiples)], env_steps[-1]]
    np.testing.assert_array_equal(evaluations["eval_env_steps"], expected)
    assert evaluations["eval_episode_return"].shape == evaluations["eval_episode_length"].shape == (2, number + 1)
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

    monkeypatch.setattr(checkpoint, "save", slow(checkpoint.save, 0.7))
    monkeypatch.setattr(run_folder, "write_metrics", slow(run_folder.write_metrics, 0.4))
    monkeypatch.setattr(runner.tell.report, "plot_curve", slow(runner.tell.report.plot_curve, 2.0))
    assert_finished(call("ppo", *small_run("ppo", name="slow", eval_every="0")))
    timing = json.loads((directory_of("ppo", "slow") / "summary.json").read_text())["timing"]
    assert 0.7 + 2 * 0.4 <= timing["saving_seconds"] < timing["wall_seconds"] - timing["report_seconds"]
    assert timing["report_seconds"] >= 2.0


@one
def test_without_evaluation_there_is_no_table_but_all_files(script):
    result = call(script, *small_run(script, name="quick", eval_episodes=0))
    assert_finished(result)
    assert "evaluation" not in result.stdout
    assert {path.name for path in directory_of(script, "quick").iterdir()} == FILES
    assert "eval_episode_return" not in json.loads((directory_of(script, "quick") / "summary.json").read_text())
    assert not any(name.startswith("eval") for name in saved_metrics(directory_of(script, "quick")))


def test_many_lanes_begin(folder):
    """Programs with many lanes have stood still for ever, for LAPACK calls in the initialisation."""
    arguments = small_run("ppo", 1, num_seeds=128, eval_episodes=0, name="many", hidden_sizes=(64, 64))
    assert_finished(execute(path_of("ppo"), *arguments, cwd=folder))


# -- Segments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "env"), [CASES[0], *CASES[2:4]])
def test_segments_of_any_length_give_the_same_numbers(script, env, monkeypatch):
    lengths = []

    def compile_segment(*args):
        segment = compiled(*args)

        def watched(settings, state, start, stop):
            lengths.append(int(stop - start))
            return segment(settings, state, start, stop)

        watched.memory_analysis = segment.memory_analysis
        return watched

    compiled = runner.machine.programs.compile_segment
    monkeypatch.setattr(runner.machine.programs, "compile_segment", compile_segment)
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


def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(script, undisturbed, folder):
    reference = undisturbed[2]
    directory = folder / directory_of(script, "killed")
    moments = np.random.default_rng(0)
    arguments = small_run(script, name="killed")
    for iteration in (0, 5, 33) if script == "ppo" else (0, 19):
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


@pytest.mark.parametrize("function", ["write_record", "print_header", "divide_lanes"])
def test_the_record_is_there_before_the_run_says_that_it_begins(function, monkeypatch):
    """A run that is killed after its header can be resumed."""

    def dies(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.training, function, dies)
    result = call("ppo", *small_run("ppo", name="killed"))
    assert result.status != 0
    directory = directory_of("ppo", "killed")
    assert (directory / "config.json").exists() == (function != "write_record")
    assert (result.stdout != "") == (function == "divide_lanes")


# -- Resuming ----------------------------------------------------------------------------------------------------------

# What makes the first iterations of a run independent of its length.
UNSCHEDULED = {
    "ppo": {"anneal_learning_rate": False},
    "dqn": {"anneal_learning_rate": False, "epsilon_start": 0.05},
    "sac": {},
    "td3": {},
}


def test_a_finished_run_can_be_lengthened(script):
    changes = {**UNSCHEDULED[script], "eval_episodes": 0}
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


def test_resuming_a_finished_run_evaluates_again_and_changes_nothing(script, undisturbed, finished):
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
    algorithm, lanes = importlib.import_module(script).make(small_config(script)), make_placement(2, 99)
    init = compile_init(lambda settings: algorithm, lanes, {})
    state = init({}, lanes.place(jax.vmap(jax.random.key)(np.arange(2))))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    assert [jax.tree_util.keystr(path) for path, x in leaves if getattr(x, "weak_type", False)] == []


@one
def test_settings_may_be_repeated_when_resuming(script, undisturbed, finished):
    arguments = undisturbed[1]
    assert_finished(call(script, *arguments, "--resume", str(finished)))
    assert run_differences(finished, undisturbed[2]) == []


# -- Signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_its_segment_with_all_results_so_far(script, undisturbed, monkeypatch, number):
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
    is_reached = whole["eval_env_steps"] <= expected["env_steps"][-1]
    expected |= {name: x[..., is_reached] for name, x in whole.items() if name.startswith("eval_")}
    assert differences(saved_metrics(directory), expected) == []
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["env_steps"] == small_config(script).env_steps(5)

    monkeypatch.setattr(runner.training, "append_metrics", append)
    assert_finished(call(script, "--resume", str(directory), *flags(eval_episodes=2)))
    assert run_differences(directory, undisturbed[2]) == []


OPTIONS = {"eval_episodes": 3, "checkpoint_every": 0.0, "checkpoint_buffer": False, "devices": 1}


def test_a_resumed_run_uses_the_options_that_it_was_started_with(monkeypatch):
    used = {}

    def train(run, part, progress):
        used.update({name: getattr(run.experiment.options, name) for name in OPTIONS})
        return trained(run, part, progress)

    trained = runner.training.Run.train
    assert_finished(call("ppo", *small_run("ppo", name="begun", **OPTIONS)))
    monkeypatch.setattr(runner.training.Run, "train", train)
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


@pytest.mark.parametrize("script", ["dqn", "sac"])
def test_no_window_leads_from_a_buffer_that_is_filled_again_into_the_resumed_episode(script, monkeypatch):
    started = []

    def train(run, part, progress):
        started.append(jax.tree.map(np.array, progress.state.buffer))
        return trained(run, part, progress)

    trained = runner.training.Run.train
    config = small_config(script)
    assert_finished(call(script, *small_run(script, 2, name="run", n_step=3, checkpoint_buffer=False)))
    monkeypatch.setattr(runner.training.Run, "train", train)
    result = call(script, "--resume", str(directory_of(script, "run")), *flags(total_timesteps=config.env_steps(3)))
    assert_finished(result)
    assert "it is filled again with random transitions" in result.stdout
    (buffer,) = started
    rows = np.arange(config.learning_starts)
    truncated = jax.vmap(lambda buffer: read(buffer, rows).truncated)(buffer)
    assert (np.asarray(buffer.count) == config.learning_starts).all()
    assert np.asarray(truncated)[:, -config.num_envs :].all()
    assert not np.asarray(truncated)[:, : -config.num_envs].all()


@pytest.mark.parametrize(("precision", "level"), [(None, "HIGHEST"), ("tf32", "HIGH"), ("bfloat16", "DEFAULT")])
def test_matrix_products_have_the_precision_of_the_run(precision, level, monkeypatch):
    levels, expected = set(), {(level, level), ("HIGHEST", "HIGHEST")}  # orthogonal initialisation has the highest

    def compile(lowered, *args, **kwargs):
        levels.update(re.findall(r"dot_general.*precision = \[(\w+), (\w+)\]", lowered.as_text()))
        return compiled(lowered, *args, **kwargs)

    compiled = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    given = {} if precision is None else {"matmul_precision": precision}
    try:
        assert_finished(call("ppo", *small_run("ppo", 2, name="run", **given)))
        assert levels == expected
        levels.clear()
        assert_finished(call("ppo", "--resume", str(directory_of("ppo", "run")), *flags(total_timesteps=1280)))
        assert levels == {(level, level)}, "a resumed run keeps it"
    finally:
        jax.config.update("jax_default_matmul_precision", "float32")


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
def test_a_second_ctrl_c_quits_at_once_also_inside_of_a_long_segment(script, folder):
    endless = {"ppo": {"num_epochs": 1_000_000}, "dqn": {"steps_per_iteration": 16_000_000}}[script]
    arguments = small_run(script, 2, hidden_sizes=(64, 64), name="long", **endless)
    with Process(path_of(script), *arguments, cwd=folder) as process:
        process.wait_for_text("compiled in")
        time.sleep(0.5)  # now it is inside of its segment of minutes
        process.send(signal.SIGINT)
        process.wait_for_text("again quits at once")
        time.sleep(0.5)
        assert process.process.poll() is None, "the first Ctrl-C did not wait for the end of the segment"
        process.send(signal.SIGINT)
        sent = time.perf_counter()
        result = process.finish()
        seconds = time.perf_counter() - sent
    assert result.status == 130
    assert seconds < 5
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@one
def test_a_signal_during_compilation(script, undisturbed, monkeypatch, number):
    def compile_segment(*args):
        signal.raise_signal(number)
        return compiled(*args)

    compiled = runner.machine.programs.compile_segment
    monkeypatch.setattr(runner.machine.programs, "compile_segment", compile_segment)
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP, and so would the run
    try:
        result = call(script, *small_run(script, name="early"))
    finally:
        signal.signal(number, before)
    directory = directory_of(script, "early")
    assert result.status == 128 + number, result
    assert "Traceback" not in result.stderr
    assert f"--resume {directory}\n" in result.stderr

    monkeypatch.setattr(runner.machine.programs, "compile_segment", compiled)
    assert_finished(call(script, "--resume", str(directory), *flags(eval_episodes=2)))
    assert run_differences(directory, undisturbed[2]) == []


@one
def test_a_closed_terminal_leaves_a_run_that_ignores_it(script, monkeypatch):
    """As under nohup."""

    def compile_segment(*args):
        signal.raise_signal(signal.SIGHUP)
        return compiled(*args)

    compiled = runner.machine.programs.compile_segment
    monkeypatch.setattr(runner.machine.programs, "compile_segment", compile_segment)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert_finished(call(script, *small_run(script, name="alone")))
    finally:
        signal.signal(signal.SIGHUP, before)


# -- Bad input ---------------------------------------------------------------------------------------------------------

# What is wrong, flags, what the message must name; of all scripts, and of some.
BAD = [
    ("an unknown environment", {"env": "CartPol-v1"}, ["CartPol-v1", "CartPole-v1"]),
    ("less than an iteration", {"total_timesteps": 1}, ["total_timesteps"]),
    ("more than the counters hold", {"total_timesteps": 2**31}, ["total_timesteps"]),
    ("fewer than no environments", {"num_envs": -1}, ["num_envs", -1]),
    ("no environments", {"num_envs": 0}, ["num_envs"]),
    ("a layer of nothing", {"hidden_sizes": (0,)}, ["hidden_sizes"]),
]
_MANY = {"num_envs": 2**30, "num_steps": 1, "total_timesteps": 2**30, "num_seeds": 64}
BAD_OF = {
    "ppo": [
        ("minibatches that do not divide", {"num_minibatches": 3}, ["num_minibatches", 3, 32]),
        ("more than the memory holds", _MANY, ["--num-envs", "memory"]),
        ("no minibatches", {"num_minibatches": 0}, ["num_minibatches"]),
        ("no steps", {"num_steps": 0}, ["num_steps"]),
        ("no epochs", {"num_epochs": 0}, ["num_epochs"]),
    ],
    "dqn": [("more than the memory holds", {"buffer_size": 2 * 10**9, "num_seeds": 64}, ["--buffer-size", "memory"])],
    "sac": [("more than the memory holds", {"buffer_size": 2 * 10**9, "num_seeds": 64}, ["--buffer-size", "memory"])],
    "td3": [("more than the memory holds", {"buffer_size": 2 * 10**9, "num_seeds": 64}, ["--buffer-size", "memory"])],
}


@pytest.mark.parametrize(
    ("script", "changes", "words"),
    [
        pytest.param(script, changes, words, marks=marks, id=f"{script}-{name}")
        for script in SCRIPTS
        for name, changes, words, *marks in BAD + BAD_OF[script]
    ],
)
def test_bad_settings(script, changes, words, folder):
    assert_refused(call(script, *small_run(script), *flags(**changes)), *words)
    assert contents(folder) == {}, "something was left"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rate", "nan"], "learning_rate must be finite as a float32 (at most 3.4e38), not nan"),
        (["--learning-rate", "1e39"], "learning_rate must be finite as a float32 (at most 3.4e38), not 1e+39"),
        (["--learning-rate=-1e-3"], "learning_rate must be at least 0, not -0.001"),
        (["--gamma", "1.5"], "gamma must be between 0 and 1, not 1.5"),
        (["--clip-eps=-0.2"], "clip_eps must be above 0, not -0.2"),
        (["--sweep", "reward-scale=1,2", "--normalize-reward"], "reward_scale must be 1 if normalize_reward, which"),
        (["--sweep", "gamma=0.9,1.5"], "--sweep gamma must be between 0 and 1, not 1.5"),
        (["--sweep", "gamma=0.9,0.95", "--gamma", "0.5"], "--gamma is also swept"),
        (["--sweep", "learning-rate=0.1,0.2", "--learning_rate=0.5"], "--learning-rate is also swept"),
        (["--checkpoint-every", "nan"], "checkpoint_every must be a number of seconds, at least 0, not nan"),
        (["--checkpoint-every", "inf"], "checkpoint_every must be a number of seconds, at least 0, not inf"),
        (["--num-seeds", "4000000000"], "4,000,000,000 lanes (seeds x settings) record about"),
        (["--num-seeds", "100000000"], "100,000,000 lanes (seeds x settings) record about"),
        (["--sweep", "gamma=lin:0.9:0.99:1000000000"], "2,000,000,000 lanes (seeds x settings) record about"),
        (["--sweep", "gamma=lin:0.9:0.99", "--sweep-samples", "1000000000"], "2,000,000,000 lanes (seeds x"),
        (["--eval-every", "-1"], "eval_every must be auto or a number of env steps, at least 0, not -1"),
        (["--eval-sampled", "--eval-episodes", "0"], "--eval-sampled has no effect with eval_episodes = 0"),
        (["--eval-every", "often"], "eval_every must be auto or a number of env steps, at least 0, not often"),
        (["--eval-episodes", "1000000000"], "eval_episodes = 1,000,000,000, but at most "),
        (["--num-envs", "5000000000", "--total-timesteps", "1e9"], "num_envs = 5000000000 does not fit an int32"),
        (["--coordinator", "foo"], "coordinator must be HOST:PORT"),
        (["--coordinator", "foo:bar"], "coordinator must be HOST:PORT"),
        (["--coordinator", "foo:99999"], "coordinator must be HOST:PORT"),
        (["--coordinator", ":1234"], "coordinator must be HOST:PORT"),
        (["--name", ".."], "name must be the name of one folder"),
        (["--name", "/abs/path"], "name must be the name of one folder"),
        (["--name", "a/b"], "name must be the name of one folder"),
        (["--name", "a\nb"], "name must be the name of one folder"),
        (["--name", "   "], "name must not begin or end with a space, as '   ' does"),
        (["--name", "a "], "name must not begin or end with a space, as 'a ' does"),
        (["--name", "x" * 300], "cannot write to"),
    ],
    ids=lambda x: " ".join(x)[:60] if isinstance(x, list) else "",
)  # fmt: skip
def test_input_that_is_refused_in_one_line(words, message, folder):
    assert_refused(call("ppo", *small_run("ppo"), *words), message)
    assert contents(folder).keys() <= {folder / "runs", folder / "runs/ppo", folder / "runs/ppo/CartPole-v1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--buffer-size", "100000000000"], "buffer_size = 100000000000 does not fit an int32"),
        (["--buffer-size", "2000000000"], "the state of 1 lane takes "),
        (["--epsilon-end", "2"], "epsilon_end must be between 0 and 1, not 2.0"),
        (["--tau", "2"], "tau must be above 0 and at most 1, not 2.0"),
        (
            ["--sweep", "epsilon-end=0.1,0.3", "--epsilon-start", "0.2"],
            "epsilon_start = 0.2 must be at least epsilon_end",
        ),
    ],
)
def test_input_that_dqn_refuses_in_one_line(words, message, folder):
    assert_refused(call("dqn", *small_run("dqn"), *words), message)
    assert contents(folder) == {}


@pytest.mark.parametrize("text", ["1280", "1_280", "1.28e3", "128e1"])
def test_integers_may_be_written_as_people_write_them(text):
    result = call("ppo", *small_run("ppo", eval_episodes=0), "--total-timesteps", text, "--name", "x")
    assert_finished(result)
    assert json.loads((directory_of("ppo", "x") / "config.json").read_text())["config"]["total_timesteps"] == 1280


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--num-envs", "many"], "--num-envs"),
        (["--num-envs", "1e99999999"], "--num-envs"),
        (["--hidden-sizes", "8", "8.5"], "--hidden-sizes"),
        (["--num-seeds", "2.5"], "--num-seeds"),
        (["--gamma", "high"], "--gamma"),
        (["--activation", "step"], "--activation"),
        (["--no-such-flag", "1"], "--no-such-flag"),
        (["--num-seeds", "0"], "num_seeds"),
        (["--seed", "-1"], "seed"),
        (["--seed", str(2**32 - 1)], "seed"),
        (["--checkpoint-every", "-1"], "checkpoint_every"),
    ],
)
@one
def test_flags_that_cannot_be_read(script, words, name, folder):
    result = call(script, *small_run(script), *words)
    assert result.status == 2
    assert name in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert contents(folder) == {}, "something was left"


@one
def test_a_flag_without_its_value(script, folder):
    result = call(script, *small_run(script), "--env")
    assert result.status == 2
    assert "--env" in result.stderr
    assert "Traceback" not in result.stderr
    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("where", "mistake", "message"),
    [
        ("init", lambda: jnp.where(jnp.ones(3) > 0, jnp.ones(4), 0.0), "ValueError: Incompatible shapes"),
        ("step", lambda: jnp.where(jnp.ones(3) > 0, jnp.ones(4), 0.0), "ValueError: Incompatible shapes"),
        ("step", lambda: jnp.ones(3) + "1", "TypeError: "),
    ],
)
def test_a_mistake_in_a_changed_script_keeps_its_traceback_and_leaves_no_folder(
    where, mistake, message, monkeypatch, folder
):
    import ppo

    def make(config):
        def mistaken(*args):
            return mistake()

        return made(config)._replace(**{where: mistaken})

    made = ppo.make
    monkeypatch.setattr(ppo, "make", make)
    result = call("ppo", *small_run("ppo", name="mistaken"))
    assert result.status == 1
    assert "in mistaken" in result.stderr
    assert message in result.stderr
    assert not (folder / directory_of("ppo", "mistaken")).exists(), "the same --name could not be used again"


@one
def test_bad_input_in_a_process_of_its_own(script, folder):
    result = execute(path_of(script), "--env", "CartPol-v1", cwd=folder)
    assert_refused(result, "CartPole-v1")
    assert result.stdout == ""
    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (jax.disable_jit, "a run consists of compiled programs, which JAX_DISABLE_JIT forbids"),
        (lambda: jax.debug_nans(True), "episode_return is NaN where no episode ended, and JAX_DEBUG_NANS would stop"),
    ],
)
def test_modes_of_jax_that_a_run_cannot_have(mode, message, folder):
    with mode():
        result = call("ppo", *small_run("ppo"))
    assert_refused(result, message)
    assert contents(folder) == {}


@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
@one
def test_a_platform_that_is_not_here(script, platform, folder):
    if platform == "cuda" and jax.default_backend() == "gpu":
        pytest.skip("it is here")
    result = execute(path_of(script), cwd=folder, JAX_PLATFORMS=platform)
    assert_refused(result, f"JAX_PLATFORMS={platform}: no such device here")
    assert contents(folder) == {}


@pytest.mark.parametrize("place", ["runs", "runs/{script}", "runs/{script}/{env}", "runs/{script}/{env}/taken"])
@one
def test_results_that_have_no_place(script, place, folder):
    path = folder / place.format(script=script, env=ENVS[script][0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")
    before = contents(folder)
    assert_refused(call(script, *small_run(script, name="taken")), directory_of(script, "taken"), "--out")
    assert contents(folder) == before


@one
def test_a_name_that_is_taken(script, undisturbed, monkeypatch):
    _, arguments, directory = undisturbed
    before = contents(directory)
    monkeypatch.chdir(directory.parents[3])
    assert_refused(call(script, *arguments), directory_of(script, "undisturbed"), "--name", "--resume")
    assert contents(directory) == before


@one
def test_two_runs_may_start_in_the_same_second(script, folder, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(runner.folder.claim, "datetime", Clock)
    for _ in range(2):
        assert_finished(call(script, *small_run(script, eval_episodes=0)))
    assert len(list(Path("runs", script, ENVS[script][0]).iterdir())) == 2


@one
def test_a_run_that_is_not_there(script, folder):
    assert_refused(call(script, "--resume", "nowhere"), "nowhere")
    (folder / "empty").mkdir()
    assert_refused(call(script, "--resume", "empty"), "empty")
    (folder / "file").write_text("")
    assert_refused(call(script, "--resume", "file"), "no run in file")
    for words in (["--resume", ""], ["--resume="]):
        assert_refused(call(script, *small_run(script), *words), "resume must be the folder of a run, not empty")
    assert contents(folder).keys() == {folder / "empty", folder / "file"}


@one
def test_a_run_that_is_being_trained_is_not_resumed(script, undisturbed, finished):
    with claimed_folder(script, ENVS[script][0], Options(resume=str(finished))):
        before = contents(finished)
        result = call(script, "--resume", str(finished))
        assert_refused(
            result, f"{finished} is being trained by process {os.getpid()} since 20", f"(on {platform.node()})"
        )
        assert contents(finished) == before
    assert_finished(call(script, "--resume", str(finished), *flags(eval_episodes=2)))
    assert {path.name for path in finished.iterdir()} == FILES


@one
def test_a_name_under_which_a_run_begins_is_taken(script, folder):
    with claimed_folder(script, ENVS[script][0], Options(name="same")) as directory:
        assert_refused(call(script, *small_run(script, name="same")), f"{directory} is being trained by process ")
        assert [path.name for path in directory.iterdir()] == ["training.lock"]


CHANGED = {
    "num_seeds": 3,
    "seed": 1,
    "gamma": 0.5,
    "hidden_sizes": (8, 8),
    "normalize_obs": False,
    "env": "MountainCar-v0",
    "learning_rate": 0.125,
    "total_timesteps": 1,
    "matmul_precision": "tf32",
    "eval_sampled": True,
}


@pytest.mark.parametrize("field", CHANGED)
@one
def test_resuming_with_other_settings(script, field, finished):
    options = {"num_seeds": 2, "seed": 0, "matmul_precision": "float32", "eval_sampled": False}
    settings, new = vars(small_config(script)) | options, CHANGED[field]
    if field == "learning_rate":  # SAC and TD3 have two
        field = next(name for name in settings if name.endswith("learning_rate"))
    old = settings[field]
    before = contents(finished)
    result = call(script, "--resume", str(finished), *flags(**{field: new}))
    assert_refused(result, finished, field, old, new)
    assert contents(finished) == before


@one
def test_resuming_a_run_of_another_algorithm(script, finished):
    other = "td3" if script == "dqn" else "dqn"
    before = contents(finished)
    assert_refused(call(other, "--resume", str(finished)), finished, script, other)
    assert contents(finished) == before


# -- Damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "cut", "empty", "noise"])
@one
def test_damaged_metrics(script, how, finished):
    damage(finished / "metrics.npz", how)
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), finished / "metrics.npz")
    assert contents(finished) == before


def test_metrics_that_end_before_the_checkpoint(script, finished):
    metrics = saved_metrics(finished)
    np.savez(finished / "metrics.npz", **{name: x[..., :-1] for name, x in metrics.items()})
    assert_refused(call(script, "--resume", str(finished)), finished / "metrics.npz", ITERATIONS)


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"algorithm": "pp',
        "{}",
        "[]",
        b"\xff\xfe{",
    ],
)
def test_damaged_config(script, content, finished):
    (finished / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), finished / "config.json")
    assert contents(finished) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("config"),
        lambda record: record.update(config=[]),
        lambda record: record["config"].update(gamma="x"),
        lambda record: record["config"].update(gamma=2.0),
        lambda record: record["config"].update(momentum=0.9),
        lambda record: record["options"].update(seed=None),
        lambda record: record["options"].update(num_seeds="x"),
        lambda record: record["options"].update(num_seeds=3),
        lambda record: record["options"].update(num_seeds=1),
        lambda record: record["options"].update(sweep=["gamma=0.5,0.9"]),
        lambda record: record.update(parts=None),
        lambda record: record.update(parts=[[0, 1]]),
        lambda record: record.update(parts=[[0, 0], [0, 2]]),
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


@pytest.mark.parametrize("how", ["cut", "empty", "noise", "flipped"])
@one
def test_a_damaged_checkpoint(script, how, finished):
    damage(finished / run_folder.CHECKPOINT, how)
    before = contents(finished)
    assert_refused(call(script, "--resume", str(finished)), finished / run_folder.CHECKPOINT)
    assert contents(finished) == before


@one
def test_a_damaged_checkpoint_in_a_process_of_its_own(script, finished, tmp_path):
    damage(finished / run_folder.CHECKPOINT, "flipped")
    assert_refused(execute(path_of(script), "--resume", str(finished), cwd=tmp_path), finished / run_folder.CHECKPOINT)


def damage(path, how):
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        last = len(content) - 9
        path.write_bytes(content[:last] + bytes([content[last] ^ 4]) + content[last + 1 :])
    else:
        path.write_bytes(np.random.default_rng(0).bytes(len(content)))


# -- Divergence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "env"), CASES[1:3])
def test_seeds_that_diverge_are_named(script, env):
    result = call(script, *small_run(script, env=env, seed=5, name="wild", learning_rate=1e30))
    assert_finished(result)
    assert "): seed 5, seed 6\n" in result.stdout
    said = re.findall(r"diverged by [\d,]+ env steps \(a metric is not finite\): (.+)\n", result.stdout)
    assert sorted(", ".join(said).split(", ")) == ["seed 5", "seed 6"]
    assert re.search(r" / [\d,]+ steps  .*  2 of 2 lanes diverged  0 s left\n", result.stdout)
    directory = directory_of(script, "wild", env)
    summary = json.loads((directory / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["diverged_seeds"] == [5, 6]
    assert {path.name for path in directory.iterdir()} == FILES


@one
def test_a_lane_that_diverges_leaves_the_others_as_they_were(script, monkeypatch):
    def compile_init(*args):
        def poisoned(settings, keys):
            state = init(settings, keys)
            return state.replace(params=jax.tree.map(lambda x: x.at[1].set(jnp.nan), state.params))

        init = compiled(*args)
        return poisoned

    compiled = runner.machine.programs.compile_init
    arguments = small_run(script, 12, num_seeds=3, eval_episodes=0)
    assert_finished(call(script, *arguments, "--name", "healthy"))
    monkeypatch.setattr(runner.machine.programs, "compile_init", compile_init)
    assert_finished(call(script, *arguments, "--name", "ill"))

    healthy, ill = directory_of(script, "healthy"), directory_of(script, "ill")
    assert json.loads((healthy / "summary.json").read_text())["diverged_seeds"] == []
    assert json.loads((ill / "summary.json").read_text())["diverged_seeds"] == [1]
    (_, state), (_, ill_state) = saved_state(healthy), saved_state(ill)
    for lane, is_equal in ((0, True), (1, False), (2, True)):
        a, b = ({name: x[lane] for name, x in leaves.items()} for leaves in (state, ill_state))
        assert (differences(a, b) == []) == is_equal, f"lane {lane}"
        metrics = [saved_metrics(directory) for directory in (healthy, ill)]
        a, b = ({name: x[lane] for name, x in m.items() if name != "env_steps"} for m in metrics)
        assert (differences(a, b) == []) == is_equal, f"lane {lane}"


# -- Scalars of an environment -----------------------------------------------------------------------------------------


class Told(CartPole):
    """CartPole that tells a scalar of this name: NaN, or infinite, where an episode ends on the left."""

    def __init__(self, scalar, otherwise=jnp.nan):
        super().__init__()
        self.scalar, self.otherwise = scalar, otherwise

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, _ = super().step_env(key, state, action, params)
        return obs, state, reward, terminated, {self.scalar: jnp.where(state.x > 0, state.time, self.otherwise)}


@pytest.mark.parametrize("otherwise", [jnp.nan, jnp.inf])
def test_a_scalar_of_the_environment_that_is_not_finite_is_no_divergence(otherwise, monkeypatch):
    """What is logged and drawn skips it."""
    import wandb

    logged, env = [], f"Probe-Told-{otherwise}"
    monkeypatch.setattr(wandb, "init", lambda **_: FakeRun(logged))
    gymnax.register(env, lambda: Told("steps", otherwise))
    arguments = small_run("ppo", env=env, name="told", wandb="offline", eval_episodes=0, num_seeds=3)
    result = call("ppo", *arguments, "--sweep", "gamma=0.9,0.99")
    assert_finished(result)
    assert "diverged" not in result.stdout
    directory = directory_of("ppo", "told", env)
    summary = json.loads((directory / "summary.json").read_text())
    assert [setting["diverged_seeds"] for setting in summary["settings"]] == [[], []]
    assert (directory / "metrics.png").exists()
    metrics = saved_metrics(directory)
    steps = np.where(np.isfinite(metrics["steps"]), metrics["steps"], np.nan)
    assert (np.isnan(steps) & (metrics["num_episodes"] > 0)).any()
    assert all(values["is_healthy"] == 1 for values in logged)
    known = [column[np.isfinite(column)] for setting in np.split(steps, 2) for column in setting.T]
    means = [x.mean() for x in known if len(x)]  # the IQM of up to three seeds
    assert sorted(values["steps"] for values in logged if "steps" in values) == pytest.approx(sorted(means))


@pytest.mark.parametrize("name", ["entropy", "policy_loss", "seed", "eval_env_steps", "sweep_gamma", "file"])
def test_a_scalar_with_the_name_of_another_metric_is_refused(name, folder):
    env = f"Probe-Told-{name}"
    gymnax.register(env, lambda: Told(name))
    assert_refused(call("ppo", *small_run("ppo", env=env)), f"the scalar {name} in the info of {env} has the name of")
    assert contents(folder) == {}


# -- Evaluation --------------------------------------------------------------------------------------------------------


def test_evaluation_in_batches_of_episodes_where_memory_is_short(monkeypatch):
    """The first batch is what evaluation without batches begins with."""
    assert_finished(call("ppo", *small_run("ppo", name="whole", eval_episodes=7)))
    monkeypatch.setattr(runner.machine.programs, "share_of_memory", lambda *_: 2.0)
    monkeypatch.setattr(runner.machine.memory, "check_fits", lambda *_: None)
    sizes = []
    evaluate = runner.machine.programs.evaluate
    monkeypatch.setattr(runner.machine.programs, "evaluate", lambda *args: sizes.append(args[-2]) or evaluate(*args))
    assert_finished(call("ppo", *small_run("ppo", name="batches", eval_episodes=7, lanes_per_batch="2")))
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
def test_evaluation_happens_when_it_is_asked_for_and_changes_nothing(eval_every, iterations, undisturbed_ppo):
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


def test_an_evaluation_with_sampled_actions_says_so_and_changes_nothing_else(undisturbed_ppo):
    result = call("ppo", *small_run("ppo", name="sampled", eval_sampled=True))
    assert_finished(result)
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
    iterations, evaluate = [], runner.machine.programs.Programs.evaluate

    def keep(self, part, state, iteration):
        iterations.append(iteration)
        return evaluate(self, part, state, iteration)

    monkeypatch.setattr(runner.machine.programs.Programs, "evaluate", keep)
    return iterations


def test_each_part_is_evaluated_before_training_and_not_again_when_it_is_resumed(evaluations, undisturbed_ppo):
    assert_finished(call("ppo", *small_run("ppo", name="parts", lanes_per_batch="1")))
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


def test_a_run_that_is_stopped_before_its_first_checkpoint_is_evaluated_again(
    evaluations, undisturbed_ppo, monkeypatch
):
    def stop(*args):
        signal.raise_signal(signal.SIGTERM)
        return evaluate(*args)

    evaluate = runner.machine.programs.Programs.evaluate
    with monkeypatch.context() as patch:
        patch.setattr(runner.machine.programs.Programs, "evaluate", stop)
        assert call("ppo", *small_run("ppo", name="stopped")).status == 128 + signal.SIGTERM
    directory = directory_of("ppo", "stopped")
    assert (evaluations, saved_iteration(directory)) == ([0], 0)
    assert_finished(call("ppo", "--resume", str(directory)))
    assert evaluations[:3] == [0, 0, 2]
    assert run_differences(directory, undisturbed_ppo) == []


@pytest.mark.parametrize("is_late", [True, False])
def test_a_run_says_when_it_waits_for_the_evaluation_program(is_late, monkeypatch):
    """And only when it waits. Here the program is late until the run asks for it, or there before."""
    is_asked, programs = threading.Event(), runner.machine.programs.Programs
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


def test_a_short_run_says_that_it_is_evaluated_less_often(capsys):
    line = "2 evaluations: 20 could take more than 16 times the env steps of training"
    cases = ({}, True), ({"eval_every": "32"}, False), ({"eval_episodes": 0}, False), ({"eval_max_steps": 10}, False)
    for changes, is_said in cases:
        options = Options(**({"eval_episodes": 2} | changes))
        print_header(Experiment("ppo.py", None, small_config("ppo", 4), options, {}), True, 1, jnp.zeros(3))
        output = capsys.readouterr().out
        assert (f"\n{line}; --eval-every N overrides\n" in output) == is_said
        assert ("could take more than" in output) == is_said


@pytest.mark.parametrize(("env", "is_drawn"), [("CartPole-v1", True), ("DeepSea-bsuite", False)])
def test_draw_is_offered_where_the_environment_can_be_drawn(env, is_drawn, capsys):
    experiment = Experiment("ppo.py", None, dataclasses.replace(small_config("ppo"), env=env), Options(), {})
    runner.tell.report.print_commands(experiment, Path("folder"), False)
    output = capsys.readouterr().out
    assert ("  draw:        python -m runner.render folder\n" in output) == is_drawn
    assert "  compare:     python -m runner.compare folder OTHER_RUN\n" in output


def test_a_run_on_a_gpu_says_what_its_evaluations_could_take(capsys, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    experiment = Experiment("ppo.py", None, small_config("ppo", 100), Options(eval_episodes=2), {})
    print_header(experiment, True, 1, jnp.zeros(3))
    line = "20 could take more than a tenth of the steps and updates that training makes one after another; --eval"
    assert f"1 evaluation: {line}" in capsys.readouterr().out


def test_each_evaluation_plays_other_episodes():
    """With a learning rate of 0 the policy stays the same, and its scores differ all the same."""
    assert_finished(call("ppo", *small_run("ppo", name="still", learning_rate=0.0)))
    returns = saved_metrics(directory_of("ppo", "still"))["eval_episode_return"]
    assert all(len(set(row)) > 3 for row in returns)


def test_an_evaluation_that_fails_leaves_the_results_of_training(monkeypatch):
    def fails(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.")

    monkeypatch.setattr(runner.machine.programs.Programs, "evaluate", fails)
    result = call("ppo", *small_run("ppo", name="unlucky"))
    assert result.status == 0, result
    warning = "warning: no evaluation: RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.; lower --eval-episodes\n"
    assert result.stderr == 21 * warning
    directory = directory_of("ppo", "unlucky")
    assert {path.name for path in directory.iterdir()} == FILES
    assert "eval_episode_return" not in json.loads((directory / "summary.json").read_text())


def test_episodes_that_are_cut_are_counted():
    result = call("ppo", *small_run("ppo", name="cut", eval_max_steps=3))
    assert_finished(result)
    assert "4 of 4 evaluation episodes had not ended after 3 steps and were cut\n" in result.stdout
    assert json.loads((directory_of("ppo", "cut") / "summary.json").read_text())["eval_cut_episodes"] == 4


# -- Weights & Biases --------------------------------------------------------------------------------------------------

# No account, and no way out to the network.
ALONE = {"WANDB_API_KEY": None, "WANDB_MODE": None, "https_proxy": "http://127.0.0.1:9", "http_proxy": None}


def wandb_runs(directory):
    """What each offline run below a folder holds, as bytes; the names and values stand in it as they are."""
    return sorted(unframed(path.read_bytes()) for path in directory.glob("wandb/offline-run-*/run-*.wandb"))


def unframed(content):
    """The records of LevelDB's log format, joined; those that reach into the next block of 32 KiB are in pieces."""
    data, start = b"", 7  # behind wandb's own header
    while start < len(content):
        room = 2**15 - start % 2**15
        if room < 7:  # too little for the header of a piece: checksum, length, kind
            start += room
            continue
        length = int.from_bytes(content[start + 4 : start + 6], "little")
        data += content[start + 7 : start + 7 + length]
        start += 7 + length
    return data


def logged(run, name):
    """Each value that an offline run has under a name, in order; those in its summary too."""
    ends = [match.end() for match in re.finditer(name.encode() + rb"\x82\x01", run)]
    return [float(run[end + 1 : end + 1 + run[end]]) for end in ends]  # a byte that tells the length, and the digits


@pytest.mark.parametrize("per_seed", [False, True])
@one
def test_wandb_without_network(script, per_seed, undisturbed, folder):
    arguments = small_run(script, name="tracked", wandb="offline", wandb_per_seed=per_seed)
    result = execute(path_of(script), *arguments, cwd=folder, HOME=str(folder), **ALONE)
    assert_finished(result)
    directory = directory_of(script, "tracked")
    assert run_differences(directory, undisturbed[2]) == []
    metrics = saved_metrics(directory)
    summary = json.loads((directory / "summary.json").read_text())["eval_episode_return"]
    group = f"{script}-{ENVS[script][0]}-tracked"
    assert result.stdout.endswith(f"\n  upload:      wandb sync {directory}/wandb/offline-run-*\n")
    names = [f"{group}-seed0", f"{group}-seed1"] if per_seed else [group]
    runs = wandb_runs(directory)
    assert len(runs) == len(names)
    for lane, name in enumerate(names):
        (run,) = (run for run in runs if name.encode() in run)
        env_steps = [0, *metrics["env_steps"].tolist()]  # 0: the evaluation of the untrained policy
        assert sorted(set(logged(run, "env_steps"))) == sorted(set(logged(run, "_step"))) == env_steps
        lanes = slice(lane, lane + 1) if per_seed else slice(None)
        assert set(logged(run, "num_episodes")) == set(metrics["num_episodes"][lanes].mean(axis=0))
        score = summary["per_seed"][lane] if per_seed else summary["iqm"]
        assert logged(run, "eval_episode_return")[-1] == pytest.approx(score, rel=1e-4)


@one
def test_wandb_without_an_account(script, folder):
    result = execute(path_of(script), *small_run(script, wandb="online"), cwd=folder, HOME=str(folder), **ALONE)
    assert_refused(result, "--wandb online", "wandb login", "offline")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("mode", ["offline", "online"])
@one
def test_wandb_that_is_not_installed(script, mode, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert_refused(call(script, *small_run(script, wandb=mode)), f"--wandb {mode}", "pip install wandb")
    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--wandb", "offline", "--wandb-project", "a/b"],
            "wandb_project must have at most 128 characters and none of",
        ),
        (["--wandb", "offline", "--wandb-project", 129 * "x"], "wandb_project must have at most 128 characters"),
        (["--wandb-per-seed"], "--wandb-per-seed has no effect without --wandb offline or --wandb online"),
    ],
    ids=lambda x: " ".join(x)[:60] if isinstance(x, list) else "",
)
def test_options_of_wandb_that_cannot_be_used_are_refused_before_a_folder_is_made(words, message, folder):
    assert_refused(call("ppo", *small_run("ppo"), *words), message)
    assert contents(folder) == {}


def test_wandb_needs_a_home_directory(folder, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert_refused(call("ppo", *small_run("ppo", wandb="offline")), "--wandb offline needs a home directory: set HOME")
    assert contents(folder) == {}


class FakeRun:
    """What the tracker uses of a wandb run."""

    def __init__(self, logged):
        self.summary, self.logged, self.step = {}, logged, 0

    def define_metric(self, *args, **kwargs):
        pass

    def log(self, values, step):
        assert step == values["env_steps"] >= self.step, "wandb drops what is logged at an earlier step"
        self.step = step
        self.logged.append(values)

    def finish(self):
        pass


def test_a_resumed_run_continues_its_wandb_runs(monkeypatch):
    import wandb

    inits, logged = [], []
    monkeypatch.setattr(wandb, "init", lambda **kwargs: inits.append(kwargs) or FakeRun(logged))
    arguments = small_run("ppo", name="tracked", wandb="offline", wandb_per_seed=True, eval_episodes=0)
    assert_finished(call("ppo", *arguments))
    total = small_config("ppo", 44).total_timesteps
    result = call("ppo", "--resume", str(directory_of("ppo", "tracked")), *flags(total_timesteps=total))
    assert_finished(result)
    assert {kwargs["resume"] for kwargs in inits} == {"allow"}
    ids = [kwargs["id"] for kwargs in inits]
    assert len(ids) == 4
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
    env_steps = [small_config("ppo").env_steps(i + 1) for i in range(44)]
    assert sorted(values["env_steps"] for values in logged) == sorted(2 * env_steps)


@one
def test_wandb_tells_algorithms_options_and_settings_apart(script, monkeypatch):
    import wandb

    inits = []
    monkeypatch.setattr(wandb, "init", lambda **kwargs: inits.append(kwargs) or FakeRun([]))
    arguments = small_run(script, 2, name="tracked", wandb="offline", num_seeds=1, eval_episodes=0, eval_max_steps=77)
    assert_finished(call(script, *arguments, "--sweep", "gamma=0.9,0.99"))
    group = f"{script}-{ENVS[script][0]}-tracked"
    assert [kwargs["name"] for kwargs in inits] == [f"{group}-gamma=0.9", f"{group}-gamma=0.99"]
    for kwargs, gamma in zip(inits, (0.9, 0.99), strict=True):
        assert (kwargs["group"], kwargs["tags"]) == (group, [script])
        expected = {"algorithm": script, "gamma": gamma, "eval_max_steps": 77, "seed": 0, "num_seeds": 1}
        assert kwargs["config"].items() >= expected.items()


def test_wandb_gets_the_evaluations_of_all_parts_in_the_order_of_their_env_steps(monkeypatch):
    """Its steps may not go back."""
    import wandb

    logged = []
    monkeypatch.setattr(wandb, "init", lambda **_: FakeRun(logged))
    arguments = small_run("ppo", name="tracked", wandb="offline", lanes_per_batch="1", eval_every="320")
    assert_finished(call("ppo", *arguments))
    steps = [values["env_steps"] for values in logged]
    assert steps == sorted(set(steps))
    metrics = saved_metrics(directory_of("ppo", "tracked"))
    evaluated = {x["env_steps"]: x["eval_episode_return"] for x in logged if "eval_episode_return" in x}
    expected = metrics["eval_episode_return"].mean(axis=0)
    assert evaluated == dict(zip(metrics["eval_env_steps"].tolist(), expected.tolist(), strict=True))


@pytest.mark.parametrize("lanes_per_batch", ["auto", "2"])
def test_wandb_gets_the_share_of_healthy_lanes_with_every_record(lanes_per_batch, monkeypatch):
    """The second lane of each batch has diverged, also in records without an episode. The IQM would be 1."""
    import wandb

    def compile_segment(*args):
        def poisoned(settings, state, start, stop):
            state, records = segment(settings, state, start, stop)
            lost = jnp.arange(len(records["grad_norm"])) == 1
            return state, records | {"grad_norm": jnp.where(lost[:, None], jnp.nan, records["grad_norm"])}

        segment = compiled(*args)
        poisoned.memory_analysis = segment.memory_analysis
        return poisoned

    runs, compiled = [], runner.machine.programs.compile_segment
    monkeypatch.setattr(wandb, "init", lambda **_: runs.append(FakeRun([])) or runs[-1])
    monkeypatch.setattr(runner.machine.programs, "compile_segment", compile_segment)
    arguments = small_run("ppo", 4, num_seeds=5, wandb="offline", lanes_per_batch=lanes_per_batch, eval_every="64")
    result = call("ppo", *arguments)
    assert_finished(result)
    shares = [values["is_healthy"] for run in runs for values in run.logged if "grad_norm" in values]
    assert shares == 4 * ([0.8] if lanes_per_batch == "auto" else [0.6])
    assert runs[0].summary["is_healthy"] == shares[0]
    assert "1 of 5 lanes diverged" in result.stdout or lanes_per_batch == "2"


# -- Output that nobody reads ------------------------------------------------------------------------------------------


def closed_pipe():
    """A stream into a pipe whose reader has gone, as `| head -1` leaves it."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


def full_disk():
    """A stream to a disk without space."""
    return open("/dev/full", "w")


@pytest.mark.parametrize(("stream", "is_stderr_lost"), [(closed_pipe, False), (full_disk, True)])
@one
def test_a_run_goes_on_without_stdout_and_stderr(script, stream, is_stderr_lost, undisturbed):
    def run():
        with (
            stream() as stdout,  # closing it raises, as the end of a process would, if what is in its buffer is lost
            stream() as stderr,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr if is_stderr_lost else given),
        ):
            runner.main.run(module.__file__, module.Config, module.make)

    module, given = importlib.import_module(script), io.StringIO()
    result = capture(run, module.__file__, *small_run(script, name="unread"))
    assert_finished(result)
    note = "note: stdout is lost (Broken pipe); the run goes on without it\n"
    assert given.getvalue() == ("" if is_stderr_lost else note)
    directory = directory_of(script, "unread")
    assert {path.name for path in directory.iterdir()} == FILES
    assert run_differences(directory, undisturbed[2]) == []


@one
def test_a_run_that_begins_without_stdout_and_stderr(script, folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", [path_of(script), *small_run(script, name="mute")])
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    module = importlib.import_module(script)
    runner.main.run(module.__file__, module.Config, module.make)
    assert {path.name for path in directory_of(script, "mute").iterdir()} == FILES


# -- Disks that fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "curve.png",
        "curve.csv",
        "summary.json",
    ],
)
@one
def test_results_that_cannot_be_written_are_named_and_the_others_are_written(script, name, undisturbed):
    directory = directory_of(script, "blocked")
    (directory / name).mkdir(parents=True)
    result = call(script, *small_run(script, name="blocked"))
    assert result.status == 1, result
    assert re.fullmatch(f"error: {directory / name} is not written: .*\n", result.stderr), result.stderr
    assert "greedy evaluation" in result.stdout
    assert f"results in {directory}\n" in result.stdout
    assert run_differences(directory, undisturbed[2]) == []
    assert {path.name for path in directory.iterdir()} == FILES, "one file in the way must not take the others with it"


@pytest.mark.parametrize("name", ["checkpoint.save", "folder.write_metrics"])
def test_a_disk_that_is_full_in_the_middle_of_a_run(script, name, undisturbed, monkeypatch):
    """The message says so in a line, and the checkpoint before is whole."""

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) > 3:
            raise OSError(28, "No space left on device", "somewhere")
        return write(*args, **kwargs)

    calls = []
    module, function = (checkpoint, "save") if name == "checkpoint.save" else (run_folder, "write_metrics")
    write = getattr(module, function)
    monkeypatch.setattr(module, function, full)
    result = call(script, *small_run(script, name="full"), *OFTEN)
    assert result.status not in (0, None)
    assert "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    directory = directory_of(script, "full")
    assert result.stderr.endswith(f"; what was saved before is complete, continue it with --resume {directory}\n")
    assert saved_state(directory)[0] == 3

    monkeypatch.setattr(module, function, write)
    assert_finished(call(script, "--resume", str(directory), *flags(eval_episodes=2)))
    assert run_differences(directory, undisturbed[2]) == []


@pytest.mark.parametrize(
    ("function", "left", "hint"),
    [
        ("write_json", [], "nothing was saved before"),
        ("write_metrics", ["config.json"], "nothing was saved before, start it again with --resume {}"),
    ],
)
def test_a_disk_that_is_full_before_anything_is_saved(function, left, hint, undisturbed_ppo, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, function, full)
        patch.setattr(runner.folder.record, "write_json", run_folder.write_json)
        result = call("ppo", *small_run("ppo", name="full"))
    directory = directory_of("ppo", "full")
    assert_refused(result, f"error: cannot save: [Errno 28] No space left on device; {hint.format(directory)}\n")
    assert [path.name for path in directory.parent.rglob("*.*")] == left
    if left:
        assert_finished(call("ppo", "--resume", str(directory)))
        assert run_differences(directory, undisturbed_ppo) == []
