"""PPO learns small tasks whose answers are known on paper; see probes.py."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import ppo

probes.register()
GAMMA = 0.9
VALUES = probes.known_values(GAMMA)
NUM_SEEDS = probes.NUM_SEEDS


pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]


@cache
def trained(env, **changes):
    """Algorithm and final State of a few seeds."""
    config = ppo.Config(
        **{
            "env": env,
            "total_timesteps": 51_200,
            "num_envs": 8,
            "num_steps": 16,
            "num_minibatches": 2,
            "learning_rate": 0.01,
            "gamma": GAMMA,
            "ent_coef": 0.0,
            "hidden_sizes": (32,),
        }
        | changes
    )
    return probes.trained(ppo, config)[:2]


def values_of(algorithm, state):
    """Learned value of every room, [num_seeds, num_rooms]."""
    return np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, probes.OBSERVATIONS))


def test_values():
    """Constant, dependent on the observation, discounted where it comes one step later, and of the action that pays."""
    known = slice(probes.GOING_ON)
    np.testing.assert_allclose(values_of(*trained("Probe-Rooms"))[:, known], [VALUES[known]] * NUM_SEEDS, atol=0.03)


def test_a_time_limit_is_not_an_end():
    """Reward 1 on every step and episodes that only a limit cuts: the value is that of going on for ever. The negative
    control: the same limit, reported as terminated or as both.

    Those rooms do not show the time, so their value lies between the Monte Carlo mean and the one-step fixed point.
    """
    values, fixed_point = values_of(*trained("Probe-Rooms")), VALUES[probes.ENDING]
    np.testing.assert_allclose(values[:, probes.GOING_ON], 1 / (1 - GAMMA), rtol=0.02)
    monte_carlo = np.mean([(1 - GAMMA**k) / (1 - GAMMA) for k in range(1, probes.LIMIT + 1)])
    assert np.all(values[:, probes.ENDING] > 0.95 * monte_carlo)
    assert np.all(values[:, probes.ENDING] < 1.05 * fixed_point)
    assert np.all(fixed_point < 0.5 / (1 - GAMMA))


def test_the_action_that_pays_is_chosen():
    algorithm, state = trained("Probe-Rooms")
    obs = probes.OBSERVATIONS[probes.PAYING]
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, obs)
    np.testing.assert_array_equal(actions, [probes.ACTIONS] * NUM_SEEDS)
    sampled = jax.vmap(lambda state, key: algorithm.act(state, obs, key), in_axes=(None, 0))
    keys = jax.random.split(jax.random.key(0), 100)
    for trial in range(NUM_SEEDS):
        chosen = sampled(jax.tree.map(lambda x, trial=trial: x[trial], state), keys)
        np.testing.assert_array_less(0.9, (chosen == jnp.array([probes.ACTIONS])).mean(axis=0))


def test_continuous_actions_find_their_targets():
    """In environment units, in a box that is asymmetric and differs per dimension, a target for each observation."""
    algorithm, state = trained("Probe-Targets")
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, jnp.eye(2))  # [num_seeds, 2 observations, 2]
    half_width = (np.array(probes.Targets.high) - np.array(probes.Targets.low)) / 2
    np.testing.assert_array_less(np.abs(actions - np.array(probes.Targets.targets)) / half_width, 0.1)


def test_normalisation_learns_the_same():
    """The policy, and values in units of the scaled reward: rewards are divided by a std, not centred."""
    algorithm, state = trained("Probe-Rooms", normalize_obs=True, normalize_reward=True)
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, probes.OBSERVATIONS)
    np.testing.assert_array_equal(actions[:, probes.PAYING], [probes.ACTIONS] * NUM_SEEDS)
    values, known = values_of(algorithm, state), slice(probes.ENDING.start)
    scale = 1 / np.sqrt(np.asarray(state.reward_scaling.statistics.variance))[:, None]
    np.testing.assert_allclose(values[:, known], scale * VALUES[known], rtol=0.02, atol=0.02)
