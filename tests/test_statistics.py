"""common/statistics.py against values worked out by hand and a slow re-implementation of the learning curve."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runner.experiment import Result
from runner.report import statistics
from runner.report.scores import find_greedy_gap, training_returns
from runner.report.statistics import (
    MANY_SEEDS,
    bootstrap_interval,
    confidence_interval,
    final_return,
    iqm,
    learning_curve,
    rank,
    summarize,
    worst_quarter,
)

MANY = MANY_SEEDS + 1

# -- Interquartile mean ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7], 7),
        ([1, 2], 1.5),
        ([1, 2, 30], 11),  # a quarter of three is less than one: nothing is left out
        ([1, 2, 4, 90], 3),
        ([-100, 1, 2, 6, 100], 3),
        ([-9, 1, 2, 3, 4, 5, 99], 3),  # 7 / 4 is rounded down to 1
        ([-50, -50, 1, 2, 3, 4, 60, 70], 2.5),
        ([5, 5, 5, 5, 5, 5, 5, 5], 5),
    ],
)
def test_iqm_worked_by_hand(scores, expected):
    assert iqm(np.array(scores, np.float64)) == pytest.approx(expected, rel=1e-12)
    assert iqm(np.array(scores[::-1], np.float32)) == pytest.approx(expected, rel=1e-6)


def test_iqm_goes_along_the_axis_that_is_asked_for():
    x = np.array([[1.0, 2.0, 4.0, 90.0], [-50.0, 10.0, 20.0, 21.0]])
    np.testing.assert_allclose(iqm(x, axis=1), [3.0, 15.0])
    np.testing.assert_allclose(iqm(x.T), [3.0, 15.0])  # the first one, unless told


# -- Bootstrap interval ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_seeds", [2, 3, 10, MANY])
@pytest.mark.parametrize("value", [0.0, 500.0, -1234.5])
def test_where_all_seeds_agree_the_interval_is_that_value(num_seeds, value):
    low, high = confidence_interval(np.full((num_seeds, 3), value))
    np.testing.assert_array_equal(low, [value] * 3)
    np.testing.assert_array_equal(high, [value] * 3)


@pytest.mark.parametrize("shape", [(1,), (1, 4)])
def test_a_single_seed_has_no_interval(shape):
    low, high = confidence_interval(np.ones(shape))
    assert np.shape(low) == np.shape(high) == shape[1:]
    assert np.isnan(low).all()
    assert np.isnan(high).all()


@pytest.mark.parametrize("num_seeds", [8, MANY])
def test_the_same_data_give_the_same_interval(num_seeds):
    x = np.random.default_rng(0).normal(size=(num_seeds, 3))
    np.random.seed(1)  # noqa: NPY002
    first = confidence_interval(x)
    np.random.seed(2)  # noqa: NPY002
    second = confidence_interval(x.copy())
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("num_seeds", [8, MANY])
def test_each_column_has_its_own_interval(num_seeds):
    x = np.random.default_rng(0).normal(size=(num_seeds, 3))
    low, high = confidence_interval(x)
    assert low.shape == high.shape == (3,)
    for i in range(3):
        np.testing.assert_allclose((low[i], high[i]), confidence_interval(x[:, i]), rtol=1e-12)


def test_the_interval_follows_shift_and_scale():
    x = np.random.default_rng(0).normal(size=10)
    low, high = confidence_interval(x)
    np.testing.assert_allclose(confidence_interval(100 + 3 * x), (100 + 3 * low, 100 + 3 * high), rtol=1e-9)


@pytest.mark.parametrize("num_seeds", [20, MANY])
def test_a_95_percent_interval_covers_about_that_often(num_seeds):
    """Percentile intervals of 20 seeds are a little short; 80 % or 99 % intervals would lie outside of the range."""
    low, high = confidence_interval(np.random.default_rng(0).normal(3.0, 2.0, size=(num_seeds, 500)))
    assert 0.86 < np.mean((low <= 3.0) & (high >= 3.0)) < 0.97
    assert 0.01 < np.mean(low > 3.0) < 0.08
    assert 0.01 < np.mean(high < 3.0) < 0.08


def test_the_interval_is_of_the_iqm_and_not_of_the_mean():
    x = np.r_[np.random.default_rng(0).normal(size=20), 1e6]
    assert confidence_interval(x)[1] < 2.0


def test_many_seeds_have_the_interval_that_scipy_gives():
    """They are equal to the noise of the resamples."""
    x = np.random.default_rng(0).normal(size=(MANY, 5)) ** 3
    low, high = confidence_interval(x)
    expected = bootstrap_interval([x.T], iqm)
    for bound, other in zip((low, high), expected, strict=True):
        np.testing.assert_allclose(bound, other, atol=0.1 * (high - low).min())


def test_intervals_of_many_seeds_do_without_scipy(monkeypatch):
    """It sorts every resample of every column, which takes ten times as long."""
    monkeypatch.setattr(statistics, "bootstrap_interval", None)
    low, high = confidence_interval(np.random.default_rng(0).normal(size=(600, 30)))
    assert (low < high).all()
    with pytest.raises(TypeError):
        confidence_interval(np.ones((20, 30)))


def test_a_seed_without_a_score_leaves_no_interval():
    for num_seeds in (20, MANY):
        x = np.random.default_rng(0).normal(size=(num_seeds, 3))
        x[0, 0], x[1, 1] = np.nan, -np.inf  # one diverged, and one has the worst score
        low, high = confidence_interval(x)
        np.testing.assert_array_equal(np.isnan([low, high]), [[True, False, False]] * 2)
        assert np.isfinite([low[1:], high[1:]]).all()


# -- Summary -----------------------------------------------------------------------------------------------------------


def test_summary_worked_by_hand():
    summary = summarize(np.array([1.0, 2.0, 4.0, 90.0], np.float32))
    assert summary["mean"] == 24.25
    assert summary["iqm"] == 3.0
    assert (summary["worst_quarter"], summary["min"], summary["max"]) == (1.0, 1.0, 90.0)
    assert 1.0 <= summary["ci_low"] <= 3.0 <= summary["ci_high"] <= 90.0
    assert all(type(value) is float for value in summary.values())


def test_summary_of_a_single_seed():
    summary = summarize(np.array([7.0]))
    assert summary["mean"] == summary["iqm"] == summary["min"] == summary["max"] == 7.0
    assert math.isnan(summary["ci_low"])
    assert math.isnan(summary["ci_high"])


# -- Learning curve ----------------------------------------------------------------------------------------------------


def slow_curve(env_steps, episode_return, num_episodes, bin_size):
    """[(env steps, [value of each seed])] of bins of `bin_size` iterations, from where every seed has a value."""
    num_seeds, num_iterations = num_episodes.shape
    seeds = [i for i in range(num_seeds) if any(num_episodes[i][t] > 0 for t in range(num_iterations))]
    points, last = [], {}
    for start in range(0, num_iterations, bin_size):
        for seed in seeds:
            total, count = 0.0, 0
            for t in range(start, start + bin_size):
                if num_episodes[seed][t] > 0:
                    total += float(episode_return[seed][t]) * int(num_episodes[seed][t])
                    count += int(num_episodes[seed][t])
            if count:
                last[seed] = total / count
        if seeds and len(last) == len(seeds):
            points.append((env_steps[start + bin_size - 1], [last[seed] for seed in seeds]))
    return points


@st.composite
def training_metrics(draw):
    """Metrics as a run records them, and a number of points that divides the number of iterations."""
    num_seeds, num_points, bin_size = draw(st.integers(1, 5)), draw(st.integers(1, 8)), draw(st.integers(1, 4))
    shape = (num_seeds, num_points * bin_size)
    num_episodes = draw(hnp.arrays(np.int32, shape, elements=st.sampled_from([0, 0, 1, 2, 50])))
    returns = draw(hnp.arrays(np.float32, shape, elements=st.floats(-1000, 1000, width=32)))
    episode_return = np.where(num_episodes > 0, returns, np.float32(np.nan))
    env_steps = np.cumsum(draw(hnp.arrays(np.int64, shape[1], elements=st.integers(1, 10**6))))
    return env_steps, episode_return, num_episodes, num_points, bin_size


@given(metrics=training_metrics())
@settings(max_examples=80)
def test_learning_curve_against_plain_loops(metrics):
    env_steps, episode_return, num_episodes, num_points, bin_size = metrics
    curve = learning_curve(env_steps, episode_return, num_episodes, num_points)
    points = slow_curve(env_steps, episode_return, num_episodes, bin_size)
    np.testing.assert_array_equal(curve.env_steps, [steps for steps, _ in points])
    if not points:
        assert curve.returns.size == curve.mean.size == curve.iqm.size == curve.ci_low.size == curve.ci_high.size == 0
        return
    values = np.array([values for _, values in points]).T
    np.testing.assert_allclose(curve.returns, values, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(curve.mean, values.mean(axis=0), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(curve.iqm, iqm(values), rtol=1e-5, atol=1e-3)
    if len(values) > 1:
        assert (curve.ci_low <= curve.ci_high).all()
        assert (curve.ci_low >= values.min(axis=0) - 1e-2).all()
        assert (curve.ci_high <= values.max(axis=0) + 1e-2).all()
    else:
        assert np.isnan(curve.ci_low).all()
        assert np.isnan(curve.ci_high).all()


@given(num_iterations=st.integers(1, 300), num_points=st.integers(1, 120))
def test_bins_hold_every_iteration_once(num_iterations, num_points):
    """Returns that count up show through the bins' means which iterations are in which bin."""
    env_steps = 7 * np.arange(1, num_iterations + 1)
    iteration = np.arange(num_iterations, dtype=np.float64)[None]
    curve = learning_curve(env_steps, iteration, np.ones((1, num_iterations), np.int32), num_points)
    assert len(curve.env_steps) == min(num_points, num_iterations)
    assert curve.env_steps[-1] == env_steps[-1]
    last = curve.env_steps // 7 - 1
    first = np.r_[0, last[:-1] + 1]
    np.testing.assert_allclose(curve.returns[0], (first + last) / 2)
    sizes = last - first + 1
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


def test_learning_curve_worked_by_hand():
    nan = np.nan
    episode_return = np.array([[nan, 1, 2, nan], [3, nan, 4, 10]])
    num_episodes = np.array([[0, 1, 3, 0], [2, 0, 3, 1]])
    curve = learning_curve(np.array([10, 20, 30, 40]), episode_return, num_episodes)
    np.testing.assert_array_equal(curve.env_steps, [20, 30, 40])  # seed 0 has nothing to show at 10
    np.testing.assert_array_equal(curve.returns, [[1, 2, 2], [3, 4, 10]])
    np.testing.assert_array_equal(curve.mean, [2, 3, 6])
    curve = learning_curve(np.array([10, 20, 30, 40]), episode_return, num_episodes, num_points=2)
    np.testing.assert_array_equal(curve.env_steps, [20, 40])
    np.testing.assert_array_equal(curve.returns, [[1, 2], [3, 5.5]])  # weighted by the number of episodes


def test_a_seed_that_never_ends_an_episode_is_left_out():
    episode_return = np.array([[1.0, 2.0], [np.nan, np.nan], [3.0, 4.0]])
    num_episodes = np.array([[1, 1], [0, 0], [1, 1]])
    curve = learning_curve(np.array([10, 20]), episode_return, num_episodes)
    np.testing.assert_array_equal(curve.env_steps, [10, 20])
    np.testing.assert_array_equal(curve.returns, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(curve.mean, [2, 3])


@pytest.mark.parametrize("num_iterations", [0, 3])
def test_a_run_without_an_episode_has_an_empty_curve(num_iterations):
    shape = (2, num_iterations)
    curve = learning_curve(np.arange(num_iterations), np.full(shape, np.nan), np.zeros(shape, np.int32))
    for x in (curve.env_steps, curve.mean, curve.iqm, curve.ci_low, curve.ci_high):
        assert x.shape == (0,)
    assert curve.returns.shape[1] == 0


def test_a_seed_of_nan_makes_the_mean_nan_and_no_other_seed():
    episode_return = np.array([[np.nan, np.nan], [3.0, 4.0]])
    curve = learning_curve(np.array([10, 20]), episode_return, np.ones((2, 2), np.int32))
    np.testing.assert_array_equal(curve.returns, episode_return)
    assert np.isnan(curve.mean).all()


def test_a_seed_that_diverges_does_not_keep_its_last_good_return():
    episode_return = np.array([[1.0, 2.0, np.nan, np.nan], [3.0, 3.0, 3.0, 3.0]])
    curve = learning_curve(np.array([10, 20, 30, 40]), episode_return, np.ones((2, 4), np.int32))
    np.testing.assert_array_equal(curve.returns, episode_return)


def test_final_return_worked_by_hand():
    """Episodes of the last tenth, here two iterations of twenty, each counts once."""
    returns, counts = np.full((3, 20), 100.0), np.ones((3, 20), int)
    returns[0, -2:], counts[0, -2:] = [10, 40], [1, 2]
    returns[1, -2:], counts[1, -2:] = [np.nan, 7], [0, 3]
    returns[2, -2:], counts[2, -2:] = np.nan, 0
    np.testing.assert_array_equal(final_return(returns, counts), [30, 7, np.nan])
    np.testing.assert_array_equal(final_return(returns[:, :1], counts[:, :1]), [100, 100, 100])


def gap(training, greedy, steps=range(0, 110, 10)):
    """`find_greedy_gap` of this training return [n] and these evaluations [num_seeds, n]."""
    training, greedy = np.array(training, float), np.array(greedy, float)
    curve = learning_curve(np.arange(len(training)), training[None], np.ones((1, len(training)), int))
    return find_greedy_gap(curve, np.array(steps)[-greedy.shape[1] :], greedy)


RISE = np.r_[np.linspace(-50, -12, 10), np.full(10, -12)]


@pytest.mark.parametrize(
    ("training", "greedy", "expected"),
    [
        (RISE, [[-100] * 11], (-100, -12)),
        (RISE, [[-100] * 6 + [-12] * 5], None),  # late ones alone count
        (RISE, [[-12] * 6 + [-100] * 5], (-100, -12)),
        (RISE, [[-30] * 11], None),  # less than half of the way that training rose
        (RISE, [[-100] * 8 + [-12] * 3], None),
        (RISE, [[-12] * 11, *[[-100] * 11] * 2], None),  # a seed of three is well
        (RISE, [[0] * 11], None),
        (RISE, [[np.nan] * 11], None),
        (RISE, [[-np.inf] * 11], None),
        (np.full(20, -12), [[-13] * 11], None),  # near
        (np.full(20, -12), [[-14] * 11], (-14, -12)),
        (np.tile([-20, -10], 10), [[-18] * 11], None),  # as far as training varies
        (np.full(20, np.nan), [[-100] * 11], None),
        ([], [[-100] * 11], None),
    ],
)
def test_greedy_returns_that_stay_far_below_the_training_return(training, greedy, expected):
    assert gap(training, greedy) == (expected and pytest.approx(expected))


def test_the_untrained_policy_alone_has_no_gap():
    assert gap(RISE, [[-100]], steps=[0]) is None


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([7.0], 7.0), ([4.0, 1.0, 2.0, 90.0], 1.0), ([5.0, 4.0, 1.0, 2.0, 90.0], 1.5), ([1.0, np.nan], np.nan)],
)
def test_worst_quarter_worked_by_hand(scores, expected):
    """A quarter of five seeds is rounded up to two."""
    np.testing.assert_array_equal(worst_quarter(np.array(scores)), expected)
    np.testing.assert_array_equal(worst_quarter(np.array([scores] * 2), axis=-1), [expected] * 2)


def test_rank_by_a_chosen_statistic():
    scores = np.array([[0.0, 5.0, 5.0, 5.0], [1.0, 1.0, 1.0, 90.0], [3.0] * 4])
    summaries = [summarize(x) for x in scores]
    assert rank(summaries, "iqm") == [0, 2, 1]
    assert rank(summaries, "mean") == [1, 0, 2]
    assert rank(summaries, "worst_quarter") == [2, 1, 0]


def test_training_returns_are_those_of_each_trial_at_its_own_end():
    """Twenty iterations; the second trial was trained for ten of them."""
    returns, counts = np.tile(np.arange(20.0), (2, 1)), np.ones((2, 20), int)
    returns[1, 10:], counts[1, 10:] = np.nan, 0
    result = Result({"episode_return": returns, "num_episodes": counts}, {}, {}, np.array([20, 10]))
    np.testing.assert_allclose(training_returns(result), [18.5, 9.0])


def test_rank_by_iqm_then_mean_with_nan_last():
    scores = np.array([[1.0] * 4, [0.0, 2.0, 2.0, 2.0], [2.0] * 4, [np.nan] * 4, [np.nan, 2.0, 2.0, 2.0], [1.0] * 4])
    assert rank([summarize(x) for x in scores]) == [2, 1, 0, 5, 3, 4]
