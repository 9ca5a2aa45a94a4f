"""common/normalization.py against numpy in float64 and a plain Python loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.normalization import (
    init_reward_scaling,
    init_statistics,
    normalize,
    scale_rewards,
    update_statistics,
)

update = jax.jit(update_statistics)


@struct.dataclass
class Rollout:
    """The fields of a rollout that `scale_rewards` reads."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


@jax.jit
def scale(scaling, reward, done, gamma):
    """`scale_rewards`; an episode ends by one flag or by the other, in turn."""
    first = jnp.arange(len(done))[:, None] % 2 == 0
    scaling, rollout = scale_rewards(scaling, Rollout(reward, done & first, done & ~first), gamma)
    return scaling, rollout.reward


def statistics_of(chunks, shape):
    statistics = init_statistics(shape)
    for chunk in chunks:
        statistics = update(statistics, jnp.asarray(chunk))
    return statistics


def assert_numpy_agrees(statistics, data):
    """Up to float32 rounding, relative to the size of the data, or to its square for the variance."""
    data = np.asarray(data, np.float64)
    size = max(1e-3, np.abs(data).max())
    np.testing.assert_allclose(statistics.mean, data.mean(axis=0), rtol=1e-5, atol=1e-5 * size)
    np.testing.assert_allclose(statistics.variance, data.var(axis=0), rtol=1e-4, atol=1e-5 * size**2)
    assert int(statistics.count) == len(data)


# -- Running mean and variance ----------------------------------------------------------------------------------------

SIZES = (1, 2, 3, 8)  # of chunks; each is compiled once


@st.composite
def chunked_data(draw):
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=8))
    scales = draw(hnp.arrays(np.float32, 3, elements=st.sampled_from([1e-3, 1.0, 1e3])))
    data = draw(hnp.arrays(np.float32, (sum(sizes), 3), elements=st.floats(-1, 1, width=32, allow_subnormal=False)))
    return np.split(data * scales, np.cumsum(sizes)[:-1])


@given(chunks=chunked_data())
def test_any_chunks_give_the_mean_and_variance_of_all_data(chunks):
    statistics = statistics_of(chunks, (3,))
    data = np.concatenate(chunks)
    for feature in range(3):  # each against its own scale
        one = statistics.replace(mean=statistics.mean[feature], variance=statistics.variance[feature])
        assert_numpy_agrees(one, data[:, feature])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_all_leading_axes_are_items(shape):
    data = np.random.default_rng(0).normal(3.0, 2.0, size=(4, 5, *shape)).astype(np.float32)
    statistics = statistics_of([data[:1], data[1:]], shape)
    assert statistics.mean.shape == statistics.variance.shape == shape
    assert_numpy_agrees(statistics, data.reshape(-1, *shape))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, bool])
def test_integers_and_booleans_are_counted_as_numbers(dtype):
    data = np.random.default_rng(0).integers(0, 2 if dtype is bool else 256, size=(300, 2)).astype(dtype)
    statistics = statistics_of([data[:100], data[100:]], (2,))
    assert statistics.mean.dtype == statistics.variance.dtype == jnp.float32
    assert_numpy_agrees(statistics, data)


def test_first_observations_count_and_initial_values_do_not():
    statistics = update(init_statistics((1,)), jnp.array([[5.0], [7.0]]))
    np.testing.assert_array_equal(statistics.mean, [6.0])
    np.testing.assert_array_equal(statistics.variance, [1.0])
    statistics = update(init_statistics((1,)), jnp.array([[5.0]]))
    np.testing.assert_array_equal(statistics.mean, [5.0])
    np.testing.assert_array_equal(statistics.variance, [0.0])


@pytest.mark.parametrize("chunk", [1, 100])
def test_a_large_offset_does_not_swallow_the_variance(chunk):
    """Here mean(x^2) - mean(x)^2 in float32 would be off by more than the variance itself."""
    data = np.random.default_rng(0).normal(1e4, 1.0, size=(1000, 2)).astype(np.float32)
    start = init_statistics((2,))
    statistics, _ = jax.lax.scan(
        lambda statistics, x: (update_statistics(statistics, x), None), start, data.reshape(-1, chunk, 2)
    )
    np.testing.assert_allclose(statistics.mean, data.astype(np.float64).mean(axis=0), atol=0.02)
    np.testing.assert_allclose(statistics.variance, data.astype(np.float64).var(axis=0), rtol=0.02)


def test_small_chunks_do_not_add_up_their_rounding():
    """With a rounded share of the past as a factor the variance would be off by 0.3 %."""
    data = np.random.default_rng(0).normal(size=(500_000, 1, 1)).astype(np.float32)
    add = lambda statistics, x: (update_statistics(statistics, x), None)
    statistics, _ = jax.jit(lambda x: jax.lax.scan(add, init_statistics((1,)), x))(data)
    np.testing.assert_allclose(statistics.variance, data.astype(np.float64).var(), rtol=1e-5)


def test_small_steps_of_a_large_mean_are_not_lost():
    """A float32 near 300 would stand still after a million items; so would the variance after more of them."""
    data = np.random.default_rng(0).normal(size=(1_000_000, 1, 1)).astype(np.float32) + 300
    data[500_000:] += 3
    add = lambda statistics, x: (update_statistics(statistics, x), None)
    statistics, _ = jax.jit(lambda x: jax.lax.scan(add, init_statistics((1,)), x))(data)
    np.testing.assert_allclose(statistics.mean, data.mean(dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(statistics.variance, data.var(dtype=np.float64), rtol=1e-4)


def test_a_late_change_of_the_variance_is_seen():
    start = init_statistics((1,)).replace(count=jnp.int32(2**26))  # of variance 1
    data = jnp.tile(jnp.array([-1.5, 1.5]), 500_000).reshape(-1, 1, 1)
    add = lambda statistics, x: (update_statistics(statistics, x), None)
    statistics, _ = jax.jit(lambda x: jax.lax.scan(add, start, x))(data)
    share = 1e6 / (1e6 + 2**26)
    np.testing.assert_allclose(statistics.variance, 1 + share * (1.5**2 - 1), rtol=1e-6)


def test_the_count_passes_2_to_the_24_one_by_one():
    start = init_statistics((1,))
    start = start.replace(count=start.count + (2**24 - 2))
    statistics = jax.lax.fori_loop(0, 5, lambda _, statistics: update_statistics(statistics, jnp.zeros((1, 1))), start)
    assert int(statistics.count) == 2**24 + 3
    assert jnp.issubdtype(statistics.count.dtype, jnp.integer)


def test_an_item_has_the_right_weight_after_2_to_the_30_others():
    start = init_statistics((1,)).replace(variance=jnp.zeros(1), count=jnp.int32(2**30 - 1))
    statistics = update(start, jnp.full((1, 1), 2.0**30))
    np.testing.assert_allclose(statistics.mean, [1.0], rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, [2.0**30], rtol=1e-5)


# -- Normalising ------------------------------------------------------------------------------------------------------


def normalize_item(statistics, x):
    return normalize(statistics, jnp.asarray(x, jnp.float32))


@given(x=hnp.arrays(np.float32, 3, elements=st.floats(-10, 10, width=32, allow_subnormal=False)))
def test_nothing_changes_before_anything_is_seen(x):
    np.testing.assert_allclose(normalize_item(init_statistics((3,)), x), x, rtol=1e-6)


def test_what_was_seen_gets_mean_0_and_variance_1():
    data = np.random.default_rng(0).normal([1.0, -50.0, 0.0], [0.1, 7.0, 300.0], size=(500, 3)).astype(np.float32)
    statistics = statistics_of([data[:200], data[200:]], (3,))
    normalized = np.asarray(jax.vmap(normalize, in_axes=(None, 0))(statistics, data))
    np.testing.assert_allclose(normalized.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(normalized.std(axis=0), 1.0, rtol=1e-3)


@pytest.mark.parametrize("leading", [(4,), (2, 4)])
def test_a_batch_is_normalised_like_its_items(leading):
    data = np.random.default_rng(0).normal(5.0, 2.0, size=(*leading, 3)).astype(np.float32)
    statistics = statistics_of([data.reshape(-1, 3)], (3,))
    items = np.stack([normalize_item(statistics, x) for x in data.reshape(-1, 3)]).reshape(data.shape)
    np.testing.assert_allclose(normalize(statistics, data), items, rtol=1e-6)


@given(
    constant=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=5),
)
@settings(max_examples=50)
def test_a_constant_feature_stays_finite(constant, sizes):
    statistics = statistics_of([np.full((size, 1), constant, np.float32) for size in sizes], (1,))
    normalized = np.asarray(normalize_item(statistics, [constant]))
    assert np.isfinite(normalized).all()
    assert np.abs(normalized).max() <= 10.0
    assert float(statistics.variance[0]) >= 0.0


def test_a_constant_feature_is_zero_and_its_change_is_clipped():
    statistics = statistics_of([np.full((8, 1), 3.0, np.float32)] * 3, (1,))
    np.testing.assert_array_equal(normalize_item(statistics, [3.0]), [0.0])
    np.testing.assert_array_equal(normalize_item(statistics, [4.0]), [10.0])
    np.testing.assert_array_equal(normalize_item(statistics, [-1e30]), [-10.0])


# -- Reward scaling ---------------------------------------------------------------------------------------------------


class SlowScaling:
    """One environment after another, one step after another, in float64."""

    def __init__(self, num_envs, gamma):
        self.gamma = gamma
        self.running = [0.0] * num_envs
        self.seen = []

    def __call__(self, rewards, dones):
        for step_rewards, step_dones in zip(rewards, dones, strict=True):
            for i, (reward, done) in enumerate(zip(step_rewards, step_dones, strict=True)):
                self.running[i] = self.gamma * self.running[i] + float(reward)
                self.seen.append(self.running[i])
                if done:
                    self.running[i] = 0.0
        return np.clip(np.asarray(rewards, np.float64) / np.sqrt(self.variance + 1e-8), -10, 10)

    @property
    def variance(self):
        return np.var(self.seen)


NUM_CALLS, NUM_STEPS, NUM_ENVS = 3, 4, 2
ROLLOUTS = (NUM_CALLS, NUM_STEPS, NUM_ENVS)


@given(
    rewards=hnp.arrays(np.float32, ROLLOUTS, elements=st.integers(-8, 8).map(lambda x: x / 4)),
    dones=hnp.arrays(bool, ROLLOUTS),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_rewards_are_scaled_as_by_a_plain_loop(rewards, dones, gamma):
    """The running return and the statistics are carried from call to call."""
    scaling, slow = init_reward_scaling(NUM_ENVS), SlowScaling(NUM_ENVS, gamma)
    for reward, done in zip(rewards, dones, strict=True):
        scaling, scaled = scale(scaling, reward, done, gamma)
        expected = slow(reward, done)
        np.testing.assert_allclose(scaling.discounted_return, slow.running, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scaling.statistics.variance, slow.variance, rtol=1e-3, atol=1e-4)
        assert int(scaling.statistics.count) == len(slow.seen)
        if slow.variance > 0.1:
            np.testing.assert_allclose(scaled, expected, rtol=1e-3, atol=1e-6)


def test_the_return_starts_anew_after_the_last_reward_was_used():
    rewards = jnp.array([[1.0], [1.0], [1.0]])
    dones = jnp.array([[False], [True], [False]])
    scaling, scaled = scale(init_reward_scaling(1), rewards, dones, 0.5)
    std = np.std([1.0, 1.5, 1.0])  # reset too early: 1, 1, 1.5; never: 1, 1.5, 1.75
    np.testing.assert_allclose(scaled, 1.0 / np.full((3, 1), std), rtol=1e-4)
    np.testing.assert_array_equal(scaling.discounted_return, [1.0])


def test_environments_end_their_episodes_independently():
    rewards = jnp.ones((3, 2))
    dones = jnp.array([[False, True], [False, True], [False, False]])
    scaling, _ = scale(init_reward_scaling(2), rewards, dones, 1.0)
    np.testing.assert_array_equal(scaling.discounted_return, [3.0, 1.0])


@given(rewards=hnp.arrays(np.float32, (NUM_STEPS, NUM_ENVS), elements=st.integers(-5000, 5000).map(lambda x: x / 1000)))
def test_rewards_are_not_centred(rewards):
    """Signs and zeros stay, and all rewards are divided by the same number, unless they are clipped."""
    _, scaled = scale(init_reward_scaling(NUM_ENVS), rewards, np.zeros(rewards.shape, bool), 0.9)
    scaled = np.asarray(scaled)
    assert np.isfinite(scaled).all()
    assert np.abs(scaled).max() <= 10.0
    np.testing.assert_array_equal(np.sign(scaled), np.sign(rewards))
    inside = (rewards != 0) & (np.abs(scaled) < 9.99)
    factors = scaled[inside] / rewards[inside]
    np.testing.assert_allclose(factors, factors[0] if len(factors) else 1.0, rtol=1e-5)


def test_a_scaled_reward_is_clipped_at_10():
    rewards = jnp.zeros((200, 1)).at[150].set(-1000.0)
    _, scaled = scale(init_reward_scaling(1), rewards, jnp.zeros((200, 1), bool), 0.0)
    np.testing.assert_array_equal(scaled, jnp.where(rewards < 0, -10.0, 0.0))  # it would be -sqrt(200)


def test_rewards_that_are_all_zero_stay_zero():
    scaling, scaled = scale(init_reward_scaling(2), jnp.zeros((4, 2)), jnp.zeros((4, 2), bool), 0.99)
    np.testing.assert_array_equal(scaled, np.zeros((4, 2)))
    np.testing.assert_array_equal(scaling.discounted_return, [0.0, 0.0])


def test_a_dict_is_normalised_entry_by_entry_also_without_some():
    rng = np.random.default_rng(0)
    batch = {"a": rng.normal(3, 2, (50, 2)), "b": rng.normal(size=(50,))}
    batch = jax.tree.map(lambda x: x.astype(np.float32), batch)
    statistics = update(init_statistics({"a": (2,), "b": ()}), batch)
    for name, x in batch.items():
        alone = update(init_statistics(x.shape[1:]), x)
        np.testing.assert_array_equal(normalize(statistics, batch)[name], normalize(alone, x))
        np.testing.assert_array_equal(normalize(statistics, {name: x})[name], normalize(alone, x))
        assert int(statistics.count) == int(alone.count) == 50
