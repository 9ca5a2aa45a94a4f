"""Categorical DQN: projections of known distributions, problems with known answers. Updates: test_replay_updates.py."""

from functools import cache, partial

import categorical_dqn
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from categorical_dqn import project
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

probes.register()
GAMMA = 0.9
NUM_SEEDS = probes.NUM_SEEDS
BINS = jnp.linspace(-2.0, 8.0, 21)  # half a unit apart


# -- The projection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, {6: 1.0}),  # on a bin: the lower and the upper one are the same, and nothing is lost
        (1.1, {6: 0.8, 7: 0.2}),
        (-2.0, {0: 1.0}),
        (8.0, {20: 1.0}),
        (-7.0, {0: 1.0}),
        (1e9, {20: 1.0}),
    ],
)
def test_a_point_goes_to_the_bins_around_it(value, expected):
    probs = project(jnp.ones((1,)), jnp.full((1,), value), BINS)
    assert probs.shape == (21,)
    np.testing.assert_allclose(probs, [expected.get(i, 0.0) for i in range(21)], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=8, max_size=8),
    st.floats(-1e4, 1e4, width=32),  # narrow bins far from 0, whose differences are rounded
    st.floats(0.5, 1e3, width=32),
)
def test_no_probability_is_lost_and_the_mean_stays_within_the_bins(values, low, width):
    bins = jnp.linspace(low, low + width, 51)
    before = jax.nn.softmax(jnp.cos(jnp.arange(8.0)))
    probs = project(before, jnp.array(values), bins)
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(), 1.0, rtol=1e-5)
    inside = np.clip(np.float64(values), float(bins[0]), float(bins[-1]))
    np.testing.assert_allclose(np.float64(probs) @ np.asarray(bins), before @ inside, atol=1e-4 * (abs(low) + width))


def test_a_gaussian_stays_a_gaussian():
    """Shrunk by gamma and moved by the reward, as a target is: mean exact, variance larger by at most a quarter bin."""
    before = stats.norm.pdf(BINS, 3.0, 1.0)
    probs = np.float64(project(jnp.float32(before / before.sum()), 0.7 + GAMMA * BINS, BINS))
    mean = probs @ BINS
    np.testing.assert_allclose(mean, 0.7 + GAMMA * 3.0, atol=1e-3)
    variance = probs @ (np.asarray(BINS) - mean) ** 2
    assert 0 <= variance - GAMMA**2 <= 0.5**2 / 4 + 1e-3
    np.testing.assert_allclose(probs, 0.5 * stats.norm.pdf(BINS, mean, np.sqrt(variance)), atol=0.02)


def test_discount_0_leaves_the_reward_alone():
    """After a termination the target is the point of the reward, whatever followed."""
    probs = project(jax.nn.softmax(jnp.sin(BINS)), 1.25 + 0.0 * BINS, BINS)
    np.testing.assert_allclose(probs, np.where(np.isin(np.arange(21), [6, 7]), 0.5, 0.0), atol=1e-6)


# -- Problems with known answers ---------------------------------------------------------------------------------------


VALUES_OF_BINS = np.linspace(-2.0, 12.0, 57)  # a quarter apart


@cache
def trained():
    """On all rooms: algorithm, final State and metrics of a few seeds."""
    config = categorical_dqn.Config(
        env="Probe-Rooms",
        total_timesteps=25_600,
        num_envs=8,
        train_interval=8,
        gradient_steps=2,
        steps_per_iteration=1_520,
        learning_starts=640,
        target_interval=16,
        buffer_size=20_000,
        batch_size=64,
        learning_rate=0.01,
        anneal_learning_rate=True,
        gamma=GAMMA,
        value_min=VALUES_OF_BINS[0],
        value_max=VALUES_OF_BINS[-1],
        num_bins=len(VALUES_OF_BINS),
        hidden_sizes=(32,),
    )
    return probes.trained(categorical_dqn, config)


@pytest.mark.slow
def test_values():
    """Constant, dependent on the observation, discounted where it comes one step later, and of the action that pays.
    Reward 1 on every step: 10 where only a limit cuts. No return is outside of the bins."""
    algorithm, state, metrics = trained()
    values = np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, probes.OBSERVATIONS))
    expected, known = np.array([probes.known_values(GAMMA)] * NUM_SEEDS), slice(probes.ENDING.start)
    np.testing.assert_allclose(values[:, known], expected[:, known], atol=0.05)
    np.testing.assert_allclose(values[:, probes.ENDING], expected[:, probes.ENDING], rtol=0.15)
    np.testing.assert_allclose(metrics["clipped_targets"][:, -1], 0.0, atol=0.01)
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, probes.OBSERVATIONS)
    np.testing.assert_array_equal(actions[:, probes.PAYING], [probes.ACTIONS] * NUM_SEEDS)


@pytest.mark.slow
def test_the_distribution_is_learned_and_not_the_mean_alone():
    """After a step that may end the episode, one in five: 1 + gamma * (1 + ...), or 1 and no more."""
    config = categorical_dqn.Config(hidden_sizes=(32,))
    shape = (len(probes.ROOMS),)
    torso = partial(categorical_dqn.Torso, shape, config.hidden_sizes, config.activation, config.layer_norm)
    network = categorical_dqn.QNetwork(2, jnp.float32(VALUES_OF_BINS), torso)
    _, logits = jax.vmap(network.apply, in_axes=(0, None))(trained()[1].params, probes.OBSERVATIONS)
    probs = np.asarray(jax.nn.softmax(logits)).mean(axis=(0, 2))  # [room, bin], of all seeds and both actions
    assert probs[probes.GOING_ON, VALUES_OF_BINS >= 9].sum() > 0.9, "without an end all of it is around 10"
    ends_now = probs[probes.ENDING.start, VALUES_OF_BINS < 2].sum()
    np.testing.assert_allclose(ends_now, 1 / probes.LIMIT, atol=0.07)
