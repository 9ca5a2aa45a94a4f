"""Running mean and variance of observations, and the scale of rewards."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class RunningStatistics:
    """Mean and variance of all items so far; 0 and 1 before the first."""

    mean: Any  # [*shape] float32; a tree of arrays if observations are
    variance: Any  # as mean, population variance
    rest: Any  # what float32 has rounded off mean and variance, (mean, variance): small steps add up in it
    count: jax.Array  # [] int32: a float32 stops counting at 2^24


def init_statistics(shape: tuple[int, ...] | dict[str, tuple[int, ...]]) -> RunningStatistics:
    """Statistics before the first item of this shape; `legal`, the actions in a dict of observations, has none."""
    if isinstance(shape, dict):
        shape = {name: x for name, x in shape.items() if name != "legal"}
    mean = jax.tree.map(lambda shape: jnp.zeros(shape, jnp.float32), shape, is_leaf=lambda x: isinstance(x, tuple))
    return RunningStatistics(mean, variance=jax.tree.map(jnp.ones_like, mean), rest=(mean, mean), count=jnp.int32(0))


def update_statistics(statistics: RunningStatistics | None, batch: Any) -> RunningStatistics | None:
    """Add a batch [..., *shape]; any chunking gives the same to rounding (Chan et al. 1979, eq. 2.1). None: None."""
    if statistics is None:
        return None
    if isinstance(batch, dict):
        batch = {name: batch[name] for name in statistics.mean}
    batch = jax.tree.map(lambda mean, x: x.astype(jnp.float32).reshape(-1, *mean.shape), statistics.mean, batch)
    num_items = len(jax.tree.leaves(batch)[0])
    total = statistics.count + num_items
    share = num_items / total.astype(jnp.float32)  # new items / all items

    def steps(mean, variance, x):
        delta = x.mean(axis=0) - mean
        return share * delta, share * (x.var(axis=0) + (1 - share) * delta**2 - variance)

    old = statistics.mean, jax.tree.map(lambda x: jnp.where(statistics.count > 0, x, 0.0), statistics.variance)
    step = jax.tree.transpose(jax.tree.structure(batch), None, jax.tree.map(steps, *old, batch))
    # The compensated sum of Kahan 1965: in float32 alone a step that is small beside the mean would be lost.
    step = jax.tree.map(jnp.add, step, statistics.rest)
    new = jax.tree.map(jnp.add, old, step)
    rest = jax.tree.map(lambda old, step, new: step - (new - old), old, step, new)
    return RunningStatistics(*new, rest=rest, count=total)


def normalize(statistics: RunningStatistics | None, x: Any, clip: float = 10.0) -> Any:
    """(x - mean) / std, clipped; x [..., *shape]. The 1e-8 keeps constant features finite. Without statistics: x.

    A dict may lack entries: a policy acts without those that only the critic sees. Entries without statistics, as
    `legal`, stay as they are.
    """
    if statistics is None:
        return x

    def scale(x, mean, variance):
        mean, variance = jnp.broadcast_to(mean, x.shape), jnp.broadcast_to(variance, x.shape)
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

    mean, variance = statistics.mean, statistics.variance
    if isinstance(x, dict):
        return x | {name: jax.tree.map(scale, x[name], mean[name], variance[name]) for name in mean if name in x}
    return scale(x, mean, variance)


@struct.dataclass
class RewardScaling:
    """Statistics of the running discounted return of each environment."""

    statistics: RunningStatistics  # of the discounted return, shape []
    discounted_return: jax.Array  # [num_envs]


def init_reward_scaling(num_envs: int) -> RewardScaling:
    """Scaling before the first reward."""
    return RewardScaling(statistics=init_statistics(()), discounted_return=jnp.zeros(num_envs, jnp.float32))


def scale_rewards(scaling: RewardScaling | None, rollout: Any, gamma: float) -> tuple[RewardScaling | None, Any]:
    """Divide rewards by the std of the running discounted return, without centring (Engstrom et al. 2020).

    rollout: has reward, terminated and truncated, [num_steps, num_envs]; without scaling it stays as it is. The
    discounted return is reset *after* the last reward of an episode has been counted.
    """
    if scaling is None:
        return None, rollout
    done = rollout.terminated | rollout.truncated

    def accumulate(discounted_return, inputs):
        reward, done = inputs
        discounted_return = gamma * discounted_return + reward
        return jnp.where(done, 0.0, discounted_return), discounted_return

    discounted_return, returns = jax.lax.scan(accumulate, scaling.discounted_return, (rollout.reward, done))
    statistics = update_statistics(scaling.statistics, returns)
    reward = jnp.clip(rollout.reward * jax.lax.rsqrt(statistics.variance + 1e-8), -10.0, 10.0)
    scaling = RewardScaling(statistics=statistics, discounted_return=discounted_return)
    return scaling, rollout.replace(reward=reward)
