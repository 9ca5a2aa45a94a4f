"""Sweeps that are halved: which settings go on, and that those that do are those of the whole sweep."""

import itertools
import json
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers import Process, call, capture, flags, path_of, saved_metrics, small_run
from runs import assert_finished, assert_refused
from test_trials import together

import runner.rungs
import runner.training
from runner.compare import __main__ as compare
from runner.experiment import EVAL_STEPS, Experiment, Part, Result, Rung
from runner.files import checkpoint
from runner.files.load import load
from runner.halving import choose, describe_cut, plan_sizes, plan_stops
from runner.options.fields import Options

FOLDER = Path("runs/ppo/CartPole-v1")
RATES = "0.0001,0.0003,0.001,0.003,0.01,0.03,0.1,0.3,1"
# Nine settings of two seeds, a batch for each: 9 to 10 iterations, 4 to 20, 2 to 40.
SWEEP = [*small_run("ppo", eval_every=0), "--sweep", f"learning-rate={RATES}", "--trials-per-batch", "2"]
HALVED = [*SWEEP, "--sweep-halve", "2"]
RUNGS = [(10, 9), (20, 4), (40, 2)]  # iterations and settings

# -- Rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_settings", "factor", "sizes", "stops"),
    [
        (27, 3, [27, 9, 3], [100, 300, 900]),
        (18, 3, [18, 6, 2], [100, 300, 900]),
        (17, 3, [17, 5], [300, 900]),
        (4, 3, [4, 1], [300, 900]),
        (3, 3, [3, 1], [300, 900]),
        (2, 3, [2], [900]),
        (9, 2, [9, 4, 2], [225, 450, 900]),
    ],
)
def test_rungs_are_counted_back_from_the_end(num_settings, factor, sizes, stops):
    assert plan_sizes(num_settings, factor) == sizes
    assert plan_stops(num_settings, 900, factor) == stops


def test_a_rung_has_iterations_of_its_own():
    assert plan_stops(27, 5, 3) == [1, 2, 5]
    with pytest.raises(ValueError, match="sweep_halve = 3 has 3 rungs for 27 settings, and the run only 2 iterations"):
        plan_stops(27, 2, 3)


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([1, 5, 3, 4, 2, 6], [1, 5]),
        ([1, 5, np.nan, np.nan, np.nan, np.nan], [0, 1]),
        ([np.nan, np.nan, np.nan, np.nan, np.nan, 5], [5]),
        ([3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 4, 5]),
        ([1, 3, 4, 3, 2, 3], [1, 2, 3, 5]),
        ([1, 5], [1]),
    ],
)
def test_the_best_third_goes_on(means, expected):
    """All that tie with the last of them go on too, whatever the order, but none with diverged seeds alone."""
    scores = np.array(means, float)[:, None] + [-0.5, 0.0, 0.5]
    np.testing.assert_array_equal(choose(scores, np.zeros((len(means), 3)), 3), expected)


def test_a_diverged_seed_takes_its_setting_out():
    """It takes no free place either, while another setting has no diverged seed: its mean would lack seeds."""
    scores = np.array([[9, 9, np.nan], [1, 2, 3], [1, 1, 1], [np.nan, 0, 0]])
    np.testing.assert_array_equal(choose(scores, np.zeros((4, 3)), 2), [1, 2])
    np.testing.assert_array_equal(choose(scores[[0, 1, 3, 3]], np.zeros((4, 3)), 2), [1])
    np.testing.assert_array_equal(choose(scores[[0, 3, 3, 3]], np.zeros((4, 3)), 2), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ([1, 2, 3, 4], "2 of 4 settings go on"),
        ([1, 2, 2, 3], "settings tie for the last of 2 places, 3 of 4 settings go on"),
        ([2, 2, 2, 2], "settings tie for the last of 2 places, all 4 go on"),
        ([1, np.nan, np.nan, np.nan], "all others have a seed that diverged, 1 of 4 settings go on"),
        ([0, -1, -2, np.nan], "no seed is better than it was untrained yet, 3 of 4 settings go on"),
        ([0, -1, -2, -3], "no seed is better than it was untrained yet, all 4 go on"),
        ([np.nan] * 4, "no seed is better than it was untrained yet, all 4 go on"),
    ],
)
def test_a_cut_that_differs_from_its_places_says_why(scores, text):
    scores = np.array(scores, float)[:, None]
    assert describe_cut(scores, np.zeros((4, 1)), 2) == text


def test_a_seed_that_has_begun_to_learn_counts():
    """By their IQM all three would be equal, as on Acrobot."""
    scores = np.array([[-500.0] * 4, [-500, -500, -500, -100], [-500.0] * 4])
    np.testing.assert_array_equal(choose(scores, np.full((3, 4), -500.0), 3), [1])


@pytest.mark.parametrize(("best", "expected"), [(-500.0, [0, 1, 2]), (-499.0, [2])])
def test_all_go_on_while_no_seed_is_better_than_untrained(best, expected):
    """One untrained policy is good by luck, and worse since."""
    untrained = np.array([[-184.0, -500, -500, -500]] * 3)
    scores = np.array([[-500.0] * 4, [-500.0] * 4, [-500, -500, -500, best]])
    np.testing.assert_array_equal(choose(scores, untrained, 3), expected)


def test_what_goes_on_keeps_its_own_state_metrics_and_evaluations(monkeypatch):
    """Settings 0 and 2 of three with two seeds: trials 0, 1, 4 and 5, of which the last two are a part."""
    trials, steps = np.arange(6), np.array([0, 160])
    experiment = Experiment("ppo.py", None, None, Options(num_seeds=2), {"gamma": np.float32([0.1, 0.2, 0.3])})
    before = Result({"loss": trials[:, None]}, {EVAL_STEPS: steps, "score": trials[:, None] + steps}, {}, trials)
    run = SimpleNamespace(
        experiment=experiment,
        rungs=[Rung((0, 1, 2), 10, [Part(0, 3), Part(3, 6)]), Rung((0, 2), 20, [Part(0, 2), Part(2, 4)])],
        abstract_state=None,
        trainer=SimpleNamespace(programs=SimpleNamespace(placement=SimpleNamespace(place=lambda x: x))),
        read_rung=lambda index: before,
        rung_folder=lambda index: Path(),
    )
    restore = lambda path, _, rows: int(path.parent.name.split("-")[1]) + np.array(rows)
    monkeypatch.setattr(checkpoint, "restore_trials", restore)
    progress = runner.rungs.Run.promote(run, Part(2, 4))
    for found in (progress.state, progress.metrics["loss"][:, 0], progress.evaluations["score"][:, 0]):
        np.testing.assert_array_equal(found, [4, 5])
    assert progress.iteration == 10
    np.testing.assert_array_equal(progress.evaluations[EVAL_STEPS], steps)


# -- Runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """A folder with a sweep, `whole`, the same one halved, and what the latter has printed."""
    folder = tmp_path_factory.mktemp("halved")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert_finished(call("ppo", *SWEEP, "--name", "whole", *flags(eval_every=160)))
        result = call("ppo", *HALVED, "--name", "halved")
        assert_finished(result)
    return folder, result.stdout


@pytest.fixture
def runs(halved, monkeypatch):
    """The output of the halved sweep; the current folder is that of its run."""
    monkeypatch.chdir(halved[0])
    return halved[1]


def read(name):
    return json.loads((FOLDER / "halved" / name).read_text())


@pytest.mark.slow
def test_what_goes_on_is_that_of_the_whole_sweep(runs):
    """Bit for bit: each setting is a batch of its own in both."""
    whole, halved = (saved_metrics(FOLDER / name) for name in ("whole", "halved"))
    lengths = halved.pop("num_iterations")
    assert {name for name in whole if "eval" not in name} == {name for name in halved if "eval" not in name}
    for name, x in halved.items():
        if x.ndim == 1 and name != "eval_env_steps":
            np.testing.assert_array_equal(x, whole[name])
        elif x.ndim == 2 and "eval" not in name:
            for trial, length in enumerate(lengths):
                np.testing.assert_array_equal(x[trial, :length], whole[name][trial, :length])
                assert np.isnan(x[trial, length:]).all() if x.dtype == np.float32 else not x[trial, length:].any()
    np.testing.assert_array_equal(halved["eval_env_steps"], [0, 320, 640, 1280])
    same = np.isin(whole["eval_env_steps"], halved["eval_env_steps"])
    for (stop, _), column in zip(RUNGS, (1, 2, 3), strict=True):
        trained = lengths >= stop
        scores = halved["eval_episode_return"][:, column]
        np.testing.assert_array_equal(scores[trained], whole["eval_episode_return"][trained][:, same][:, column])
        assert np.isnan(scores[~trained]).all()


@pytest.mark.slow
def test_the_best_of_each_rung_go_on(runs):
    metrics, rungs = saved_metrics(FOLDER / "halved"), read("config.json")["rungs"]
    assert [(rung["stop"], len(rung["settings"])) for rung in rungs] == RUNGS
    scores = metrics["eval_episode_return"].reshape(9, 2, 4).mean(axis=1)
    for column, (before, after) in enumerate(itertools.pairwise(rungs), start=1):
        best = sorted(before["settings"], key=lambda i: -scores[i, column])[: len(before["settings"]) // 2]
        assert after["settings"] == sorted(best)
        rest = set(before["settings"]) - set(best)
        np.testing.assert_array_equal(metrics["num_iterations"].reshape(9, 2)[list(rest)], before["stop"])
    assert "3 rungs, settings to env steps: 9 to 320, 4 to 640, 2 to 1,280; 47% of the env steps of the whole" in runs
    for line in ("rung 1 of 3: 4 of 9 settings go on", "rung 2 of 3: 2 of 4 settings go on"):
        assert f"\n{line}\n" in runs


@pytest.mark.slow
def test_the_report_of_a_halved_sweep(runs):
    summary, last = read("summary.json"), read("config.json")["rungs"][-1]["settings"]
    steps = [setting["env_steps"] for setting in summary["settings"]]
    assert sorted(steps) == [320] * 5 + [640] * 2 + [1280] * 2
    assert [steps[i] for i in summary["ranking"]] == sorted(steps, reverse=True), "the later rung is the better one"
    assert set(summary["ranking"][:2]) == set(last)
    for n in set(steps):
        scores = [summary["settings"][i]["eval_episode_return"]["iqm"] for i in summary["ranking"] if steps[i] == n]
        assert scores == sorted(scores, reverse=True)
    table = runs.partition("best first:\n")[2].splitlines()
    assert table[0].split()[:3] == ["env", "steps", "mean"]
    assert table[1].split()[:2] == [f"learning_rate={RATES.split(',')[summary['ranking'][0]]}", "1,280"]
    assert "extend:" not in runs, "a rung does not follow a longer run"
    names = {path.name for path in (FOLDER / "halved").iterdir()}
    files = {"config.json", "curve.csv", "curve.png", "metrics.npz", "metrics.png", "summary.json", "sweep.png"}
    assert names == files | {"rungs"}
    assert not any(setting["diverged_seeds"] for setting in summary["settings"]), "what has ended has not diverged"


@pytest.mark.slow
@pytest.mark.parametrize("rung", [0, 1, 2])
def test_a_setting_is_loaded_from_its_last_rung(runs, rung):
    rungs = read("config.json")["rungs"]
    later = rungs[rung + 1]["settings"] if rung < 2 else []
    setting = next(i for i in rungs[rung]["settings"] if i not in later)
    config, _, state = load(FOLDER / "halved", seed_index=1, setting_index=setting)
    assert config.learning_rate == pytest.approx(float(RATES.split(",")[setting]))
    steps = state.opt_state[1][0].count  # of Adam: one epoch of two minibatches an iteration
    assert steps == 2 * rungs[rung]["stop"]


@pytest.mark.slow
def test_a_comparison_takes_each_setting_at_its_own_end(runs):
    result = capture(compare.main, "compare", str(FOLDER / "halved"))
    assert (result.status, result.stderr) == (0, ""), result
    assert "the runs have 320 to 1,280 env steps; each is scored at its own end" in result.stdout
    summary, table = read("summary.json"), Path("compare.csv").read_text()
    for i, rate in enumerate(RATES.split(",")):
        score = summary["settings"][i]["eval_episode_return"]["mean"]
        row = next(x for x in table.splitlines() if x.split(",")[1].endswith(f"={float(rate)}") and ",mean," in x)
        assert float(row.split(",")[7]) == pytest.approx(score, rel=1e-5)


class Killed(BaseException):
    """The process ends here."""


# A function, and the number of its call in which the run ends: in a rung, at its end, between two, at the start of one.
MOMENTS = {
    "saving a part": (checkpoint, "save", 5),
    "evaluating at the end of a rung": (runner.training.store, "write_arrays", 17),
    "writing the next rung": (runner.rungs, "write_record", 11),
    "starting the next rung": (checkpoint, "restore_trials", 3),
    "in the last rung": (checkpoint, "save", 15),
    "joining": (runner.rungs, "join_rungs", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_halved_sweep_that_ends_anywhere_is_resumed(moment, runs, monkeypatch):
    module, name, number = MOMENTS[moment]
    function, calls = getattr(module, name), []

    def end(*args, **options):
        calls.append(name)
        if len(calls) == number:
            raise Killed
        return function(*args, **options)

    directory = FOLDER / moment.replace(" ", "-")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, end)
        assert call("ppo", *HALVED, "--name", directory.name).status == 1
    assert len(calls) == number, "it did not come to that"
    assert_finished(call("ppo", "--resume", str(directory)))
    a, b = saved_metrics(directory), saved_metrics(FOLDER / "halved")
    assert a.keys() == b.keys()
    for x in a:
        np.testing.assert_array_equal(a[x], b[x], err_msg=x)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["ranking"] == read("summary.json")["ranking"]
    shutil.rmtree(directory)


@pytest.mark.slow
def test_a_run_of_two_processes_has_the_same_survivors(runs):
    arguments = [*HALVED, "--name", "two"]
    first, second = (Process(path_of("ppo"), *arguments, *process, cwd=Path.cwd()) for process in together(2))
    with first, second:
        results = first.finish(), second.finish()
    assert [result.status for result in results] == [0, 0], results
    a, b = saved_metrics(FOLDER / "two"), saved_metrics(FOLDER / "halved")
    np.testing.assert_array_equal(a["num_iterations"], b["num_iterations"])
    shutil.rmtree(FOLDER / "two")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["in its part", "while it waits"])
def test_a_process_that_was_stopped_ends_the_others_at_the_rung(moment, folder):
    """It is process 0, which leaves last: JAX ends those who lose it, and they may still be saving."""
    arguments = small_run("ppo", 600, name="two", checkpoint_every=0.0)
    arguments += ["--sweep", "gamma=0.9,0.95,0.99", "--sweep-halve", "3"]
    processes = [Process(path_of("ppo"), *arguments, *process, cwd=folder) for process in together(2)]
    parts = FOLDER / "two" / "rungs" / "1" / "parts"
    with processes[0] as first, processes[1] as second:
        first.wait_for_checkpoint(parts / "trials-0-to-2", 1)
        if moment == "while it waits":
            second.send(signal.SIGSTOP)
            first.wait_until((parts / "trials-0-to-2" / "evaluation.npz").exists)
            time.sleep(1)
        first.send(signal.SIGTERM)
        second.send(signal.SIGCONT)
        results = [process.finish() for process in processes]
    assert [result.status for result in results] == [128 + signal.SIGTERM, 1], results
    error = "error: process 0 ended too early; what the others trained is saved, continue with --resume"
    assert results[1].stderr == f"{error} {FOLDER / 'two'}\n"


@pytest.mark.slow
def test_nobody_is_cut_before_one_has_learned(folder, monkeypatch):
    """Every score is that of the untrained policy."""

    def evaluate(programs, part, state, iteration):
        names = ("eval_episode_return", "eval_episode_length", "eval_cut_episodes")
        return {name: np.full(part.num_trials, 9.0) for name in names}

    monkeypatch.setattr(runner.training.Programs, "evaluate", evaluate)
    sweep = ["--sweep", "gamma=0.9,0.95,0.99", "--sweep-halve", "3"]
    result = call("ppo", *small_run("ppo", name="none"), *sweep)
    assert_finished(result)
    assert "rung 1 of 2: no seed is better than it was untrained yet, all 3 go on\n" in result.stdout
    assert (saved_metrics(FOLDER / "none")["num_iterations"] == 40).all()


@pytest.mark.slow
def test_nobody_is_cut_by_an_evaluation_that_failed(folder, monkeypatch):
    evaluate = runner.training.Programs.evaluate

    def fail_at_rungs(programs, part, state, iteration):
        if iteration == 14:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too many episodes")
        return evaluate(programs, part, state, iteration)

    monkeypatch.setattr(runner.training.Programs, "evaluate", fail_at_rungs)
    result = call("ppo", *small_run("ppo", name="x"), "--sweep", "gamma=0.9,0.95,0.99", "--sweep-halve", "3")
    assert result.status == 0, result
    assert "rung 1 of 2: an evaluation has failed, all 3 go on\n" in result.stdout
    assert (saved_metrics(FOLDER / "x")["num_iterations"] == 40).all()
    assert json.loads((FOLDER / "x" / "summary.json").read_text())["ranked_by"] == "eval_episode_return"


@pytest.mark.slow
def test_too_few_settings_are_said(folder):
    result = call("ppo", *small_run("ppo", 4), "--sweep", "gamma=0.9,0.99", "--sweep-halve", "3")
    assert_finished(result)
    assert "\n--sweep-halve 3 stops no setting: there are only 2\n" in result.stdout


@pytest.mark.slow
def test_a_halved_sweep_may_not_change(runs):
    directory = str(FOLDER / "halved")
    assert_refused(call("ppo", "--resume", directory, "--sweep-halve", "3"), "sweep_halve = 2, not 3")
    assert_refused(call("ppo", "--resume", directory, "--total-timesteps", "9999"), "total_timesteps = 1280, not 9999")
    assert_refused(call("ppo", "--resume", directory, "--eval-episodes", "3"), "eval_episodes = 2, not 3")
    assert_refused(call("ppo", "--resume", directory, "--eval-max-steps", "3"), "eval_max_steps = 10000, not 3")


@pytest.mark.slow
def test_a_halved_sweep_that_has_not_ended_is_not_compared(runs, tmp_path):
    copy = shutil.copytree(FOLDER / "halved", tmp_path / "copy")
    (copy / "metrics.npz").unlink()
    result = capture(compare.main, "compare", str(copy))
    assert_refused(result, "is a halved sweep that has not ended; continue it with --resume")
