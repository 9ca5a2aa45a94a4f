"""common/runner/experiment.py: when a run is evaluated, and how results are joined."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.runner.experiment import EVAL_METRICS, Experiment, Result, append_evaluation, join_results, until
from common.runner.options import Options


@dataclass(frozen=True)
class Config:
    num_iterations: int = 40
    steps_per_iteration: int = 25
    learning_starts: int = 0

    def env_steps(self, iterations):
        return self.learning_starts + iterations * self.steps_per_iteration


def evaluated(config, **options):
    return Experiment("x.py", None, config, Options(**options), {}).evaluated_iterations.tolist()


# -- When --------------------------------------------------------------------------------------------------------------


def test_a_twentieth_of_the_run_is_the_default():
    assert evaluated(Config()) == list(range(2, 40, 2))


@given(st.builds(Config, st.integers(1, 500), st.integers(1, 10**6), st.integers(0, 10**6)))
def test_about_twenty_evaluations_whatever_the_length(config):
    points = evaluated(config)
    if config.learning_starts == 0 and config.num_iterations >= 100:
        assert 15 <= len(points) <= 19
    assert len(points) <= 19
    assert all(0 < point < config.num_iterations for point in points)


@given(
    st.builds(Config, st.integers(1, 60), st.integers(1, 50), st.integers(0, 50)),
    st.integers(1, 5000),
)
def test_an_evaluation_follows_each_multiple_of_the_interval(config, interval):
    steps = [config.env_steps(i) for i in range(config.num_iterations + 1)]
    expected = [
        i
        for i in range(1, config.num_iterations)  # the end is always evaluated
        if any(multiple % interval == 0 for multiple in range(steps[i - 1] + 1, steps[i] + 1))
    ]
    assert evaluated(config, eval_every=str(interval)) == expected


@pytest.mark.parametrize("options", [{"eval_every": "0"}, {"eval_episodes": 0}, {"eval_every": "1e9"}])
def test_no_evaluation_before_the_end(options):
    assert evaluated(Config(), **options) == []


def test_the_interval_does_not_depend_on_how_it_is_written():
    assert evaluated(Config(), eval_every="1e2") == evaluated(Config(), eval_every="100") == list(range(4, 40, 4))


# -- What is kept ------------------------------------------------------------------------------------------------------


def scores_of(*values):
    return {name: np.array(values, np.float32) for name in EVAL_METRICS} | {"eval_cut_episodes": np.zeros(len(values))}


def test_an_evaluation_at_the_same_place_replaces_the_one_before():
    evaluations = append_evaluation({}, 10, scores_of(1, 2))
    evaluations = append_evaluation(evaluations, 20, scores_of(3, 4))
    evaluations = append_evaluation(evaluations, 20, scores_of(5, 6))
    assert evaluations["eval_env_steps"].tolist() == [10, 20]
    assert evaluations["eval_episode_return"].tolist() == [[1, 5], [2, 6]]
    assert evaluations.keys() == {"eval_env_steps", *EVAL_METRICS}
    assert until(evaluations, 19)["eval_episode_return"].tolist() == [[1], [2]]
    assert until({}, 19) == {}


def result_of(lanes, steps):
    """A part whose lanes score their number plus the env steps."""
    evaluations = {}
    for step in steps:
        evaluations = append_evaluation(evaluations, step, scores_of(*(lane + step for lane in lanes)))
    metrics = {"loss": np.ones((len(lanes), 3))}
    return Result(metrics, evaluations, {"is_healthy": np.ones(len(lanes), bool)})


def test_lanes_of_all_parts_are_joined():
    joined = join_results([result_of([0, 1], [10, 20]), result_of([2], [10, 20])])
    assert joined.metrics["loss"].shape == (3, 3)
    assert joined.evaluations["eval_env_steps"].tolist() == [10, 20]
    assert joined.evaluations["eval_episode_return"].tolist() == [[10, 20], [11, 21], [12, 22]]


def test_an_evaluation_that_failed_in_one_part_is_left_out():
    joined = join_results([result_of([0], [10, 20, 30]), result_of([1], [20, 30]), result_of([2], [10, 20, 30])])
    assert joined.evaluations["eval_env_steps"].tolist() == [20, 30]
    assert joined.evaluations["eval_episode_return"].tolist() == [[20, 30], [21, 31], [22, 32]]
    assert join_results([result_of([0], [10]), result_of([1], [])]).evaluations == {}
    assert join_results([result_of([0], []), result_of([1], [])]).evaluations == {}
