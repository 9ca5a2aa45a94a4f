"""runner/experiment.py: when a run is evaluated, and how results are joined."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.devices.evaluation import auto_evaluations, evaluated_iterations
from runner.experiment import (
    EVAL_METRICS,
    Experiment,
    Result,
    Rung,
    append_evaluation,
    join_results,
    join_rungs,
    until,
)
from runner.options.fields import Options


@dataclass(frozen=True)
class Config:
    num_iterations: int = 40
    steps_per_iteration: int = 25
    learning_starts: int = 0
    env: str = "CartPole-v1"
    num_envs: int = 4

    def env_steps(self, iterations):
        return self.learning_starts + iterations * self.steps_per_iteration


LONG = Config(steps_per_iteration=500)


def experiment_of(config, **options):
    return Experiment("x.py", None, config, Options(**options), {})


def evaluated(config, **options):
    return evaluated_iterations(experiment_of(config, **options)).tolist()


def test_a_trial_is_a_seed_of_a_setting():
    """All seeds of the first setting, then all of the second."""
    experiment = Experiment("x.py", None, LONG, Options(num_seeds=3, seed=5), {"gamma": np.float32([0.5, 0.9])})
    assert experiment.trial_seeds.tolist() == [5, 6, 7, 5, 6, 7]
    assert experiment.trial_settings["gamma"].tolist() == np.float32([0.5] * 3 + [0.9] * 3).tolist()
    assert experiment.trial(seed_index=2, setting_index=1) == 5
    assert experiment.by_setting(np.arange(6)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert experiment.name_trial(4) == "seed 6 at gamma=0.9"
    some = experiment.select([1])
    assert (some.num_trials, some.name_trial(0)) == (3, "seed 5 at gamma=0.9")
    assert experiment.trials_at([1]).tolist() == [3, 4, 5]


def joined(trained, *scores):
    """Three settings of one seed, of which those in `trained` were trained to iteration 1, 2 and 3; `scores`: of each
    rung, None without an evaluation."""
    experiment = Experiment("x.py", None, Config(num_iterations=3), Options(), {"gamma": np.float32([0.1, 0.2, 0.3])})
    rungs, results = [], []
    for stop, settings in enumerate(trained, start=1):
        metrics = {
            "loss": np.full((len(settings), stop), float(stop)),
            "num_episodes": np.ones((len(settings), stop), int),
        }
        evaluations, ends = {}, {"is_healthy": np.ones(len(settings), bool)}
        if scores[stop - 1] is not None:
            ends["eval_episode_return"] = np.full(len(settings), scores[stop - 1])
            evaluations = append_evaluation({}, 10 * stop, ends | {"eval_episode_length": ends["eval_episode_return"]})
        rungs.append(Rung(settings, stop, []))
        results.append(Result(metrics, evaluations, ends, np.full(len(settings), stop)))
    return join_rungs(experiment, rungs, results)


def test_rungs_are_joined_each_setting_at_its_own_end():
    result = joined([(0, 1, 2), (0, 2), (2,)], 1.0, 2.0, 3.0)
    assert result.num_iterations.tolist() == [2, 1, 3]
    np.testing.assert_array_equal(result.metrics["loss"], [[2, 2, np.nan], [1, np.nan, np.nan], [3, 3, 3]])
    assert result.metrics["num_episodes"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert result.scores["eval_episode_return"].tolist() == [2, 1, 3]


def test_a_rung_that_nobody_left_need_not_be_evaluated():
    result = joined([(0, 1, 2), (0, 1, 2), (0, 1, 2)], None, 2.0, 3.0)
    assert result.scores["eval_episode_return"].tolist() == [3, 3, 3]
    assert result.evaluations["eval_env_steps"].tolist() == [30]
    assert joined([(0, 1, 2), (0, 1, 2), (0, 1, 2)], None, None, None).evaluations == {}
    assert joined([(0, 1, 2), (1,), (1,)], None, 2.0, 3.0).evaluations == {}


# -- When --------------------------------------------------------------------------------------------------------------


def test_a_twentieth_of_the_run_is_the_default():
    assert evaluated(LONG) == list(range(0, 40, 2))


@given(st.builds(Config, st.integers(1, 500), st.integers(1, 10**6), st.integers(0, 10**6)))
def test_about_twenty_evaluations_whatever_the_length(config):
    points = evaluated(config)
    if config.learning_starts == 0 and config.num_iterations >= 100 and config.env_steps(100) >= 20_000:
        assert 16 <= len(points) <= 20
    assert len(points) <= 20
    assert all(0 <= point < config.num_iterations for point in points)
    assert points[0] == 0


def test_a_gpu_is_evaluated_as_often_as_a_quarter_of_its_depth_allows(monkeypatch):
    """An episode of CartPole has at most 500 steps."""
    assert auto_evaluations(experiment_of(Config(num_iterations=1))) == 20
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for steps, number in {1000: 5, 4000: 20, 9000: 20, 250: 1, 100: 1}.items():  # of four environments, 40 times
        config = Config(num_iterations=40, steps_per_iteration=steps)
        assert auto_evaluations(experiment_of(config)) == number


def test_a_short_run_is_evaluated_after_each_iteration():
    assert evaluated(Config(10, 512)) == list(range(10))
    assert evaluated(Config(1, 512)) == [0]


@given(
    st.builds(Config, st.integers(1, 60), st.integers(1, 50), st.integers(0, 50)),
    st.integers(1, 5000),
)
def test_an_evaluation_follows_each_multiple_of_the_interval(config, interval):
    steps = [config.env_steps(i) for i in range(config.num_iterations + 1)]
    expected = [
        i
        for i in range(config.num_iterations)  # the end is always evaluated
        if i == 0 or any(multiple % interval == 0 for multiple in range(steps[i - 1] + 1, steps[i] + 1))
    ]
    assert evaluated(config, eval_every=str(interval)) == expected


@pytest.mark.parametrize("options", [{"eval_every": "0"}, {"eval_episodes": 0}])
def test_no_evaluation_before_the_end(options):
    assert evaluated(Config(), **options) == []


def test_an_interval_longer_than_the_run_leaves_its_two_ends():
    assert evaluated(Config(), eval_every="1e9") == [0]


def test_the_interval_does_not_depend_on_how_it_is_written():
    assert evaluated(Config(), eval_every="1e2") == evaluated(Config(), eval_every="100") == list(range(0, 40, 4))


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


def result_of(trials, steps):
    """A part whose trials score their number plus the env steps."""
    evaluations = {}
    for step in steps:
        evaluations = append_evaluation(evaluations, step, scores_of(*(trial + step for trial in trials)))
    metrics = {"loss": np.ones((len(trials), 3))}
    return Result(metrics, evaluations, {"is_healthy": np.ones(len(trials), bool)}, np.full(len(trials), 3))


def test_trials_of_all_parts_are_joined():
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
