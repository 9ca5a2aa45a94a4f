"""Each script still learns what it had learned when benchmarks/results/raw was recorded, on other seeds."""

import json

import numpy as np
import pytest
from helpers import ROOT, execute, path_of

from runner.report.statistics import confidence_interval, iqm

NUM_SEEDS, FIRST_SEED = 4, 100  # the recorded seeds are 0 to 19
# Env steps: all of a preset that anneals its learning rate; of the others about half, where the recorded seeds agree.
CASES = [
    ("ppo", "CartPole-v1", 100_000),
    ("dqn", "CartPole-v1", 50_000),
    ("sac", "Pendulum-v1", 10_000),
    ("td3", "Pendulum-v1", 14_000),
]

pytestmark = [pytest.mark.parametrize(("script", "env", "env_steps"), CASES), pytest.mark.slow]


def recorded(script, env):
    return json.loads((ROOT / "benchmarks" / "results" / "raw" / f"{script}-{env}.json").read_text())


def least_score(raw, env_steps):
    """The recorded interval's lower end, less two standard errors of the mean of NUM_SEEDS seeds."""
    scores = np.array(raw["eval_episode_return"])[:, np.searchsorted(raw["eval_env_steps"], env_steps, "right") - 1]
    return confidence_interval(scores)[0] - 2 * scores.std() / np.sqrt(NUM_SEEDS)


def test_a_preset_scores_what_was_recorded(script, env, env_steps, tmp_path):
    """A process of its own: the flags with which the other tests compile fast make training slow."""
    options = ["--env", env, "--num-seeds", NUM_SEEDS, "--seed", FIRST_SEED, "--total-timesteps", env_steps]
    options += ["--eval-every", 0, "--name", "again"]
    result = execute(path_of(script), *map(str, options), cwd=tmp_path, XLA_FLAGS=None)
    assert result.status == 0, result
    summary = json.loads((tmp_path / "runs" / script / env / "again" / "summary.json").read_text())
    scores = np.array(summary["eval_episode_return"]["per_seed"])
    assert iqm(scores) >= least_score(recorded(script, env), env_steps), scores


def test_what_has_not_learned_would_be_noticed(script, env, env_steps):
    """The negative control: the first evaluation, before any training."""
    raw = recorded(script, env)
    assert iqm(np.array(raw["eval_episode_return"])[:, 0]) < least_score(raw, env_steps)
