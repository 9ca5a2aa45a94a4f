"""benchmarks/results.py: RESULTS.md says what the raw files say, and random actions score what they should."""

import dataclasses
import importlib.util
import json
import os
import sys

import jax
import numpy as np
import pytest
from helpers import ROOT, capture

from runner.files.record import RECIPES
from runner.report.statistics import iqm


def load():
    path = ROOT / "benchmarks" / "results.py"
    spec = importlib.util.spec_from_file_location("benchmark_results", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


results = load()
RAWS = {pair: results.read(pair.path) for pair in results.PAIRS if pair.path.exists()}


def test_the_pages_are_made_from_the_raw_files():
    for page in results.MADE:
        assert results.filled(page, RAWS) == page.read_text()
    texts = [page.read_text() for page in results.MADE]
    assert all(sum(results.NAMED.format(name) in text for text in texts) == 1 for name in results.blocks(RAWS))


@pytest.mark.parametrize("page", results.pages(), ids=lambda page: page.name)
def test_the_tables_of_the_pages_are_made_from_the_raw_files(page):
    rows = {pair: RAWS[pair] for pair in results.pages()[page] if pair in RAWS}
    text = page.read_text()
    assert results.with_table(text, results.BEGIN, results.table(rows, page.parent, results.SHORT)) == text
    assert text.count("benchmarks/results/raw/") >= len(rows) > 0


@pytest.mark.slow
def test_a_row_is_stale_if_its_program_changed(monkeypatch):
    (pair,) = (pair for pair in RAWS if pair.name == "ppo/CartPole-v1")
    machine = {"packages": {"jax": jax.__version__}, "device": "1 x cpu"}
    raw = RAWS[pair] | machine | {"program": results.program(pair.name)}
    assert results.find_stale({pair: raw}) == []
    config = dataclasses.replace(results.make_config(pair), num_epochs=7)
    monkeypatch.setattr(results, "make_config", lambda _: config)
    (line,) = results.find_stale({pair: raw})
    assert line.startswith("ppo/CartPole-v1: recorded at ")
    assert line.endswith("the program is another one today")
    (line,) = results.find_stale({pair: raw | {"packages": {"jax": "0.0.1"}}})
    assert line == "ppo/CartPole-v1: recorded with jax 0.0.1 on 1 x cpu, compare it there"
    del raw["program"]
    assert "before programs were compared" in results.find_stale({pair: raw})[0]


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
    assert results.likeness(ARRAYS, today) == found


def test_every_raw_file_has_a_row():
    paths = {pair.path for pair in RAWS}
    assert {path for path in results.RAW.iterdir() if path.suffix == ".json"} == paths


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
    trained = pair.num_seeds * raw["eval_env_steps"][-1]
    assert raw["timing"].get("env_steps_trained", trained) > 0.9 * trained, "all of what is trained is timed"
    spread = np.ptp(curves) + 1e-9
    assert abs(iqm(curves[:, -1]) - iqm(scores)) < 0.25 * spread, "the last evaluations are of the same policies"


@pytest.mark.parametrize("pair", RAWS, ids=lambda pair: pair.name)
def test_a_raw_file_is_of_the_preset_of_today(pair):
    """Options that came after the recording are off, and so were those that are recipes now."""
    now, recorded = results.settings(pair), dict(RAWS[pair]["config"])
    assert all(recorded.pop(name, off) == off for name, off in RECIPES.items())
    defaults = json.loads(json.dumps(dataclasses.asdict(importlib.import_module(pair.script).Config())))
    assert recorded == {name: now[name] for name in recorded}
    assert all(now[name] == defaults[name] for name in now.keys() - recorded.keys())


@pytest.mark.slow
@pytest.mark.parametrize(("env", "low", "high"), [("CartPole-v1", 21.0, 24.0), ("Acrobot-v1", -500.0, -498.0)])
def test_random_actions(env, low, high):
    """CartPole falls after about 22 steps; Acrobot is hardly ever solved by chance."""
    assert low < results.random_return(env) < high


def test_normalised_returns_are_0_if_random_and_1_if_published():
    pair = results.Pair("ppo", "anything", best=-100.0)
    raw = {
        "random_episode_return": -500.0,
        "eval_env_steps": [50, 100],
        "eval_episode_return": [[-500.0, -300.0], [-500.0, -500.0]],
        "final_episode_return": [-100.0, -300.0],
    }
    (returns,) = results.normalized_returns({pair: raw})["ppo"]
    np.testing.assert_allclose(returns[:, -1], [1.0, 0.5])
    np.testing.assert_allclose(returns[0, [0, 8, 13]], [0.0, 0.0, 0.25], atol=1e-12)  # 10, 50 and 75 % of the steps
    assert results.normalized_returns({results.Pair("ppo", "nothing published"): raw}) == {}


@pytest.mark.parametrize(
    ("iqm", "high", "verdict"), [(-149.96, -140.0, "yes"), (-150.1, -149.0, "within"), (-150.1, -150.05, "no")]
)
def test_a_bar_is_reached_missed_or_within_the_interval(iqm, high, verdict):
    assert results.reached({"iqm": iqm, "ci_high": high}, -150.0) == ["-150", verdict]
    assert results.reached({"iqm": iqm, "ci_high": high}, None) == ["", ""]


def test_the_bars_of_all_rows_with_a_goal_stand_in_one_table():
    _, _, *lines = results.bars(RAWS)
    assert len(lines) == sum(pair.bar is not None or pair.best is not None for pair in RAWS)


def test_the_probability_to_beat_a_published_number():
    assert results.beats([np.array([1.0, 1.0])])[0] == 0.5, "ties count half"
    share, low, high = results.beats([np.array([2.0, 2.0, 0.0, 0.0]), np.array([2.0, 2.0, 2.0, 2.0])])
    assert share == 0.75
    assert 0.5 <= low < share < high <= 1.0


def test_names_and_raw_files_are_of_one_pair_each():
    for values in ({pair.name for pair in results.PAIRS}, {pair.path for pair in results.PAIRS}):
        assert len(values) == len(results.PAIRS)


@pytest.mark.parametrize("pair", [pair for pair in results.PAIRS if pair.best is not None], ids=lambda pair: pair.name)
def test_the_best_number_stands_among_the_published_ones(pair):
    assert f"{pair.best:g}" in pair.published


def test_a_row_is_drawn_that_has_a_curve(monkeypatch):
    pictures = []
    monkeypatch.setattr(results, "plot", lambda path, raws: pictures.append(list(raws)))
    monkeypatch.setattr(results, "plot_aggregate", lambda path, samples: pictures.append(list(samples)))
    short, curve, *_ = results.FAMILIES[results.HEADLINE]
    raw = RAWS[curve]
    results.draw({short: raw | {"eval_env_steps": raw["eval_env_steps"][-4:]}, curve: raw})
    assert pictures == [[curve], [curve.script]]


def test_curves_are_told_apart_without_colour():
    assert {pair.script for pair in results.PAIRS} == results.LOOKS.keys()
    for name in ("linestyle", "marker"):
        assert len({str(look[name]) for look in results.LOOKS.values()}) == len(results.LOOKS)


def test_no_line_leads_from_the_untrained_policy_to_the_first_evaluation(monkeypatch):
    figures = []
    monkeypatch.setattr(results.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    pairs = [pair for pair in RAWS if pair.name in ("ppo/Acrobot-v1", "dqn/Acrobot-v1")]
    results.plot(None, {pair: RAWS[pair] for pair in pairs})
    (axes,) = figures[0].axes
    steps = [line.get_xdata() for line in axes.lines]
    assert [list(x) for x in steps[::2]] == [[0], [0]]
    assert all((x > 0).all() for x in steps[1::2])
    assert axes.get_legend() is None, "it may lie on a curve"
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["ppo", "dqn"]
    assert "log scale" in figures[0].get_supxlabel()


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [
        ([6_000_000, 60_000_000], [10_000_000, 20_000_000, 50_000_000]),
        ([400, 9_000], [500, 1_000, 5_000]),
        ([5_000, 500_000], [10_000, 100_000]),
    ],
)
def test_an_axis_of_env_steps_has_one_to_three_numbers_besides_0(steps, ticks):
    axes = results.Figure().add_subplot()
    results.scale_steps(axes, steps)
    assert list(axes.get_xticks()) == [0, *ticks]
    others = axes.get_xticks(minor=True)
    assert steps[0] <= min(others) <= max(others) <= 1.05 * steps[1]
    assert not set(others) & set(ticks)


def test_pairs_of_gpu_size_are_started_with_gpu_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RAW", tmp_path)  # nothing is recorded
    large = results.FAMILIES[results.GPU]
    assert results.pairs_to_train([], gpu=True) == large
    assert results.pairs_to_train([], gpu=False) == [pair for pair in results.PAIRS if pair not in large]
    (pair,) = results.pairs_to_train(["ppo/Breakout-MinAtar"], gpu=True)
    assert pair.name == "ppo/Breakout-MinAtar"
    with pytest.raises(ValueError, match="unknown: ppo/Breakout-MinAtar; add --gpu; there are ppo/CartPole-v1, "):
        results.pairs_to_train(["ppo/Breakout-MinAtar"], gpu=False)


def test_pairs_of_gpu_size_are_listed_before_they_are_measured():
    first, *missing = results.FAMILIES[results.GPU]
    lines = results.family_table(results.GPU, {first: RAWS[next(iter(RAWS))]})
    assert lines[-1] == f"Not measured yet: {', '.join(pair.name for pair in missing)}."
    assert first.env in lines[2]


@pytest.mark.parametrize(
    ("preset", "changes", "flags", "name"),
    [
        ("", (), [], "results"),
        ("small", (), ["--preset", "small"], "results-small"),
        (
            "small",
            (("layer_norm", True), ("gamma", 0.9)),
            ["--preset", "small", "--layer-norm", "--gamma", "0.9"],
            "results-small-layer_norm-True-gamma-0.9",
        ),
    ],
)
def test_a_pair_is_trained_with_its_preset_and_changes(preset, changes, flags, name, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(results, "call", lambda command: commands.append(command) or sys.exit())
    with pytest.raises(SystemExit):
        results.train(results.Pair("ppo", "brax/reacher", num_seeds=5, preset=preset, changes=changes), tmp_path)
    where = ["--out", str(tmp_path), "--name", name]
    assert commands == [["ppo.py", "--env", "brax/reacher", "--num-seeds", "5", *flags, *where]]


def test_a_changed_setting_is_in_the_name_of_a_pair():
    preset = results.Pair("dqn", "CartPole-v1")
    pair = dataclasses.replace(preset, changes=(("n_step", 1), ("double", False)))
    assert pair.name == "dqn/CartPole-v1/n_step=1,double=False"
    assert pair.path.name == "dqn-CartPole-v1-n_step-1-double-False.json"
    assert pair.flags == "--n-step 1 --no-double"
    assert results.settings(pair) == results.settings(preset) | {"n_step": 1, "double": False}
    assert results.settings(preset)["n_step"] != 1, "else the test says nothing"


def test_environments_of_benchmarks_are_registered():
    assert results.Pair("ppo_rnn", "CartPole-v1").command == ["variants/ppo_rnn.py"]
    hidden = results.Pair("ppo_rnn", "CartPole-hidden-velocity")
    assert hidden.command == ["benchmarks/hidden_velocity.py", "variants/ppo_rnn.py"]
    assert results.make_env(hidden.env).obs_shape == (2,)


def test_categorical_dqn_stands_beside_dqn():
    dqn = results.Pair("dqn", "CartPole-v1")
    raw = RAWS[next(pair for pair in RAWS if pair.name == dqn.name)]
    variant, alone = (results.Pair("categorical_dqn", env) for env in ("CartPole-v1", "Pendulum-v1"))
    raws = {dqn: raw | {"final_episode_return": [100.0, 200.0]}, alone: raw}
    raws[variant] = raw | {"final_episode_return": [150.0, 250.0]}
    _, _, *lines = results.beside_dqn(raws)
    assert len(lines) == 1
    assert lines[0].startswith("| CartPole-v1 | 150.0 | 100.0 | 200.0 | 150.0 | 0.75, ")


def test_an_option_stands_beside_the_row_of_its_preset():
    preset = results.Pair("dqn", "CartPole-v1")
    changed, other = (dataclasses.replace(preset, changes=((name, 1),)) for name in ("n_step", "num_envs"))
    raw = RAWS[next(pair for pair in RAWS if pair.name == preset.name)]
    raws = {preset: raw | {"final_episode_return": [100.0, 200.0]}, other: raw}
    raws[changed] = raw | {"final_episode_return": [150.0, 250.0]}
    *_, line = results.option_table({changed: raws[changed]}, raws)
    link = "[`dqn.py`](results/raw/dqn-CartPole-v1-n_step-1.json)"
    assert line.startswith(f"| {link} | CartPole-v1 | `--n-step 1` | 150.0 | 200.0 | 150.0 | 2 | 0.75, ")
    assert changed not in results.pages()[results.ROOT / "docs" / "dqn.md"]


@pytest.mark.parametrize("pair", results.FAMILIES[results.OPTIONS], ids=lambda pair: pair.name)
def test_an_option_changes_one_setting_of_a_row(pair):
    preset = dataclasses.replace(pair, changes=())
    assert preset.name in {pair.name for pair in results.PAIRS}
    before, after = results.settings(preset), results.settings(pair)
    assert [name for name in before if before[name] != after[name]] == [name for name, _ in pair.changes]
    assert len(pair.changes) == 1


@pytest.fixture
def catch(tmp_path, monkeypatch):
    """A pair, the folder of its run, and commands that write its files, of which the n-th says that it took n s."""
    pair = results.Pair("ppo", "Catch-bsuite", num_seeds=2)
    folder, commands = tmp_path / "ppo" / "Catch-bsuite" / "results", []
    summary = {"eval_episode_return": {"per_seed": [0.5, 1.0]}}
    summary |= dict.fromkeys(("device", "platform", "python", "packages"), "")

    def call(command):
        commands.append(command)
        folder.mkdir(parents=True, exist_ok=True)
        options = {"eval_sampled": "--eval-sampled" in commands[0]}
        record = {"config": results.settings(pair), "options": options, "git_commit": ""}
        (folder / "config.json").write_text(json.dumps(record))
        (folder / "summary.json").write_text(json.dumps(summary | {"timing": {"wall_seconds": len(commands)}}))
        np.savez(folder / "metrics.npz", eval_env_steps=[0, 9], eval_episode_return=[[0.0, 0.5], [0.0, 1.0]])

    monkeypatch.setattr(results, "call", call)
    monkeypatch.setattr(results, "evaluate", lambda *_: pytest.fail("played in this process"))
    monkeypatch.setattr(results, "in_a_process", lambda _, env: -0.64 if env == pair.env else None)
    return pair, folder


def test_a_process_of_its_own():
    assert results.in_a_process(eval, "__import__('os').getpid()") != os.getpid()


def test_random_actions_are_played_in_a_process_that_ends(catch, tmp_path):
    """On a GPU JAX takes most of the memory until its process ends: the next pair needs it."""
    assert results.train(catch[0], tmp_path)["random_episode_return"] == -0.64


def test_training_that_was_stopped_is_not_timed(catch, tmp_path):
    """A command times what it trained itself."""
    pair, folder = catch
    for _ in range(2):  # the second time there is nothing to train
        timed = results.train(pair, tmp_path)
        assert timed["timing"] == {"wall_seconds": 1}
    (folder / "timing.json").unlink()  # as a command leaves it that is killed
    for _ in range(2):
        assert results.train(pair, tmp_path)["timing"] == {}
    assert results.cells(pair, timed, results.FOLDER)["time"] == "1 s"
    assert results.cells(pair, timed | {"timing": {}}, results.FOLDER)["time"] == "not timed"


@pytest.mark.parametrize("is_sampled", [False, True])
def test_scores_of_sampled_and_of_greedy_actions_are_not_mixed(catch, tmp_path, is_sampled):
    pair, other = (results.replace(catch[0], is_sampled=x) for x in (is_sampled, not is_sampled))
    row = results.cells(pair, results.train(pair, tmp_path), results.FOLDER)
    assert row["environment"] == "Catch-bsuite" + ", sampled actions" * is_sampled
    with pytest.raises(SystemExit, match="with other settings"):
        results.train(other, tmp_path)


@pytest.mark.parametrize(("iqm", "goal", "is_reached"), [(4.951, 4.97, "no"), (4.966, 4.97, "yes"), (9.96, 10, "yes")])
def test_a_score_is_rounded_as_its_goal_is(iqm, goal, is_reached):
    assert results.reached({"iqm": iqm, "ci_high": iqm}, goal) == [f"{goal:g}", is_reached]


def test_unknown_pairs_are_refused():
    result = capture(results.main, "results.py", "--only", "ppo/Nothing-v0")
    assert result.status == 2
    assert "unknown: ppo/Nothing-v0" in result.stderr


def test_a_raw_file_is_written_so_that_it_reads_the_same():
    raw = {"a": 1, "curves": [[1.0, 2.0], [3.0, 4.0]], "nested": {"b": [1, 2]}}
    assert json.loads(results.dump(raw)) == raw


def test_achievements_are_those_of_the_last_tenth_and_stand_in_a_table():
    """Two seeds, twenty iterations, of which one had no episode; what was never achieved is not named."""
    x = np.zeros((2, 20))
    x[:, -2:] = [[30.0, np.nan], [10.0, 20.0]]
    metrics = {"Achievements/eat_cow": x, "Achievements/wake_up": x + 1, "Achievements/fly": 0 * x, "loss": x}
    achieved = results.achievements(metrics)
    assert achieved == {"eat_cow": 20.0, "wake_up": 21.0, "fly": 0.0}
    other = results.Pair("ppo_rnn", "Craftax", changes=(("cell", "lstm"),))
    measured = {results.Pair("ppo", "Craftax"): {"achievements": achieved}, other: {"achievements": {"fly": 0.4}}}
    lines = results.achievement_table(measured | {results.Pair("ppo", "Catch-bsuite"): {}})
    assert lines[0] == "| achievement | `ppo.py` | `variants/ppo_rnn.py --cell lstm` |"
    assert lines[2:] == ["| wake up | 21.0 | 0.0 |", "| eat cow | 20.0 | 0.0 |", "| fly | 0.0 | 0.4 |"]
