"""PPO learns small tasks whose answers are known on paper; see probes.py."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from ppo import Config, make, make_train

probes.register()
GAMMA = 0.9
NUM_SEEDS = 3


pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]


@cache
def trained(env, **changes):
    """Algorithm and final State of a few seeds."""
    config = Config(
        **{
            "env": env,
            "total_timesteps": 25_600,
            "num_envs": 8,
            "num_steps": 16,
            "num_minibatches": 2,
            "learning_rate": 0.01,
            "gamma": GAMMA,
            "ent_coef": 0.0,
            "hidden_sizes": (16,),
        }
        | changes
    )
    train = jax.jit(jax.vmap(make_train(config)), compiler_options=probes.OPTIMIZED)
    state, _ = train(jax.random.split(jax.random.key(0), NUM_SEEDS))
    return make(config), state


def values_of(rooms, **changes):
    """Learned value of every room, [num_seeds, num_rooms]."""
    algorithm, state = trained(f"Probe-{rooms}", **changes)
    obs = jnp.eye(len(probes.ROOMS[rooms]))
    return np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, obs))


def test_constant_value():
    np.testing.assert_allclose(values_of("Values")[:, 0], 1, atol=0.02)


def test_value_depends_on_the_observation():
    np.testing.assert_allclose(values_of("Values")[:, 1], 2, atol=0.02)
    np.testing.assert_allclose(values_of("Values")[:, 2], -1, atol=0.02)


def test_a_later_reward_is_discounted():
    np.testing.assert_allclose(values_of("Values")[:, 4], 1, atol=0.02)
    np.testing.assert_allclose(values_of("Values")[:, 3], GAMMA, atol=0.02)


def test_a_time_limit_is_not_an_end():
    """Reward 1 on every step and episodes that only a limit cuts: the value is that of going on for ever."""
    np.testing.assert_allclose(values_of("Limits")[:, 0], 1 / (1 - GAMMA), rtol=0.02)


@pytest.mark.parametrize("room", [1, 2], ids=["terminated", "both"])
def test_an_end_is_an_end(room):
    """The negative control: the same limit, reported as terminated or as both. A value is a sum of 1 to 5 rewards.

    The room does not show the time, so its value lies between the Monte Carlo mean and the one-step fixed point.
    """
    monte_carlo = np.mean([(1 - GAMMA**k) / (1 - GAMMA) for k in range(1, probes.LIMIT + 1)])
    one_step = 1 / (1 - GAMMA * (1 - 1 / probes.LIMIT))
    values = values_of("Limits")[:, room]
    assert np.all(values > 0.95 * monte_carlo)
    assert np.all(values < 1.05 * one_step)
    assert one_step < 0.5 / (1 - GAMMA)


def test_the_action_that_pays_is_chosen():
    algorithm, state = trained("Probe-Policies")
    obs = jnp.eye(3)
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, obs)
    np.testing.assert_array_equal(actions, [[1, 0, 1]] * NUM_SEEDS)
    sampled = jax.vmap(lambda state, key: algorithm.act(state, obs, key), in_axes=(None, 0))
    keys = jax.random.split(jax.random.key(0), 100)
    for lane in range(NUM_SEEDS):
        chosen = sampled(jax.tree.map(lambda x, lane=lane: x[lane], state), keys)
        np.testing.assert_array_less(0.9, (chosen == jnp.array([[1, 0, 1]])).mean(axis=0))


def test_continuous_actions_find_their_targets():
    """In environment units, in a box that is asymmetric and differs per dimension, a target for each observation."""
    algorithm, state = trained("Probe-Targets")
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, jnp.eye(2))  # [num_seeds, 2 observations, 2]
    half_width = (np.array(probes.Targets.high) - np.array(probes.Targets.low)) / 2
    np.testing.assert_array_less(np.abs(actions - np.array(probes.Targets.targets)) / half_width, 0.1)


def test_normalisation_learns_the_same():
    """The policy, and values in units of the scaled reward: rewards are divided by a std, not centred."""
    algorithm, state = trained("Probe-Policies", normalize_obs=True, normalize_reward=True)
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, jnp.eye(3))
    np.testing.assert_array_equal(actions, [[1, 0, 1]] * NUM_SEEDS)
    values = jax.vmap(algorithm.value, in_axes=(0, None))(state, jnp.eye(3))
    scale = 1 / np.sqrt(np.asarray(state.reward_scaling.statistics.variance))[:, None]
    np.testing.assert_allclose(values, scale * np.array([[1, 1, 0]]), atol=0.1)
