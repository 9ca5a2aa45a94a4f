"""benchmarks/results.py: the pages say what the raw files say, the raw files are whole, and training makes them."""

import dataclasses
import importlib
import json
import os
import sys

import jax
import numpy as np
import pytest
from helpers import ROOT, capture
from scipy import stats

from runner.report.statistics import iqm

sys.path.append(str(ROOT / "benchmarks"))

import pages
import pictures
import restamp
import results
import rows
import seeds
import tables
import training

RAWS = rows.read_raws()
# Settings that are recipes now, with the value that switched them off.
RECIPES = {"torso": "mlp", "target_kl": 0.0, "dueling": False, "loss": "mse"}

# -- Pages and rows ----------------------------------------------------------------------------------------------------


def test_the_pages_are_made_from_the_raw_files():
    found = pages.pages(RAWS)
    for page, text in found.items():
        assert text == page.read_text(), page
    for name in pages.result_blocks(RAWS):
        assert sum(pages.BEGIN.format(f": {name}") in text for text in found.values()) == 1, name
    assert all(text.count("results/raw/") > 0 for page, text in found.items())


def test_rows_have_names_and_files_of_their_own_and_a_published_number():
    for values in ({pair.name for pair in rows.PAIRS}, {pair.path for pair in rows.PAIRS}):
        assert len(values) == len(rows.PAIRS)
    assert all(f"{pair.best:g}" in pair.published for pair in rows.PAIRS if pair.best is not None)
    assert {path for path in rows.RAW.iterdir() if path.suffix == ".json"} == {pair.path for pair in RAWS}


@pytest.mark.parametrize("pair", rows.FAMILIES[rows.OPTIONS], ids=lambda pair: pair.name)
def test_an_option_changes_one_setting_of_a_row(pair):
    preset = dataclasses.replace(pair, changes=())
    assert preset.name in {pair.name for pair in rows.PAIRS}
    before, after = rows.settings(preset), rows.settings(pair)
    assert [(name, after[name]) for name in before if before[name] != after[name]] == list(pair.changes)
    assert len(pair.changes) == 1


def test_the_interval_of_a_share_is_wilsons():
    """That of scipy, and where no seed failed it still says that one in n may."""
    for count, n in ((0, 5), (0, 100), (3, 100), (20, 20)):
        expected = stats.binomtest(count, n).proportion_ci(0.95, "wilson")
        np.testing.assert_allclose(rows.wilson(np.arange(n) < count), (count / n, *expected), atol=1e-5)


def test_a_seed_has_failed_below_half_of_the_way_from_random_actions():
    raw = {"final_episode_return": [10.0] * 12 + [4.9, 5.1, 0.0], "random_episode_return": 0.0}  # IQM 10
    assert rows.has_failed(raw).tolist() == [False] * 12 + [True, False, True]


def test_few_seeds_answer_otherwise_than_all():
    """Of 100 seeds 60 beat the published 0 and 10 fail; a better script, and one half of whose seeds beat it."""
    pair = rows.Pair("ppo", "CartPole-v1", best=0.0)
    scores = np.array([-8.0] * 10 + [-1.0] * 30 + [1.0] * 60)
    raws = {
        pair: {"final_episode_return": scores.tolist(), "random_episode_return": -10.0},
        rows.Pair("dqn", "CartPole-v1"): {"final_episode_return": [2.0] * 100, "random_episode_return": -10.0},
        rows.Pair("sac", "CartPole-v1", best=0.0): {
            "final_episode_return": [-1, 3] * 50,
            "random_episode_return": -10.0,
        },
        rows.Pair("dqn", "Acrobot-v1"): {"final_episode_return": [0.0] * 100, "random_episode_return": -10.0},
    }
    found = seeds.wrong_answers(raws)
    assert {question: list(x) for question, x in found.items()} == {
        "published": ["ppo/CartPole-v1"],
        "script": ["ppo < dqn, CartPole-v1", "ppo < sac, CartPole-v1", "dqn > sac, CartPole-v1"],
        "failed": ["ppo/CartPole-v1"],
    }
    n = np.arange(1, 101)
    losses = stats.binom(n, 0.4)
    expected = losses.sf(n // 2) + np.where(n % 2 == 0, losses.pmf(n // 2), 0.0) / 2  # a tie is half an answer
    np.testing.assert_allclose(found["published"]["ppo/CartPole-v1"], expected, atol=0.03)
    np.testing.assert_allclose(found["failed"]["ppo/CartPole-v1"], 0.9**n, atol=0.03)
    assert (found["script"]["ppo < dqn, CartPole-v1"] == 0.0).all()


# -- Raw files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", RAWS, ids=lambda pair: pair.name)
def test_a_raw_file_is_whole(pair):
    raw = RAWS[pair]
    curves, scores = np.array(raw["eval_episode_return"]), np.array(raw["final_episode_return"])
    assert (raw["script"], raw["env"]) == (pair.script, pair.env)
    assert curves.shape == (pair.num_seeds, len(raw["eval_env_steps"]))
    assert scores.shape == (pair.num_seeds,)
    assert raw["eval_env_steps"] == sorted(set(raw["eval_env_steps"])), "env steps grow"
    assert np.isfinite(curves).all()
    assert np.isfinite(scores).all()
    trained = pair.num_seeds * (raw["eval_env_steps"][-1] - raw["config"].get("learning_starts", 0))
    assert raw["timing"].get("env_steps_trained", trained) > 0.9 * trained, "all of what is trained is timed"
    spread = np.ptp(curves) + 1e-9
    assert abs(iqm(curves[:, -1]) - iqm(scores)) < 0.25 * spread, "the last evaluations are of the same policies"
    assert tables.dump(raw) == pair.path.read_text(), "it is written as it is read"


@pytest.mark.parametrize("pair", RAWS, ids=lambda pair: pair.name)
def test_a_raw_file_is_of_the_preset_of_today(pair):
    """Options that came after the recording are off, and so were those that are recipes now."""
    now, recorded = rows.settings(pair), dict(RAWS[pair]["config"])
    assert all(recorded.pop(name, off) == off for name, off in RECIPES.items())
    defaults = json.loads(json.dumps(dataclasses.asdict(importlib.import_module(pair.script).Config())))
    assert recorded == {name: now[name] for name in recorded}
    assert all(now[name] == defaults[name] for name in now.keys() - recorded.keys())


@pytest.mark.slow
def test_a_row_is_stale_if_its_program_changed(monkeypatch):
    (pair,) = (pair for pair in RAWS if pair.name == "ppo/CartPole-v1")
    machine = {"packages": {"jax": jax.__version__}, "device": "1 x cpu"}
    raw = RAWS[pair] | machine | {"program": training.program(pair)}
    assert restamp.find_stale({pair: raw}) == []
    config = dataclasses.replace(rows.make_config(pair), num_epochs=7)
    monkeypatch.setattr(training, "make_config", lambda _: config)
    (line,) = restamp.find_stale({pair: raw})
    assert line.startswith("ppo/CartPole-v1: recorded at ")
    assert line.endswith("the program is another one today")
    (line,) = restamp.find_stale({pair: raw | {"packages": {"jax": "0.0.1"}}})
    assert line == "ppo/CartPole-v1: recorded with jax 0.0.1 on 1 x cpu, compare it there"
    del raw["program"]
    assert "before programs were compared" in restamp.find_stale({pair: raw})[0]


@pytest.mark.slow
def test_three_iterations_of_the_same_program_are_bit_equal(tmp_path):
    """Run from two working trees, which are the same one here; the hash is that of `program`."""
    (pair,) = (pair for pair in RAWS if pair.name == "ppo/CartPole-v1")
    (tmp_path / "config.json").write_text(json.dumps(rows.settings(pair)))
    before, today = restamp.three_iterations((ROOT, ROOT), pair.script, tmp_path / "config.json")
    assert restamp.likeness(before, today) == "bit-equal"
    assert str(today["program"]) == training.in_a_process(training.program, pair)


ARRAYS = {
    "program": np.array("x"),
    "init.count": np.array([0, 3], np.int32),
    "0.params": np.array([1.0, -0.5], np.float32),
    "0.key": np.array([5, 7], np.uint32),
    "2.params": np.array([1.0, np.nan], np.float32),
    "0 metrics['loss']": np.array(0.5, np.float32),
    "0.buffer.arrays['bool']": np.array([[True]]),
}


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("program", np.array("y"), "bit-equal"),
        ("only today", np.zeros(2), "bit-equal"),
        ("0 metrics['loss']", None, "bit-equal"),
        ("0.buffer.arrays['bool']", np.array([[True, False]]), "bit-equal"),
        ("0.buffer.arrays['bool']", np.array([[False, False]]), "0.buffer.arrays['bool'] differs"),
        ("0.params", np.ones((2, 2), np.float32), "0.params is another array"),
        ("0.params", np.array([1.000001, -0.5], np.float32), "equal to rounding"),
        ("0.params", np.array([1.0001, -0.5], np.float32), "0.params differs"),
        ("2.params", np.array([1.5, 0.0], np.float32), "equal to rounding"),
        ("0.key", np.array([5, 8], np.uint32), "0.key differs"),
        ("init.count", np.array([0, 4], np.int32), "init.count differs"),
        ("init.count", np.array([0, 3], np.int64), "init.count is another array"),
        ("init.count", None, "init.count is another array"),
    ],
)
def test_two_programs_are_compared_by_what_they_compute(name, value, found):
    today = {key: x for key, x in (ARRAYS | {name: value}).items() if x is not None}
    assert restamp.likeness(ARRAYS, today) == found


# -- Pictures ----------------------------------------------------------------------------------------------------------


def test_curves_are_told_apart_without_colour():
    assert {pair.script for pair in rows.PAIRS} == pictures.LOOKS.keys()
    for name in ("linestyle", "marker"):
        assert len({str(look[name]) for look in pictures.LOOKS.values()}) == len(pictures.LOOKS)


def test_no_line_leads_from_the_untrained_policy_to_the_first_evaluation(monkeypatch):
    figures = []
    monkeypatch.setattr(pictures.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    shown = [pair for pair in RAWS if pair.name in ("ppo/Acrobot-v1", "dqn/Acrobot-v1")]
    pictures.plot(None, {pair: RAWS[pair] for pair in shown})
    (axes,) = figures[0].axes
    steps = [line.get_xdata() for line in axes.lines]
    assert [list(x) for x in steps[::2]] == [[0], [0]]
    assert all((x > 0).all() for x in steps[1::2])
    assert 2 <= len(axes.get_xticks()) <= 4, "0, and one to three other numbers"


# -- Training ----------------------------------------------------------------------------------------------------------


def test_pairs_of_gpu_size_are_started_with_gpu_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "RAW", tmp_path)  # nothing is recorded
    large = rows.FAMILIES[rows.GPU]
    assert training.pairs_to_train([], gpu=True) == large
    assert training.pairs_to_train([], gpu=False) == [pair for pair in rows.PAIRS if pair not in large]
    (pair,) = training.pairs_to_train(["ppo/Breakout-MinAtar"], gpu=True)
    assert pair.name == "ppo/Breakout-MinAtar"
    result = capture(results.main, "results.py", "--only", "ppo/Breakout-MinAtar")
    assert result.status == 2
    assert "unknown: ppo/Breakout-MinAtar; add --gpu; there are ppo/CartPole-v1, " in result.stderr


def test_a_pair_is_trained_with_its_preset_and_changes(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(training, "call", lambda command: commands.append(command) or sys.exit())
    changes = (("layer_norm", True), ("gamma", 0.9))
    for more in ({}, {"preset": "small", "changes": changes, "eval_episodes": 10}):
        with pytest.raises(SystemExit):
            training.train(rows.Pair("ppo", "brax/reacher", num_seeds=5, **more), tmp_path)
    begin, where = ["ppo.py", "--env", "brax/reacher", "--num-seeds", "5"], ["--out", str(tmp_path), "--name"]
    flags = ["--preset", "small", "--layer-norm", "--gamma", "0.9", "--eval-episodes", "10"]
    name = "results-small-layer_norm-True-gamma-0.9"
    assert commands == [[*begin, *where, "results"], [*begin, *flags, *where, name]]


@pytest.fixture
def catch(tmp_path, monkeypatch):
    """A pair, the folder of its run, and commands that write its files, of which the n-th says that it took n s."""
    pair = rows.Pair("ppo", "Catch-bsuite", num_seeds=2)
    folder, commands = tmp_path / "ppo" / "Catch-bsuite" / "results", []
    summary = {"eval_episode_return": {"per_seed": [0.5, 1.0]}}
    summary |= dict.fromkeys(("device", "platform", "python", "packages"), "")

    def call(command):
        commands.append(command)
        folder.mkdir(parents=True, exist_ok=True)
        options = {"eval_sampled": "--eval-sampled" in commands[0]}
        record = {"config": rows.settings(pair), "options": options, "git_commit": ""}
        (folder / "config.json").write_text(json.dumps(record))
        (folder / "summary.json").write_text(json.dumps(summary | {"timing": {"wall_seconds": len(commands)}}))
        np.savez(folder / "metrics.npz", eval_env_steps=[0, 9], eval_episode_return=[[0.0, 0.5], [0.0, 1.0]])

    monkeypatch.setattr(training, "call", call)
    monkeypatch.setattr(training, "evaluate", lambda *_: pytest.fail("played in this process"))
    monkeypatch.setattr(training, "in_a_process", lambda _, given: -0.64 if given == pair.env else None)
    return pair, folder


def test_a_process_of_its_own():
    """On a GPU JAX takes most of the memory until its process ends: the next pair needs it."""
    assert training.in_a_process(eval, "__import__('os').getpid()") != os.getpid()


@pytest.mark.parametrize(("score", "within"), [(0.99, "within"), (0.991, "OUTSIDE")])
def test_a_new_training_is_compared_with_the_recorded_interval(capsys, score, within):
    """A hundred seeds of one score have an IQM that differs from that of twenty in its last digit."""
    training.show(rows.PAIRS[0], {"final_episode_return": [score] * 100}, {"final_episode_return": [0.99] * 20})
    assert f"{within} its interval of 0.99 to 0.99" in capsys.readouterr().out


def test_training_that_was_stopped_is_not_timed(catch, tmp_path):
    """A command times what it trained itself."""
    pair, folder = catch
    for _ in range(2):  # the second time there is nothing to train
        timed = training.train(pair, tmp_path)
        assert (timed["timing"], timed["random_episode_return"]) == ({"wall_seconds": 1}, -0.64)
    (folder / "timing.json").unlink()  # as a command leaves it that is killed
    assert training.train(pair, tmp_path)["timing"] == {}
    assert pages.cells(pair, timed, rows.FOLDER)["time"] == "1 s"
    assert pages.cells(pair, timed | {"timing": {}}, rows.FOLDER)["time"] == "not timed"


@pytest.mark.parametrize("is_sampled", [False, True])
def test_scores_of_sampled_and_of_greedy_actions_are_not_mixed(catch, tmp_path, is_sampled):
    pair, other = (dataclasses.replace(catch[0], is_sampled=x) for x in (is_sampled, not is_sampled))
    row = pages.cells(pair, training.train(pair, tmp_path), rows.FOLDER)
    assert row["environment"] == "Catch-bsuite" + ", sampled actions" * is_sampled
    with pytest.raises(SystemExit, match="with other settings"):
        training.train(other, tmp_path)


def test_achievements_are_those_of_the_last_tenth():
    """Two seeds, twenty iterations, of which one had no episode."""
    x = np.zeros((2, 20))
    x[:, -2:] = [[30.0, np.nan], [10.0, 20.0]]
    assert training.achievements({"Achievements/eat_cow": x, "loss": x}) == {"eat_cow": 20.0}


@pytest.mark.slow
@pytest.mark.parametrize(("env", "low", "high"), [("CartPole-v1", 21.0, 24.0), ("Acrobot-v1", -500.0, -498.0)])
def test_random_actions(env, low, high):
    """CartPole falls after about 22 steps; Acrobot is hardly ever solved by chance."""
    assert low < training.random_return(env) < high
