"""A ring buffer of whole transitions that lives on the device."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Buffer:
    """The newest `capacity` transitions, any dataclass or dict of arrays; every dtype is kept."""

    transitions: Any  # [capacity, ...]
    position: jax.Array  # [] int32, the row that is written next
    size: jax.Array  # [] int32, rows written so far, at most capacity


def init_buffer(transition: Any, capacity: int) -> Buffer:
    """An empty buffer for transitions like this row of arrays or ShapeDtypeStructs."""
    rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), transition)
    return Buffer(transitions=rows, position=jnp.int32(0), size=jnp.int32(0))


def add(buffer: Buffer, transitions: Any) -> Buffer:
    """Write transitions [n, ...] over the oldest rows, in order, as `collections.deque(maxlen=capacity).extend` does.

    In place where the buffer is donated or carried by a loop. n need not divide the capacity.

    Raises:
        ValueError: more transitions than the buffer has rows.
    """
    capacity = jax.tree.leaves(buffer.transitions)[0].shape[0]
    n = jax.tree.leaves(transitions)[0].shape[0]
    if n > capacity:
        raise ValueError(f"{n} transitions do not fit a buffer of {capacity}")
    rows = (buffer.position + jnp.arange(n, dtype=jnp.int32)) % capacity
    if n == 1:
        # On a CPU, XLA fuses the write of a single row into the reads that follow, and copies the whole buffer.
        # Writing the row twice prevents that fusion.
        rows, transitions = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), (rows, transitions))
    transitions = jax.tree.map(lambda old, x: old.at[rows].set(x.astype(old.dtype)), buffer.transitions, transitions)
    return Buffer(
        transitions=transitions,
        position=(buffer.position + n) % capacity,
        size=jnp.minimum(buffer.size + n, capacity),
    )


def sample(
    buffer: Buffer, key: jax.Array, shape: tuple[int, ...], n_step: int = 1, num_envs: int = 1, gamma: float = 1.0
) -> Any:
    """Transitions [*shape, ...] drawn uniformly, with replacement, from the rows written so far. Costs O(shape).

    With n_step > 1 each is the first of a window of rows of one environment, `num_envs` rows apart. The window ends
    after n_step rows, with the episode or with the newest row: `reward` is its discounted sum, `discount` is gamma to
    the power of its length, `terminated` and `next_obs` are those of its last row.
    """
    rows = jax.random.randint(key, shape, 0, buffer.size)
    stored = buffer.transitions
    batch = jax.tree.map(lambda x: x[rows], stored)
    if n_step == 1:
        return batch
    capacity = len(stored.reward)
    num_newer = (buffer.position - 1 - rows) % capacity
    last, is_open = rows, jnp.ones(shape, bool)
    reward, discount = batch.reward, jnp.full(shape, gamma, batch.reward.dtype)
    for i in range(1, n_step):
        is_open &= ~(stored.terminated[last] | stored.truncated[last]) & (i * num_envs <= num_newer)
        last = jnp.where(is_open, (rows + i * num_envs) % capacity, last)
        reward += jnp.where(is_open, discount * stored.reward[last], 0.0)
        discount *= jnp.where(is_open, gamma, 1.0)
    end = {"terminated": stored.terminated[last], "next_obs": stored.next_obs[last]}
    return batch.replace(reward=reward, discount=discount, **end)
