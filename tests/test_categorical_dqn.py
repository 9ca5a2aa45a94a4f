"""Categorical DQN: projections of known distributions, problems with known answers. Updates: test_replay_updates.py."""

from functools import cache

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
NUM_SEEDS = 3
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
    st.floats(-100, 99, width=32),
    st.floats(0.5, 1e3, width=32),
)
def test_no_probability_is_lost_and_the_mean_stays_within_the_bins(values, low, width):
    bins = jnp.linspace(low, low + width, 51)
    before = jax.nn.softmax(jnp.cos(jnp.arange(8.0)))
    probs = project(before, jnp.array(values), bins)
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(), 1.0, rtol=1e-4)
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
    """As after a termination: whatever followed, the target is the point of the reward."""
    probs = project(jax.nn.softmax(jnp.sin(BINS)), 1.25 + 0.0 * BINS, BINS)
    np.testing.assert_allclose(probs, np.where(np.isin(np.arange(21), [6, 7]), 0.5, 0.0), atol=1e-6)


# -- Problems with known answers ---------------------------------------------------------------------------------------


@cache
def trained(rooms, **changes):
    fields = {
        "total_timesteps": 12_800,
        "num_envs": 8,
        "train_interval": 8,
        "gradient_steps": 2,
        "steps_per_iteration": 1_520,
        "learning_starts": 640,
        "target_interval": 16,
        "buffer_size": 20_000,
        "batch_size": 64,
        "learning_rate": 0.01,
        "anneal_learning_rate": True,
        "gamma": GAMMA,
        "value_min": -2.0,
        "value_max": 12.0,
        "num_bins": 29,
        "hidden_sizes": (16,),
    }
    config = categorical_dqn.Config(f"Probe-{rooms}", **fields | changes)
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    state, metrics = jax.jit(jax.vmap(categorical_dqn.make_train(config)), compiler_options=probes.OPTIMIZED)(keys)
    return categorical_dqn.make(config), state, jax.tree.map(lambda x: np.asarray(x)[:, -1], metrics)


def in_rooms(function, state, rooms):
    """Of every room, [num_seeds, num_rooms]."""
    return np.asarray(jax.vmap(function, in_axes=(0, None))(state, jnp.eye(len(probes.ROOMS[rooms]))))


@pytest.mark.slow
def test_values():
    """Constant, dependent on the observation, and one step later: discounted; no return is outside of the bins."""
    algorithm, state, metrics = trained("Values")
    np.testing.assert_allclose(
        in_rooms(algorithm.value, state, "Values"), [[1, 2, -1, GAMMA, 1]] * NUM_SEEDS, atol=0.05
    )
    np.testing.assert_allclose(metrics["clipped_targets"], 0.0, atol=0.01)


@pytest.mark.slow
def test_bins_that_are_too_narrow_are_told():
    """Of five rooms one is worth -1 and one 2: of a batch two fifths, which the values never leave."""
    algorithm, state, metrics = trained("Values", value_min=-0.5, value_max=1.5)
    np.testing.assert_allclose(metrics["clipped_targets"], 0.4, atol=0.15)
    values = in_rooms(algorithm.value, state, "Values")
    np.testing.assert_allclose(values, [[1, 1.5, -0.5, GAMMA, 1]] * NUM_SEEDS, atol=0.05)


@pytest.mark.slow
def test_a_time_limit_is_not_an_end():
    """Reward 1 on every step: 10 where only a limit cuts. The controls: the same limit as an end, or as both, where the
    room does not show the time, and its value is that of the one-step fixed point."""
    algorithm, state, _ = trained("Limits")
    fixed_point = 1 / (1 - GAMMA * (1 - 1 / probes.LIMIT))
    values = in_rooms(algorithm.value, state, "Limits")
    np.testing.assert_allclose(values[:, 0], 1 / (1 - GAMMA), rtol=0.05)
    np.testing.assert_allclose(values[:, 1:], fixed_point, rtol=0.15)


@pytest.mark.slow
def test_the_distribution_is_learned_and_not_the_mean_alone():
    """After a step that may end the episode, one in five: 1 + gamma * (1 + ...), or 1 and no more."""
    _, state, _ = trained("Limits", value_min=0.0, value_max=12.0, num_bins=49)
    config = categorical_dqn.Config(hidden_sizes=(16,))
    network = categorical_dqn.QNetwork(2, jnp.linspace(0.0, 12.0, 49), lambda: categorical_dqn.Torso(config, (3,)))
    _, logits = jax.vmap(network.apply, in_axes=(0, None))(state.params, jnp.eye(3))
    probs = np.asarray(jax.nn.softmax(logits)).mean(axis=(0, 2))  # [room, bin], of all seeds and both actions
    assert probs[0, 36:].sum() > 0.9, "without an end all of it is around 10"
    np.testing.assert_allclose(probs[1, :8].sum(), 1 / probes.LIMIT, atol=0.07)  # below 2: it ends now


@pytest.mark.slow
def test_the_action_that_pays_is_chosen():
    algorithm, state, _ = trained("Policies")
    np.testing.assert_array_equal(in_rooms(algorithm.act, state, "Policies"), [[1, 0, 1]] * NUM_SEEDS)


def test_one_bin_is_refused():
    with pytest.raises(ValueError, match="num_bins must be at least 2, not 1"):
        categorical_dqn.make(categorical_dqn.Config(num_bins=1))
