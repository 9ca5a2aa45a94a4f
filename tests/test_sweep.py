"""Sweeps: the settings that a flag stands for, and runs that train all of them in one program."""

import csv
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import call, capture, flags, path_of, saved_metrics, saved_state, small_run
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image

import ppo
import runner.devices.programs
import runner.main
from common.config import Fraction, NonNegative
from runner import evaluate
from runner.experiment import Experiment, short_texts
from runner.files.load import load
from runner.options.fields import Options
from runner.options.sweep import check_distinct, count_settings, make_settings, read_axes


@dataclass(frozen=True)
class Config:
    learning_rate: NonNegative = 0.1
    gamma: Fraction = 0.99
    target_entropy: float = -1.0
    num_envs: int = 4
    anneal_learning_rate: bool = True
    activation: str = "tanh"


def settings_of(*sweeps, num_samples=0, seed=0):
    return make_settings(read_axes(sweeps, num_samples, Config()), num_samples, seed)


# -- Settings ----------------------------------------------------------------------------------------------------------


def test_no_sweep_has_no_settings():
    assert settings_of() == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gamma=0.5", [0.5]),
        ("gamma=1e-4,3e-4, 1e-3", [1e-4, 3e-4, 1e-3]),
        ("target-entropy=-1,0,1", [-1, 0, 1]),
        ("gamma=log:1e-5:1e-2:4", [1e-5, 1e-4, 1e-3, 1e-2]),
        ("gamma=lin:0:1:5", [0, 0.25, 0.5, 0.75, 1]),
        ("learning-rate=2", [2]),
        ("learning_rate=2", [2]),
    ],
)
def test_values_of_one_field(text, expected):
    settings = settings_of(text)
    assert list(settings) == [text.partition("=")[0].replace("-", "_")]
    (values,) = settings.values()
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_fields_make_a_grid_whose_last_field_changes_fastest():
    settings = settings_of("gamma=0.5,1", "learning-rate=1,2,3")
    np.testing.assert_array_equal(settings["gamma"], [0.5, 0.5, 0.5, 1, 1, 1])
    np.testing.assert_array_equal(settings["learning_rate"], [1, 2, 3, 1, 2, 3])
    experiment = Experiment("script.py", None, Config(), Options(), settings)
    assert experiment.name_setting(4) == "gamma=1.0 learning_rate=2.0"


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_samples_lie_in_their_ranges_and_follow_the_seed(num_samples, seed):
    sweeps = ["gamma=lin:0.9:0.99", "learning_rate=log:1e-5:1e-2"]
    settings = settings_of(*sweeps, num_samples=num_samples, seed=seed)
    assert {x.shape for x in settings.values()} == {(num_samples,)}
    assert np.all((settings["gamma"] > 0.8999) & (settings["gamma"] < 0.9901))
    assert np.all((settings["learning_rate"] > 0.999e-5) & (settings["learning_rate"] < 1.001e-2))
    again = settings_of(*sweeps, num_samples=num_samples, seed=seed)
    assert all(np.array_equal(settings[name], again[name]) for name in settings)


def test_samples_are_uniform_on_their_scale():
    settings = settings_of("target_entropy=lin:2:4", "learning_rate=log:1e-4:1e-2", num_samples=10_000)
    quarters = np.arange(1, 4) / 4
    np.testing.assert_allclose(np.quantile(settings["target_entropy"], quarters), 2 + 2 * quarters, atol=0.05)
    np.testing.assert_allclose(np.quantile(np.log10(settings["learning_rate"]), quarters), -4 + 2 * quarters, atol=0.05)
    listed = settings_of("gamma=0.1,0.2", num_samples=10_000)["gamma"]
    np.testing.assert_allclose((listed == np.float32(0.1)).mean(), 0.5, atol=0.03)


@pytest.mark.parametrize(
    ("sweeps", "num_samples", "message"),
    [
        (["gama=1"], 0, "no such setting; did you mean gamma"),
        (
            ["num-envs=1,2"],
            0,
            r"only float settings can be swept \(learning_rate, gamma, target_.*\); start .* with --num-envs",
        ),
        (["anneal-learning-rate=1"], 0, "only float settings can be swept"),
        (["activation=tanh,relu"], 0, "only float settings can be swept"),
        (["gamma"], 0, "cannot be read"),
        (["gamma="], 0, "cannot be read"),
        (["gamma=1,,2"], 0, "cannot be read"),
        (["gamma=big"], 0, "cannot be read"),
        (["gamma=nan"], 0, "gamma must be finite as a float32 .*, not nan"),
        (["target-entropy=1e99"], 0, r"target_entropy must be finite as a float32 \(at most 3.4e38\), not 1e.99"),
        (["learning-rate=1e-3,-1e-3"], 0, "learning_rate must be at least 0, not -0.001"),
        (["gamma=lin:0.9:1.5:4"], 0, "gamma must be between 0 and 1, not 1.5"),
        (["gamma=0.9,1.5"], 2, "gamma must be between 0 and 1, not 1.5"),
        (["gamma=log:1:2"], 0, "must be log:LOW:HIGH:COUNT"),
        (["gamma=log:0:1:3"], 0, "LOW must be less than HIGH, and above 0"),
        (["gamma=lin:1:0:3"], 0, "LOW must be less than HIGH"),
        (["gamma=lin:0:1:1"], 0, "COUNT must be an integer of at least 2"),
        (["gamma=lin:0:1:2.5"], 0, "COUNT must be an integer"),
        (["gamma=lin:0:1:3"], 5, "as --sweep-samples is the count"),
        (["gamma=1", "gamma=2"], 0, "given twice"),
        ([], 5, "needs a --sweep"),
    ],
)
def test_what_cannot_be_swept_is_refused(sweeps, num_samples, message):
    with pytest.raises(ValueError, match=message):
        settings_of(*sweeps, num_samples=num_samples)


@pytest.mark.parametrize(
    ("sweep", "num_samples", "value"),
    [
        ("learning-rate=1e-3,2e-3,0.001", 0, "0.001"),
        ("learning-rate=0.1,0.1", 5, "0.1"),
        ("target-entropy=0,-0.0", 0, "-?0.0"),
        ("gamma=0.99,0.990000001", 0, "0.99"),
        ("gamma=lin:0.99:0.990000001:2", 0, "0.99"),
        ("gamma=lin:0.9:0.9000001:5", 0, "0.9"),
        ("gamma=log:0.9:0.900000001", 5, "0.9"),
    ],
)
def test_a_value_that_a_sweep_has_twice_is_refused(sweep, num_samples, value):
    """Trials are trained in float32: two values that are equal as such are refused too."""
    axes = read_axes([sweep], num_samples, Config())
    with pytest.raises(ValueError, match=rf"--sweep \w+ has {value}\d* more than once"):
        check_distinct(axes)


@pytest.mark.parametrize(("sweep", "num_samples"), [("gamma=lin:0:1:1000", 0), ("gamma=0.1,0.2", 9), ("gamma=0.5", 0)])
def test_values_that_differ_are_not_refused(sweep, num_samples):
    check_distinct(read_axes([sweep], num_samples, Config()))


def test_values_have_four_digits_or_those_that_tell_them_apart():
    settings = settings_of("learning-rate=log:1e-4:1e-2:4", "gamma=0.99,0.990001")
    experiment = Experiment("script.py", None, Config(), Options(), settings)
    names = [experiment.name_setting(index) for index in range(8)]
    assert names[2:4] == ["learning_rate=0.0004642 gamma=0.99", "learning_rate=0.0004642 gamma=0.990001"]
    assert experiment.setting(2)["learning_rate"] == float(str(np.float32(0.0004641588833612782))), "as exact as before"


@given(st.lists(st.floats(-1e30, 1e30), max_size=20))
def test_texts_of_different_numbers_differ(values):
    texts = short_texts(values)
    assert len(set(texts.values())) == len(set(values))
    assert all(float(text) == pytest.approx(value, rel=1e-3) for value, text in texts.items())


@pytest.mark.parametrize(
    ("sweeps", "num_samples", "expected"),
    [
        ([], 0, 1),
        (["gamma=0.1,0.2", "learning_rate=log:1e-4:1e-2:5"], 0, 10),
        (["gamma=0.1,0.2", "learning_rate=log:1e-4:1e-2"], 7, 7),
        (["gamma=lin:0.9:0.99:1000000000"], 0, 10**9),
    ],
)
def test_settings_are_counted_before_they_are_made(sweeps, num_samples, expected):
    assert count_settings(read_axes(sweeps, num_samples, Config()), num_samples) == expected


# -- Runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_sweep_trains_every_setting_with_every_seed(monkeypatch):
    script, rate = "ppo", "learning_rate"
    compiled, count = runner.devices.programs.compile_segment, []
    monkeypatch.setattr(runner.devices.programs, "compile_segment", lambda *args: count.append(args) or compiled(*args))
    env = ppo.Config().env
    arguments = small_run(script, name="sweep", num_seeds=2, seed=3)
    result = call(script, *arguments, "--sweep", f"{rate}=1e-3,1e-2", "--sweep", "gamma=0.5,0.9", pictures=True)
    assert result.status == 0, result
    assert len(count) == 1
    directory = Path("runs", script, env, "sweep")
    expected = {"checkpoint.safetensors", "config.json", "curve.csv", "curve.png", "metrics.npz", "metrics.png"}
    expected |= {"summary.json", "sweep.png"}
    assert {path.name for path in directory.iterdir()} == expected

    metrics, summary = saved_metrics(directory), json.loads((directory / "summary.json").read_text())
    np.testing.assert_array_equal(metrics["seed"], [3, 4] * 4)
    np.testing.assert_array_equal(metrics[f"sweep_{rate}"], np.float32([1e-3] * 4 + [1e-2] * 4))
    np.testing.assert_array_equal(metrics["sweep_gamma"], np.float32([0.5, 0.5, 0.9, 0.9] * 2))
    settings = [(setting[rate], setting["gamma"]) for setting in summary["settings"]]
    assert settings == [(1e-3, 0.5), (1e-3, 0.9), (1e-2, 0.5), (1e-2, 0.9)]
    scores = [setting["eval_episode_return"]["iqm"] for setting in summary["settings"]]
    means = [np.mean(setting["eval_episode_return"]["per_seed"]) for setting in summary["settings"]]
    np.testing.assert_allclose(scores, means, rtol=1e-6)
    assert [scores[i] for i in summary["ranking"]] == sorted(scores, reverse=True)
    best = settings[summary["ranking"][0]]
    lines = [line for line in result.stdout.splitlines() if line.startswith(f"{rate}=")]
    assert len(lines) == 4
    assert lines[0].startswith(f"{rate}={best[0]} gamma={best[1]} ")
    with (directory / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(float(row[rate]), float(row["gamma"])) for row in rows} <= set(settings)
    for name in ("sweep.png", "curve.png"):
        assert image.imread(directory / name).shape[0] > 300

    assert call(script, *flags(resume=str(directory), rank_by="worst-quarter")).status == 0
    again = json.loads((directory / "summary.json").read_text())
    worst = [setting["eval_episode_return"]["worst_quarter"] for setting in again["settings"]]
    assert [worst[i] for i in again["ranking"]] == sorted(worst, reverse=True)

    # The command that is printed trains the same trials alone: the same numbers, to rounding, at the beginning.
    rerun = shlex.split(summary["rerun"])
    assert result.stdout.count(summary["rerun"]) == 1
    assert rerun[:2] == ["python", path_of(script)]
    assert rerun[rerun.index("--eval-episodes") + 1] == "2"
    assert call(script, *rerun[2:], *flags(name="again")).status == 0
    alone, trials = saved_metrics(directory.parent / "again"), slice(2 * summary["ranking"][0], None)
    for name, x in alone.items():
        if x.ndim == 2:
            np.testing.assert_allclose(metrics[name][trials][:2, :2], x[:, :2], rtol=1e-4, atol=1e-5, err_msg=name)

    # A setting is evaluated again; the best one by default.
    for index, chosen in ((again["ranking"][0], []), (2, ["--setting-index", "2"])):
        assert capture(evaluate.main, "evaluate", str(directory), "--episodes", "1", *chosen).status == 0
        setting = dict(zip((rate, "gamma"), settings[index], strict=True))
        name = f"evaluation-{env}-{rate}={setting[rate]}-gamma={setting['gamma']}.json"
        assert json.loads((directory / name).read_text())["setting"] == setting

    # A trial is found again by seed and setting.
    config, _, state = load(directory, seed_index=1, setting_index=2)
    assert (getattr(config, rate), config.gamma) == (1e-2, 0.5)
    trial = jax.tree.leaves(state.params)[0]
    _, leaves = saved_state(directory)
    name = next(name for name in leaves if name.startswith(".params"))
    np.testing.assert_array_equal(trial, leaves[name][5])


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_sweep_is_resumed_and_may_not_change():
    arguments = small_run("ppo", name="sweep", eval_episodes=0)
    sweep = ["--sweep", "gamma=lin:0.5:0.9", "--sweep-samples", "3"]
    assert call("ppo", *arguments, *sweep).status == 0
    directory = Path("runs/ppo/CartPole-v1/sweep")
    before = saved_metrics(directory)
    result = call("ppo", "--resume", str(directory), *sweep, *flags(total_timesteps=3200, eval_episodes=0))
    assert result.status == 0, result
    assert "training return over the last tenth, 3 settings with 2 seeds each" in result.stdout
    after = saved_metrics(directory)
    np.testing.assert_array_equal(after["sweep_gamma"], before["sweep_gamma"])
    assert after["entropy"].shape == (6, 100)
    np.testing.assert_array_equal(after["entropy"][:, :40], before["entropy"])
    result = call("ppo", "--resume", str(directory), "--sweep", "gamma=0.1")
    assert result.status == 2
    assert "was started with sweep = ('gamma=lin:0.5:0.9',), not ('gamma=0.1',); leave the flag out" in result.stderr
    result = call("ppo", "--resume", str(directory), "--gamma", "0.5")
    message = "--gamma is also swept, by --sweep gamma=lin:0.5:0.9, and would have no effect; leave --gamma out"
    assert (result.status, result.stderr) == (2, f"error: {message}\n")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_setting_that_diverges_comes_last_and_is_named():
    sweep = ["--sweep", "learning-rate=1e30,1e-3"]
    result = call("ppo", *small_run("ppo", name="wild"), *sweep)
    assert result.status == 0, result
    lines = [line for line in result.stdout.splitlines() if line.startswith("learning_rate=")]
    assert lines[0].startswith("learning_rate=0.001")
    assert lines[1].endswith("  2 of 2 seeds diverged")
    assert "not finite), in no number above: seed 0 at learning_rate=1e+30, seed 1 at" in result.stdout
    summary = json.loads(Path("runs/ppo/CartPole-v1/wild/summary.json").read_text(), parse_constant=pytest.fail)
    assert [setting["diverged_seeds"] for setting in summary["settings"]] == [[0, 1], []]
    assert summary["ranking"] == [1, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_sweep_without_evaluation_is_ranked_by_training_return():
    env = "CartPole-v1:max_episode_steps=20"  # so that episodes end in the last tenth
    run = small_run("ppo", env=env, name="sweep", eval_episodes=0)
    result = call("ppo", *run, "--sweep", "learning-rate=1e-5,1e-2,3e-2")
    assert result.status == 0, result
    directory = Path("runs/ppo") / env / "sweep"
    summary, metrics = json.loads((directory / "summary.json").read_text()), saved_metrics(directory)
    assert summary["ranked_by"] == "training_return"
    scores = [setting["training_return"] for setting in summary["settings"]]
    assert [scores[i]["iqm"] for i in summary["ranking"]] == sorted((x["iqm"] for x in scores), reverse=True)
    returns, counts = metrics["episode_return"][0, -4:], metrics["num_episodes"][0, -4:]
    assert scores[0]["per_seed"][0] == pytest.approx(np.nansum(returns * counts) / counts.sum())


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_tie_is_said_also_of_a_run_that_has_a_value_twice(monkeypatch):
    """Runs of earlier versions may have one, and are resumed all the same."""
    with monkeypatch.context() as patch:
        patch.setattr(runner.main, "check_distinct", lambda axes: None)
        result = call("ppo", *small_run("ppo", name="tied"), "--sweep", "learning-rate=1e-3,1e-3")
    assert result.status == 0, result
    result = call("ppo", "--resume", "runs/ppo/CartPole-v1/tied", "--eval-episodes", "1")
    assert result.status == 0, result
    assert "\n2 settings tie for the best IQM; their order is that of the mean" in result.stdout
    result = call("ppo", *small_run("ppo", name="apart"), "--sweep", "learning-rate=1e-2,1e-9")
    assert "tie" not in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("sweep", ["num-envs=1,2", "gamma=0.9,0.9"])
def test_a_bad_sweep_is_one_line(sweep):
    result = call("ppo", *small_run("ppo"), "--sweep", sweep)
    assert result.status == 2
    assert result.stderr.count("\n") == 1
    assert not Path("runs").exists()
