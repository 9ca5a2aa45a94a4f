"""Running mean and variance of observations, and the scale of rewards."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class RunningStatistics:
    """Mean and variance of all items so far; 0 and 1 before the first."""

    mean: jax.Array  # [*shape] float32
    variance: jax.Array  # [*shape] float32, population variance
    count: jax.Array  # [] int32: a float32 stops counting at 2^24


def init_statistics(shape: tuple[int, ...]) -> RunningStatistics:
    """Statistics before the first item of this shape."""
    mean, variance = jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
    return RunningStatistics(mean=mean, variance=variance, count=jnp.int32(0))


def update_statistics(statistics: RunningStatistics, batch: jax.Array) -> RunningStatistics:
    """Add a batch [..., *shape]; any chunking of the same data gives the same result (Chan et al. 1979, eq. 2.1)."""
    shape = statistics.mean.shape
    batch = batch.astype(jnp.float32).reshape(-1, *shape)
    total = statistics.count + batch.shape[0]
    share = batch.shape[0] / total.astype(jnp.float32)  # new items / all items
    delta = batch.mean(axis=0) - statistics.mean
    variance = (1 - share) * statistics.variance + share * batch.var(axis=0) + (1 - share) * share * delta**2
    return RunningStatistics(mean=statistics.mean + share * delta, variance=variance, count=total)


def normalize(statistics: RunningStatistics, x: jax.Array, clip: float = 10.0) -> jax.Array:
    """(x - mean) / std, clipped; x [..., *shape]. The 1e-8 keeps constant features finite."""
    mean, variance = (jnp.broadcast_to(moment, x.shape) for moment in (statistics.mean, statistics.variance))
    return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)


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
