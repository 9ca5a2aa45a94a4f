"""python -m runner.compare: its statistics against other implementations, and comparisons of written runs."""

import csv
import itertools
import json
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from helpers import call, capture, environ, execute, small_run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from runs import assert_refused
from scipy import stats

from runner.compare import __main__ as compare
from runner.compare import plots as plots_of_compare
from runner.compare.comparison import MAX_METHODS
from runner.compare.notes import FEW_SEEDS
from runner.report import plots, statistics
from runner.report.statistics import aggregate_iqm, iqm, performance_profile, probability_of_improvement

scores_of_seeds = hnp.arrays(np.float64, st.integers(1, 20), elements=st.integers(-5, 5))  # with many ties

# -- Statistics --------------------------------------------------------------------------------------------------------


@given(x=hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6)))
def test_iqm_is_the_trimmed_mean_of_scipy(x):
    np.testing.assert_allclose(iqm(x), stats.trim_mean(x, 0.25), rtol=1e-9, atol=1e-9)


@given(a=scores_of_seeds, b=scores_of_seeds)
@settings(max_examples=50)
def test_probability_of_improvement_is_mann_whitneys_u_over_n_m(a, b):
    probability, low, high = probability_of_improvement([(a, b)])
    assert probability == pytest.approx(stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)), abs=1e-12)
    if min(len(a), len(b)) == 1:
        assert np.isnan([low, high]).all()
    else:
        assert 0 <= low <= high <= 1
    assert probability_of_improvement([(b, a)])[0] == pytest.approx(1 - probability, abs=1e-12)
    assert probability_of_improvement([(np.exp(a), np.exp(b))]) == pytest.approx((probability, low, high), nan_ok=True)


def test_probability_of_improvement_worked_by_hand():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0])
    assert probability_of_improvement([(a, b)])[0] == pytest.approx((1 + 1.5 + 2) / 6)
    assert probability_of_improvement([(a, b), (b, a)])[0] == pytest.approx(0.5)  # the mean over environments
    assert probability_of_improvement([(a, a + 5)]) == (0, 0, 0)
    assert probability_of_improvement([(np.ones(4), np.ones(9))]) == (0.5, 0.5, 0.5)
    diverged = np.array([np.nan, 2.0])  # the worst, and a tie with another one
    assert probability_of_improvement([(a, diverged)])[0] == pytest.approx((1 + 1.5 + 2) / 6)
    assert probability_of_improvement([(diverged, np.array([np.nan, 1.0]))])[0] == pytest.approx((0.5 + 0 + 1 + 1) / 4)


def fixed(seed, shape, shift):
    return np.round(np.random.default_rng(seed).normal(shift, 1, shape), 2)


# rliable 1.2.0 (Agarwal et al.) with arch 7.2.0, pandas 2.3.3 and numpy 2.4.6 on a = fixed(0, (12, 3), 0.6) and
# b = fixed(1, (9, 3), 0.0), [runs, tasks]. Probabilities:
#     get_interval_estimates({"a,b": (a, b)}, metrics.probability_of_improvement, reps=20000, random_state=random_state)
# with random_state = RandomState(0), and the same of the first task, (a[:, :1], b[:, :1]); IQM:
#     get_interval_estimates({"a": a, "b": b}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=100000, ...)
# and profiles: create_performance_profile({"a": a, "b": b}, np.array([-1.0, 0.0, 1.0]), reps=50000).
RLIABLE = {
    "probability, task 0": (0.7777777778, 0.5555555556, 0.9537037037),
    "probability": (0.6851851852, 0.5401234568, 0.8148148148),
    "iqm of a": (0.4983333333, 0.2322222222, 0.7533472222),
    "iqm of b": (0.0513333333, -0.2233333333, 0.3073333333),
    "profile of a": ([0.972222, 0.722222, 0.222222], [0.916667, 0.583333, 0.111111], [1, 0.861111, 0.361111]),
    "profile of b": ([0.888889, 0.555556, 0.074074], [0.777778, 0.370370, 0], [1, 0.740741, 0.185185]),
}


def test_statistics_agree_with_rliable(monkeypatch):
    """Exactly in the values; in the ends of intervals to the resampling error, or a step of what a share can be."""
    monkeypatch.setattr(statistics, "NUM_RESAMPLES", 100_000)
    samples = {"a": list(fixed(0, (12, 3), 0.6).T), "b": list(fixed(1, (9, 3), 0.0).T)}
    pairs = list(zip(samples["a"], samples["b"], strict=True))
    found = {
        "probability, task 0": probability_of_improvement(pairs[:1]),
        "probability": probability_of_improvement(pairs),
    }
    for name, x in samples.items():
        found[f"iqm of {name}"] = aggregate_iqm(x)
        found[f"profile of {name}"] = performance_profile(x, np.array([-1.0, 0.0, 1.0]))
    assert found.keys() == RLIABLE.keys()
    for name, (value, low, high) in found.items():
        np.testing.assert_allclose(value, RLIABLE[name][0], atol=1e-6, err_msg=name)
        np.testing.assert_allclose((low, high), RLIABLE[name][1:], atol=0.004, err_msg=name)


@pytest.mark.parametrize(("num_seeds", "lowest", "highest"), [(3, 0.12, 0.30), (FEW_SEEDS, 0.02, 0.09)])
def test_an_interval_seldom_says_that_equal_methods_differ(num_seeds, lowest, highest, monkeypatch):
    monkeypatch.setattr(statistics, "NUM_RESAMPLES", 500)
    rng = np.random.default_rng(0)
    intervals = [probability_of_improvement([rng.normal(size=(2, num_seeds))])[1:] for _ in range(500)]
    assert lowest < np.mean([low > 0.5 or high < 0.5 for low, high in intervals]) < highest


@given(
    x=hnp.arrays(np.float64, (3, 5), elements=st.floats(-1, 2)), y=hnp.arrays(np.float64, 7, elements=st.floats(-1, 2))
)
@settings(max_examples=30)
def test_environments_weigh_the_same_in_aggregates(x, y):
    samples = [*x, y]
    score, low, high = aggregate_iqm(samples)
    pooled = alike(samples)
    assert score == pytest.approx(stats.trim_mean(pooled, 0.25), abs=1e-12)
    assert pooled.min() - 1e-9 <= low <= high <= pooled.max() + 1e-9
    taus = np.array([-1.5, 0.0, 0.5, 2.0])
    share, low, high = performance_profile(samples, taus)
    np.testing.assert_allclose(share, [np.mean(pooled > tau) for tau in taus])
    assert share[0] == low[0] == high[0] == 1
    assert share[3] == low[3] == high[3] == 0


def alike(samples):
    """All scores, those of each environment as often as it takes for all environments to have equally many."""
    return np.concatenate([np.repeat(x, np.lcm.reduce(list(map(len, samples))) // len(x)) for x in samples])


def test_aggregates_agree_with_the_probability_of_improvement():
    """A wins with 20 seeds where it is a little better, and loses with 4 where it is much worse."""
    a, b = [np.full(20, 0.9), np.full(4, 0.1)], [np.full(20, 0.8), np.full(4, 0.7)]
    assert (aggregate_iqm(a)[0], aggregate_iqm(b)[0]) == pytest.approx((0.5, 0.75))
    assert performance_profile(a, np.array([0.5]))[0] == pytest.approx(0.5)
    assert probability_of_improvement(list(zip(a, b, strict=True)))[0] == 0.5


def test_aggregates_leave_out_infinite_scores_and_nan_has_none():
    x = np.array([-np.inf, 1.0, 2.0, np.inf])
    assert aggregate_iqm([x, np.ones(3)])[0] == pytest.approx(iqm(alike([x, np.ones(3)])))
    assert np.isnan(aggregate_iqm([np.where(x == np.inf, np.nan, x), np.ones(3)])[0])


def test_environments_are_resampled_apart():
    """Seeds that agree in each environment leave nothing to resample, however far environments are apart."""
    samples = [np.full(4, 0.0), np.full(4, 1.0)]
    assert aggregate_iqm(samples) == (0.5, 0.5, 0.5)
    assert [x.tolist() for x in performance_profile(samples, np.array([0.5]))] == [[0.5], [0.5], [0.5]]


def test_a_single_seed_in_an_environment_gives_no_interval():
    score, low, high = aggregate_iqm([np.array([1.0]), np.array([1.0, 2.0])])
    assert (score, np.isnan(low), np.isnan(high)) == (pytest.approx(1.0), True, True)
    share, low, high = performance_profile([np.array([1.0])], np.array([0.0, 1.0]))
    assert share.tolist() == [1, 0]
    assert np.isnan([low, high]).all()


# -- Comparisons -------------------------------------------------------------------------------------------------------


def test_lines_differ_in_colour_style_and_marker():
    for properties in (plots.COLORS, plots.STYLES, plots.MARKERS):
        assert len(set(properties)) == MAX_METHODS


NUM_ITERATIONS, NUM_EVALUATIONS = 20, 5


def write_run(
    path,
    final,
    algorithm="ppo",
    env="CartPole-v1",
    is_evaluated=True,
    steps=2000,
    trials=None,
    parts=None,
    sweep=None,
    num_seeds=None,
    seed=0,
    options=(),
    **fields,
):
    """A folder as a run leaves it.

    final: last score of each trial; trials: those of a part, which goes into its own folder; sweep: values of
    learning_rate, one for each trial; seed: the first one.
    """
    directory, final = Path(path), np.array(final, np.float32)
    seeds = seed + np.arange(len(final)) % (num_seeds or len(final))
    record = {
        "script": f"/nowhere/{algorithm}.py",
        "config": {"env": env, "learning_rate": 0.001, **fields},
        "options": {"num_seeds": num_seeds or len(final)} | dict(options),
        "parts": parts or [[0, len(final)]],
        "wandb_id": "",
    }
    shape = (len(final), NUM_ITERATIONS)
    arrays = {
        "env_steps": np.linspace(0, steps, NUM_ITERATIONS + 1)[1:].astype(np.int64),
        "seed": seeds.astype(np.uint32),
        "episode_return": np.linspace(0, final - 1, NUM_ITERATIONS).T,  # training scores are about 1 lower
        "num_episodes": np.ones(shape, np.int32),
    }
    arrays["episode_return"][:, -2:] = final[:, None] - 1
    if sweep is not None:
        arrays["sweep_learning_rate"] = np.array(sweep, np.float32)
    if is_evaluated:
        arrays["eval_env_steps"] = np.linspace(0, steps, NUM_EVALUATIONS).astype(np.int64)
        arrays["eval_episode_return"] = np.linspace(np.zeros(len(final)), final, NUM_EVALUATIONS).T
        arrays["eval_episode_length"] = arrays["eval_episode_return"]
    part = directory
    if trials is not None:
        part = directory / "parts" / f"trials-{trials.start}-to-{trials.stop - 1}"
        arrays = {k: x if k.endswith("env_steps") else x[trials.start : trials.stop] for k, x in arrays.items()}
    part.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(record))
    np.savez(part / "metrics.npz", **arrays)
    return path


def run(*words):
    """The command line in this process."""
    return capture(compare.main, "compare", *map(str, words))


def compared(*words):
    result = run(*words)
    assert (result.status, result.stderr) == (0, ""), result
    return result.stdout


def values():
    """compare.csv: (environment, method, other, statistic) -> its row."""
    with open("compare.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["environment"], row["method"], row["other"], row["statistic"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def notes(stdout):
    return [line.removeprefix("note: ") for line in stdout.splitlines() if line.startswith("note: ")]


def methods(stdout, title="CartPole-v1: final"):
    """First column of a printed table, in its order."""
    rows = stdout.split(f"\n{title}")[1].split("\n\n")[0].splitlines()[2:]
    return [re.split(r"  +", row)[0] for row in rows]


@pytest.fixture
def figures():
    """Every figure that is saved."""
    saved, save = [], Figure.savefig

    def keep(figure, *args, **options):
        saved.append(figure)
        save(figure, *args, **options)

    with mock.patch.object(Figure, "savefig", keep):
        yield saved


A, B = [480, 500, 500, 470, 500, 490, 500, 500], [300, 500, 420, 480, 350, 410, 390, 400]


def test_two_runs(folder):
    write_run("a", A), write_run("b", B, "dqn")
    stdout = compared("b", "a", "--bar", 480)  # the score of a seed of each
    assert {path.name for path in folder.iterdir()} == {"a", "b", "compare.png", "compare.md", "compare.csv"}
    assert methods(stdout) == ["ppo", "dqn"]  # best first
    assert notes(stdout) == []
    table = values()
    for name, scores in (("ppo", A), ("dqn", B)):
        mean, middle, share = (table["CartPole-v1", name, "", x] for x in ("mean", "iqm", "share >= 480"))
        assert float(mean["value"]) == pytest.approx(np.mean(scores), rel=1e-5)
        assert float(middle["value"]) == pytest.approx(stats.trim_mean(scores, 0.25), rel=1e-5)
        assert float(middle["ci_low"]) < float(middle["value"]) < float(middle["ci_high"])
        assert float(share["value"]) == np.mean(np.array(scores) >= 480)
        worst, least = (table["CartPole-v1", name, "", x] for x in ("worst quarter", "min"))
        assert float(worst["value"]) == pytest.approx(np.mean(sorted(scores)[:2]), rel=1e-5)
        assert float(worst["ci_low"]) <= float(worst["value"]) < float(worst["ci_high"])
        assert float(least["value"]) == min(scores)
        assert (mean["seeds"], mean["env_steps"], mean["score"]) == ("8", "2000", "evaluation")
    pair = table["CartPole-v1", "ppo", "dqn", "probability of improvement"]
    assert float(pair["value"]) == pytest.approx(stats.mannwhitneyu(A, B).statistic / 64, rel=1e-5)
    assert 0.5 < float(pair["ci_low"]) < float(pair["value"]) < float(pair["ci_high"]) <= 1
    markdown = Path("compare.md").read_text()
    for row in stdout.splitlines():
        cells = re.split(r"  +", row)
        if len(cells) > 3:
            assert f"| {' | '.join(cells)} |" in markdown
    with Image.open("compare.png") as picture:
        assert picture.format == "PNG"


def texts_of(figure):
    """Each visible text of a figure with its place in pixels."""
    FigureCanvasAgg(figure).draw()
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return [(text.get_text(), text.get_window_extent()) for text in shown]


def check_texts(figure, labels):
    """The labels stand in the legend and in P(A > B), no two texts overlap, and all is in the picture."""
    texts = [(text.replace("\n", " "), box) for text, box in texts_of(figure)]
    pairs = {f"{a} > {b}" for a in labels for b in labels}
    named = [(text, box) for text, box in texts if text in pairs or text in labels or " " in text]
    assert sum(text in pairs or text in labels for text, _ in named) == len(labels) * (len(labels) + 1) / 2
    for (one, first), (other, second) in itertools.combinations(named, 2):
        assert not first.overlaps(second), (one, other)
    box, size = figure.get_tightbbox(), figure.get_size_inches()
    assert -0.01 < box.x0 < box.x1 < size[0] + 0.01
    assert -0.01 < box.y0 < box.y1 < size[1] + 0.01


@pytest.mark.parametrize(("num_runs", "width"), [(2, 0), (6, 0), (3, 3.0), (3, 7.0)])
@pytest.mark.parametrize("label", ["m{}", "the method that has the long name {}"])
def test_texts_lie_in_the_picture_and_overlap_with_nothing(num_runs, width, label, folder, figures):
    """The text is as large in any width."""
    envs = ["CartPole-v1", "Acrobot-v1"]
    runs = [write_run(f"{i}-{env}", np.array(A) - 50 * i, env=env) for i in range(num_runs) for env in envs]
    labels = [label.format(i) for i in range(num_runs)]
    words = ["--labels", *np.repeat(labels, 2), "--width", width, "--bounds", *(f"{env}=0:500" for env in envs)]
    compared(*runs, *words)
    (figure,) = figures
    check_texts(figure, labels)
    assert figure.get_size_inches()[0] == pytest.approx(width or plots_of_compare.WIDTH)
    assert {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()} == {7.0, 8.0}


@pytest.mark.parametrize("num_methods", [1, 2, 3, 6])
def test_the_probabilities_of_the_table_are_a_panel(num_methods, folder, figures):
    """One row for each pair: the point, the interval and a line at 0.5."""
    scores = [300 + 20 * i + np.arange(8) * 13 % (40 + i) for i in range(num_methods)]
    compared(*(write_run(f"{i}", x, f"method{i}") for i, x in enumerate(scores)))
    pairs = [(key, row) for key, row in values().items() if key[3] == "probability of improvement"]
    assert len(figures[0].axes) == 1 + bool(pairs)
    if not pairs:
        return
    axes = figures[0].axes[1]
    assert axes.get_title() == "P(A > B)"
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"{a} > {b}" for (_, a, b, _), _ in pairs]
    line, points = axes.lines
    assert set(line.get_xdata()) == {0.5}
    np.testing.assert_allclose(points.get_xdata(), [float(row["value"]) for _, row in pairs], rtol=1e-5)
    drawn = [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()]
    np.testing.assert_allclose(drawn, [(float(x["ci_low"]), float(x["ci_high"])) for _, x in pairs], rtol=1e-5)
    assert axes.yaxis_inverted(), "the first pair is on top"


def test_environments_make_panels_and_aggregates(folder, figures):
    envs, ranges = ("CartPole-v1", "Acrobot-v1"), {"CartPole-v1": (0, 500), "Acrobot-v1": (-500, -77)}
    scores = {
        ("ppo", envs[0]): A,
        ("ppo", envs[1]): [-90, -80, -77],
        ("dqn", envs[0]): B,
        ("dqn", envs[1]): [-85, -99, -80],
    }
    runs = [write_run(f"{name}-{env}", x, name, env) for (name, env), x in scores.items()]
    runs = [runs[i] for i in (0, 2, 3, 1)]  # the methods of the second environment are given the other way round
    runs.append(write_run("sac", A, "sac"))
    bounds = [f"{env}={low}:{high}" for env, (low, high) in ranges.items()]
    stdout = compared(*runs, "--bounds", *bounds, "--bar", "CartPole-v1=475")
    table = values()
    for name in ("ppo", "dqn"):
        pooled = alike([(np.array(scores[name, env]) - ranges[env][0]) / np.ptp(ranges[env]) for env in envs])
        found = table["all", name, "", "iqm"]
        assert float(found["value"]) == pytest.approx(stats.trim_mean(pooled, 0.25), rel=1e-5)
        assert float(found["ci_low"]) <= float(found["value"]) <= float(found["ci_high"])
        assert found["seeds"] == "11"
    assert ("all", "sac", "", "iqm") not in table
    assert ("Acrobot-v1", "ppo", "", "share >= 475") not in table
    both = [stats.mannwhitneyu(scores["ppo", env], scores["dqn", env]).statistic for env in envs]
    pair = table["all", "ppo", "dqn", "probability of improvement"]
    assert float(pair["value"]) == pytest.approx((both[0] / 64 + both[1] / 9) / 2, rel=1e-5)
    assert "not run in every environment, so not in what is taken over all of them: sac" in notes(stdout)
    (figure,) = figures
    titles = [*envs, "performance profiles", "P(A > B), mean over environments"]
    assert [axes.get_title() for axes in figure.axes] == titles
    profile = {line.get_label(): line.get_xydata() for line in figure.axes[2].lines}
    assert profile.keys() == {"ppo", "dqn"}
    pooled = alike([(np.array(scores["dqn", env]) - ranges[env][0]) / np.ptp(ranges[env]) for env in envs])
    np.testing.assert_allclose(
        profile["dqn"][:, 1], [np.mean(pooled > tau + 1e-7) for tau in profile["dqn"][:, 0]], atol=0.1
    )


def test_bounds_that_lack_an_environment_give_no_aggregate(folder, figures):
    write_run("a", A), write_run("b", A, env="Acrobot-v1")
    stdout = compared("a", "b", "--bounds", "CartPole-v1=0:500")
    assert notes(stdout) == ["no aggregate over environments: --bounds has no ENV=LOW:HIGH for Acrobot-v1"]
    assert not any(environment == "all" for environment, *_ in values())
    assert len(figures[0].axes) == 2


@pytest.mark.parametrize("is_mixed", [True, False])
def test_without_evaluation_training_returns_are_compared(is_mixed, folder, figures):
    write_run("a", A, is_evaluated=is_mixed), write_run("b", B, "dqn", is_evaluated=False)
    stdout = compared("a", "b")
    which = " of dqn" if is_mixed else ""
    assert notes(stdout) == [
        f"CartPole-v1: no evaluation{which}, so all scores are training returns over the last tenth"
    ]
    assert "CartPole-v1: final episode return, last tenth of training\n" in stdout
    assert float(values()["CartPole-v1", "ppo", "", "mean"]["value"]) == pytest.approx(np.mean(A) - 1, rel=1e-5)
    assert "(training)" in figures[0].axes[0].get_ylabel()
    assert "(training)" in Path("compare.md").read_text() or notes(stdout)[0] in Path("compare.md").read_text()


@pytest.mark.parametrize(("sampled", "name"), [((), "greedy "), (("a",), ""), (("a", "b"), "sampled ")])
def test_evaluations_of_sampled_actions_are_called_so(sampled, name, folder, figures):
    for path, scores, algorithm in (("a", A, "ppo"), ("b", B, "dqn")):
        write_run(path, scores, algorithm, options={"eval_sampled": path in sampled})
    stdout = compared("a", "b")
    assert f"CartPole-v1: final episode return, last {name}evaluation\n" in stdout
    assert f"({name}evaluation)" in figures[0].axes[0].get_ylabel()
    mixed = "CartPole-v1: evaluations differ in eval_sampled: True of ppo; False of dqn"
    assert notes(stdout) == ([mixed] if len(sampled) == 1 else [])


@pytest.mark.parametrize(("name", "value", "default"), [("eval_max_steps", 50, 10_000), ("eval_episodes", 4, 32)])
def test_evaluations_that_differ_are_said(name, value, default, folder):
    write_run("a", A, options={name: value}), write_run("b", B, "dqn", options={"eval_every": "0"})
    assert notes(compared("a", "b")) == [f"CartPole-v1: evaluations differ in {name}: {value} of ppo; {default} of dqn"]


def test_an_environment_keeps_its_evaluation_beside_one_without(folder, figures):
    write_run("a", A), write_run("b", B, env="Acrobot-v1", is_evaluated=False)
    compared("a", "b")
    labels = [axes.get_ylabel() for axes in figures[0].axes]
    assert "greedy evaluation" in labels[0]
    assert "training" in labels[1]


# -- Labels of methods -------------------------------------------------------------------------------------------------


def test_what_differs_makes_the_labels(folder):
    write_run("a", A, gamma=0.99, total_timesteps=5), write_run("b", B, gamma=0.9, total_timesteps=5)
    write_run("c", B, env="Acrobot-v1", gamma=0.9, total_timesteps=7), write_run("d", B, "dqn", gamma=0.5)
    stdout = compared("a", "b", "c", "d")
    assert set(methods(stdout)) == {"ppo gamma=0.99", "ppo gamma=0.9", "dqn"}
    assert methods(stdout, "Acrobot-v1: final") == ["ppo gamma=0.9"]


def test_folders_make_the_labels_where_settings_do_not(folder):
    write_run("one", A), write_run("two", B)
    assert methods(compared("one", "two")) == ["ppo one", "ppo two"]
    write_run("two", B, gamma=0.9, tau=0.1, clip_eps=0.1)  # too many settings for a label
    assert methods(compared("one", "two")) == ["ppo one", "ppo two"]
    assert methods(compared("one", "two", "--labels", "new", "old")) == ["new", "old"]


def test_settings_of_a_sweep_are_methods(folder, figures):
    rates = np.repeat([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064], 2)
    write_run("sweep", np.arange(14), num_seeds=2, sweep=rates)
    write_run("single", [100.0, 101.0], learning_rate=0.5)
    stdout = compared("sweep", "single")
    expected = [f"ppo learning_rate={x}" for x in (0.5, 0.064, 0.032, 0.016, 0.008, 0.004, 0.002, 0.001)]
    assert methods(stdout) == expected
    assert float(values()["CartPole-v1", "ppo learning_rate=0.004", "", "mean"]["value"]) == 4.5
    assert "the picture and P(A > B) have the best 6 of 8 methods, by IQM" in notes(stdout)
    axes, pairs = figures[0].axes
    assert len(pairs.get_yticks()) == 15
    assert axes.get_title() == "CartPole-v1, the best 6 of 8"
    assert {line.get_label() for line in axes.lines} == set(expected[:6])
    assert methods(compared("sweep", "single", "--labels", "s", "x"))[:2] == ["x", "s learning_rate=0.064"]


def test_settings_have_the_digits_that_tell_them_apart(folder):
    write_run("sweep", [1, 2, 3, 4], num_seeds=2, sweep=np.repeat([1e-3 / 3, 2e-3 / 3], 2))
    write_run("single", [5, 6], learning_rate=0.1 / 3)
    rates = ("0.03333", "0.0006667", "0.0003333")
    assert methods(compared("sweep", "single")) == [f"ppo learning_rate={x}" for x in rates]
    write_run("near", [7, 8], learning_rate=0.1 / 3 + 1e-7)
    assert methods(compared("single", "near")) == ["ppo learning_rate=0.0333334", "ppo learning_rate=0.0333333"]


def test_a_setting_that_a_random_sweep_drew_twice_counts_once(folder):
    write_run("sweep", [1, 2, 1, 2, 5, 6], num_seeds=2, sweep=np.repeat([0.1, 0.1, 0.2], 2))
    compared("sweep")
    assert values()["CartPole-v1", "ppo learning_rate=0.1", "", "mean"]["seeds"] == "2"


# -- Runs that are not whole -------------------------------------------------------------------------------------------


def test_an_interrupted_run_of_several_parts(folder):
    """The trials that are there, at the env steps that all of them have."""
    parts = [[0, 3], [3, 6], [6, 8]]
    write_run("a", A, trials=range(3), parts=parts, num_seeds=8)
    write_run("a", A, trials=range(3, 6), parts=parts, num_seeds=8)
    path = Path("a/parts/trials-3-to-5/metrics.npz")
    with np.load(path) as file:
        short = {name: x[..., : {NUM_ITERATIONS: 10, NUM_EVALUATIONS: 3}.get(x.shape[-1])] for name, x in file.items()}
    np.savez(path, **short)
    stdout = compared("a")
    row = values()["CartPole-v1", "ppo", "", "mean"]
    assert (row["seeds"], row["env_steps"]) == ("6", "1000")
    assert float(row["value"]) == pytest.approx(np.mean(A[:6]) / 2, rel=1e-5)
    assert "CartPole-v1, ppo: the run was interrupted, 6 of 8 seeds have been trained so far" in notes(stdout)


def test_an_extended_run_of_several_parts_that_was_interrupted(folder):
    """Beside what it had saved when it ended before."""
    parts = [[0, 4], [4, 8]]
    write_run("a", np.array(A) / 2, parts=parts, steps=1000)
    for trials in (range(4), range(4, 8)):
        write_run("a", A, trials=trials, parts=parts)
    compared("a")
    row = values()["CartPole-v1", "ppo", "", "mean"]
    assert (row["seeds"], row["env_steps"]) == ("8", "2000")
    assert float(row["value"]) == pytest.approx(np.mean(A), rel=1e-5)


def without_evaluations(path, keep):
    """Leave out evaluations of a run."""
    with np.load(path) as file:
        np.savez(path, **{name: x[..., keep] if name.startswith("eval_") else x for name, x in file.items()})


def test_evaluated_only_before_training_is_not_evaluated(folder):
    write_run("a", A), write_run("b", B, "dqn")
    without_evaluations("b/metrics.npz", slice(0, 1))
    stdout = compared("a", "b")
    assert notes(stdout) == [
        "CartPole-v1: no evaluation of dqn, so all scores are training returns over the last tenth"
    ]
    assert float(values()["CartPole-v1", "dqn", "", "mean"]["value"]) == pytest.approx(np.mean(B) - 1, rel=1e-5)


def test_one_seed_has_no_interval(folder):
    write_run("a", [500.0]), write_run("b", B, "dqn")
    stdout = compared("a", "b", "--bounds", "CartPole-v1=0:500")
    table = values()
    assert table["CartPole-v1", "ppo", "", "iqm"]["ci_low"] == ""
    assert table["CartPole-v1", "dqn", "", "iqm"]["ci_low"] != ""
    assert table["CartPole-v1", "ppo", "dqn", "probability of improvement"]["ci_high"] == ""
    assert table["all", "ppo", "", "iqm"]["ci_high"] == ""
    assert "CartPole-v1, ppo: one seed, so no interval" in notes(stdout)


def test_few_seeds_and_different_lengths_are_said(folder):
    write_run("a", A[:3]), write_run("b", B, "dqn", steps=5000)
    assert notes(compared("a", "b")) == [
        "CartPole-v1: the runs have 2,000 to 5,000 env steps; each is scored at its own end",
        "intervals of fewer than 8 seeds are too short: they miss the truth more often than 5 %",
    ]
    assert values()["CartPole-v1", "dqn", "", "mean"]["env_steps"] == "5000"


@pytest.mark.parametrize("is_evaluated", [True, False])
@pytest.mark.parametrize("num_diverged", [1, 8])
def test_a_seed_without_a_score_is_the_worst(is_evaluated, num_diverged, folder):
    scores = [np.nan] * num_diverged + [500] * (8 - num_diverged)
    write_run("a", scores, is_evaluated=is_evaluated), write_run("b", B, "dqn", is_evaluated=is_evaluated)
    stdout = compared("a", "b", "--bar", 0, "--bounds", "CartPole-v1=0:500")
    table = values()
    assert table["CartPole-v1", "ppo", "", "iqm"]["value"] == table["all", "ppo", "", "iqm"]["value"] == ""
    assert float(table["CartPole-v1", "ppo", "", "share >= 0"]["value"]) == 1 - num_diverged / 8
    pair = ("dqn", "ppo") if num_diverged == 8 else ("ppo", "dqn")
    assert float(table["CartPole-v1", *pair, "probability of improvement"]["value"]) >= 0.5
    assert any(
        note.startswith(f"CartPole-v1, ppo: {num_diverged} of 8 seeds have no final score") for note in notes(stdout)
    )


# -- Seeds that diverged -----------------------------------------------------------------------------------------------


def add_metric(path, **metrics):
    with np.load(path) as file:
        np.savez(path, **dict(file), **metrics)


DIVERGED = "seeds diverged: what they score counts in no number, only curves show it"


def test_a_seed_that_diverged_has_no_score(folder):
    """Though its policy has one: of NaN argmax is the first action."""
    write_run("a", A), write_run("b", B, "dqn")
    has_diverged = np.isin(np.arange(8), [1, 3])
    add_metric("a/metrics.npz", is_healthy=~has_diverged)
    stdout, table = compared("a", "b"), values()
    assert f"CartPole-v1, ppo: 2 of 8 {DIVERGED}" in notes(stdout)
    assert methods(stdout) == ["dqn", "ppo"], "a sweep would rank it last too"
    assert table["CartPole-v1", "ppo", "", "mean"]["value"] == ""
    scores = np.where(has_diverged, -np.inf, A)
    pair = table["CartPole-v1", "ppo", "dqn", "probability of improvement"]
    assert float(pair["value"]) == pytest.approx(stats.mannwhitneyu(scores, B).statistic / 64, rel=1e-5)


def test_a_metric_without_numbers_is_no_divergence(folder):
    add_metric(write_run("a", A) + "/metrics.npz", told=np.full((8, NUM_ITERATIONS), np.nan))
    assert notes(compared("a")) == []


# -- Seeds of several runs ---------------------------------------------------------------------------------------------


def test_seeds_of_runs_with_one_label_are_pooled(folder):
    write_run("a", A[:5]), write_run("b", A[5:], seed=5), write_run("c", B, "dqn")
    stdout, table = compared("a", "c", "b", "--labels", "ours", "theirs", "ours"), values()
    row = table["CartPole-v1", "ours", "", "mean"]
    assert (row["seeds"], float(row["value"])) == ("8", pytest.approx(np.mean(A), rel=1e-5))
    pair = table["CartPole-v1", "ours", "theirs", "probability of improvement"]
    assert float(pair["value"]) == pytest.approx(stats.mannwhitneyu(A, B).statistic / 64, rel=1e-5)
    assert notes(stdout) == [
        "CartPole-v1, ours: the seeds of 2 runs are pooled, at the env steps that all of these have"
    ]


def test_pooled_runs_of_different_lengths_meet_where_both_are(folder):
    """One was killed half way, and has 3 of 5 evaluations; the settings of a sweep are pooled one by one."""
    rates = np.repeat([0.1, 0.2], 2)
    (
        write_run("a", [2, 4, 6, 8], num_seeds=2, sweep=rates),
        write_run("b", [2, 4, 6, 8], num_seeds=2, seed=7, sweep=rates),
    )
    with np.load("b/metrics.npz") as file:
        short = {name: x[..., : {NUM_ITERATIONS: 10, NUM_EVALUATIONS: 3}.get(x.shape[-1])] for name, x in file.items()}
    np.savez("b/metrics.npz", **short)
    compared("a", "b", "--labels", "x", "x")
    row = values()["CartPole-v1", "x learning_rate=0.2", "", "mean"]
    assert (row["seeds"], row["env_steps"], float(row["value"])) == ("4", "1000", 3.5)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"seed": 8, "gamma": 0.9}, "differ in gamma (0.99, 0.9)"),
        ({"seed": 8, "algorithm": "dqn"}, "differ in script (ppo, dqn)"),
        ({"seed": 8, "options": {"eval_max_steps": 50}}, "differ in eval_max_steps (10000, 50)"),
        ({"seed": 8, "options": {"matmul_precision": "tf32"}}, "differ in matmul_precision (float32, tf32)"),
        ({"seed": 7}, "share seed 7"),
        ({"seed": 8, "a": 1, "b": 1, "c": "\n"}, "differ in a (None, 1), b (None, 1) and 1 more"),
    ],
)
def test_runs_with_one_label_that_cannot_be_pooled_are_refused(changes, text, folder):
    write_run("a", A, gamma=0.99), write_run("b", B, **{"gamma": 0.99} | changes)
    assert_refused(
        run("a", "b", "--labels", "A", "A"),
        f"2 runs of CartPole-v1 have the label 'A' and {text}; give each run its own with --labels",
    )


# -- Bad input ---------------------------------------------------------------------------------------------------------


REFUSED = {
    "runs": ([], "name the folders"),
    "no folder": (["nowhere"], "no run in nowhere"),
    "no run": (["empty"], "no run in empty"),
    "damaged": (["damaged"], "damaged/metrics.npz is damaged"),
    "text": (["text"], "text/metrics.npz is damaged"),
    "no metrics": (["new"], "new/metrics.npz does not exist"),
    "wrong shape": (["shape"], "num_episodes has the wrong shape"),
    "wrong number": (["length"], "its num_iterations are not those of env_steps"),
    "missing array": (["missing"], "it has no num_episodes"),
    "twice": (["a", "b/../a"], "given twice"),
    "few labels": (["a", "b", "--labels", "A"], "2, not 1"),
    "empty label": (["a", "--labels", ""], "--labels"),
    "bar": (["a", "--bar", "high"], "'high' is not a number"),
    "two bars": (["a", "--bar", "1", "2"], "--bar 1"),
    "bar of another": (["a", "--bar", "Cartpole=1"], "CartPole-v1"),
    "equal bounds": (["a", "--bounds", "CartPole-v1=5:5"], "LOW must be less than HIGH"),
    "reversed bounds": (["a", "--bounds", "CartPole-v1=500:0"], "LOW must be less than HIGH"),
    "one bound": (["a", "--bounds", "CartPole-v1=5"], "CartPole-v1=LOW:HIGH"),
    "infinite bound": (["a", "--bounds", "CartPole-v1=0:inf"], "'inf' is not a number"),
    "bounds twice": (["a", "--bounds", "CartPole-v1=0:1", "CartPole-v1=0:2"], "twice"),
    "bounds of another": (["a", "--bounds", "Pong=0:1"], "CartPole-v1"),
    "a run behind bounds": (["a", "--bounds", "CartPole-v1=0:1", "b"], "--bounds b"),
    "no width": (["a", "--width", "nan"], "--width must be 0 or from 3 to 100 inches, not nan"),
    "narrow": (["a", "--width", "2"], "--width must be 0 or from 3 to 100 inches, not 2"),
    "no picture": (["a", "--out", "a.txt"], ".png, .pdf or .svg"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused_in_one_line(words, folder):
    write_run("a", A), write_run("b", B)
    for name in ("damaged", "text", "new", "shape", "missing"):
        write_run(name, A)
    Path("empty").mkdir()
    content = Path("a/metrics.npz").read_bytes()
    Path("damaged/metrics.npz").write_bytes(content[: len(content) // 2])
    Path("text/metrics.npz").write_text("nothing\n")
    Path("new/metrics.npz").unlink()
    with np.load("a/metrics.npz") as file:
        arrays = dict(file)
    np.savez("shape/metrics.npz", **arrays | {"num_episodes": arrays["num_episodes"][:, 1:]})
    np.savez("missing/metrics.npz", **{name: x for name, x in arrays.items() if name != "num_episodes"})
    write_run("length", A)
    add_metric("length/metrics.npz", num_iterations=np.full(8, -3))
    before = sorted(folder.rglob("*"))
    (arguments, text) = REFUSED[words]
    result = run(*arguments)
    assert (result.status, result.stdout) == (2, ""), result
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert text in result.stderr
    assert sorted(folder.rglob("*")) == before


def test_a_picture_that_cannot_be_written(folder):
    write_run("a", A)
    result = run("a", "--out", "a/config.json/new.png")
    assert (result.status, result.stderr.count("\n")) == (2, 1)
    assert "cannot write a/config.json/new.png" in result.stderr


def test_a_picture_that_cannot_be_drawn(folder):
    """Whatever matplotlib raises, the tables are printed and written."""
    write_run("a", A)
    with mock.patch.object(Figure, "savefig", side_effect=RuntimeError("no latex\nlog")):
        result = run("a")
    assert (result.status, result.stderr) == (1, "error: compare.png is not drawn: RuntimeError: no latex\n")
    assert methods(result.stdout) == ["ppo"]
    assert {path.name for path in folder.iterdir()} == {"a", "compare.md", "compare.csv"}


def test_ctrl_c_ends_it_in_silence(folder):
    write_run("a", A)
    with mock.patch.object(Figure, "savefig", side_effect=KeyboardInterrupt):
        result = run("a")
    assert (result.status, result.stderr) == (130, "")


def test_no_name_is_read_as_a_formula(folder, figures):
    """matplotlib would raise at this name."""
    write_run("a", A, "p$^$", env="x$^$"), write_run("b", B, "dqn", env="x$^$")
    compared("a", "b", "--bounds", "x$^$=0:500")
    assert r"x\$^\$" in {text for text, _ in texts_of(figures[0])}


def test_other_formats(folder):
    """A .pdf without fonts of type 3, which journals refuse; the text of an .svg is text."""
    write_run("a", A)
    for ending, begin in (("pdf", b"%PDF-"), ("svg", b"<?xml")):
        compared("a", "--out", f"new/picture.{ending}", "--bar", "-100")
        content = Path(f"new/picture.{ending}").read_bytes()
        assert content.startswith(begin)
        assert b"/Type3" not in content
    assert b">ppo</text>" in content
    assert {path.suffix for path in Path("new").iterdir()} == {".pdf", ".svg", ".md", ".csv"}


# -- As a user starts it -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_of_the_scripts(folder):
    """A comparison reads what training writes, also of a sweep in several parts."""
    for words in (["ppo", "single"], ["ppo", "sweep", "--sweep", "learning-rate=1e-3,2e-3", "--trials-per-batch", "2"]):
        script, name, *more = words
        result = call(script, *small_run(script, 40, name=name, eval_episodes=0, num_seeds=2), *more)
        assert result.status == 0, result
    env = json.loads(next(Path("runs/ppo").rglob("config.json")).read_text())["config"]["env"]
    stdout = compared(f"runs/ppo/{env}/single", f"runs/ppo/{env}/sweep")
    assert len(methods(stdout, f"{env}: final")) == 3
    assert all(row["seeds"] == "2" for (*_, other, _), row in values().items() if not other)


@pytest.mark.slow
def test_a_comparison_starts_fast(folder):
    """Neither gymnax nor flax nor a script is imported, and --help does not wait for what the statistics need."""
    write_run("a", A)
    code = """
import sys
from runner.compare import __main__ as compare
slow = ["gymnax", "flax", "brax", "matplotlib", "scipy.stats", "wandb", "ppo"]
print([name for name in slow if name in sys.modules])
sys.argv = ["compare", "a"]
compare.main()
print([name for name in slow if name in sys.modules])
"""
    result = execute("-c", code, cwd=folder, **{"JAX_PLATFORMS": "cpu"})
    assert (result.status, result.stderr) == (0, "")
    first, *_, last = result.stdout.splitlines()
    assert (first, last) == ("[]", "['matplotlib', 'scipy.stats']")


def test_help(folder):
    result = execute("-m", "runner.compare", "--help", cwd=folder, **environ())
    assert (result.status, result.stderr) == (0, "")
    for word in ("RUN", "--labels", "--out", "--width", "--bar", "--bounds", "CartPole-v1=0:500"):
        assert word in result.stdout
