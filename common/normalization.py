"""Running mean and variance of observations, and the scale of rewards."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class RunningStatistics:
    """Mean and variance of all items so far; 0 and 1 before the first."""

    mean: Any  # [*shape] float32; a dict of arrays if observations are
    variance: Any  # as mean, population variance
    count: jax.Array  # [] int32: a float32 stops counting at 2^24


def init_statistics(shape: tuple[int, ...] | dict[str, tuple[int, ...]]) -> RunningStatistics:
    """Statistics before the first item of this shape."""
    mean = jax.tree.map(lambda shape: jnp.zeros(shape, jnp.float32), shape, is_leaf=lambda x: isinstance(x, tuple))
    return RunningStatistics(mean=mean, variance=jax.tree.map(jnp.ones_like, mean), count=jnp.int32(0))


def update_statistics(statistics: RunningStatistics, batch: Any) -> RunningStatistics:
    """Add a batch [..., *shape]; any chunking gives the same to rounding (Chan et al. 1979, eq. 2.1)."""
    batch = jax.tree.map(lambda mean, x: x.astype(jnp.float32).reshape(-1, *mean.shape), statistics.mean, batch)
    num_items = len(jax.tree.leaves(batch)[0])
    total = statistics.count + num_items
    share = num_items / total.astype(jnp.float32)  # new items / all items

    def add_variance(mean, variance, x):
        delta = x.mean(axis=0) - mean
        return (1 - share) * variance + share * x.var(axis=0) + (1 - share) * share * delta**2

    variance = jax.tree.map(add_variance, statistics.mean, statistics.variance, batch)
    mean = jax.tree.map(lambda mean, x: mean + share * (x.mean(axis=0) - mean), statistics.mean, batch)
    return RunningStatistics(mean=mean, variance=variance, count=total)


def normalize(statistics: RunningStatistics, x: Any, clip: float = 10.0) -> Any:
    """(x - mean) / std, clipped; x [..., *shape]. The 1e-8 keeps constant features finite.

    A dict may lack entries: a policy acts without those that only the critic sees.
    """

    def scale(x, mean, variance):
        mean, variance = jnp.broadcast_to(mean, x.shape), jnp.broadcast_to(variance, x.shape)
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

    moments = statistics.mean, statistics.variance
    moments = ({name: moment[name] for name in x} if isinstance(x, dict) else moment for moment in moments)
    return jax.tree.map(scale, x, *moments)


@struct.dataclass
class RewardScaling:
    """Statistics of the running discounted return of each environment."""

    statistics: RunningStatistics  # of the discounted return, shape []
    discounted_return: jax.Array  # [num_envs]


def init_reward_scaling(num_envs: int) -> RewardScaling:
    """Scaling before the first reward."""
    return RewardScaling(statistics=init_statistics(()), discounted_return=jnp.zeros(num_envs, jnp.float32))


def scale_rewards(
    scaling: RewardScaling, reward: jax.Array, done: jax.Array, gamma: float
) -> tuple[RewardScaling, jax.Array]:
    """Divide rewards by the std of the running discounted return, without centring (Engstrom et al. 2020).

    reward and done (terminated | truncated): [num_steps, num_envs]. The discounted return is reset *after* the last
    reward of an episode has been counted.
    """

    def accumulate(discounted_return, inputs):
        reward, done = inputs
        discounted_return = gamma * discounted_return + reward
        return jnp.where(done, 0.0, discounted_return), discounted_return

    discounted_return, returns = jax.lax.scan(accumulate, scaling.discounted_return, (reward, done))
    statistics = update_statistics(scaling.statistics, returns)
    scaled = jnp.clip(reward * jax.lax.rsqrt(statistics.variance + 1e-8), -10.0, 10.0)
    return RewardScaling(statistics=statistics, discounted_return=discounted_return), scaled
