"""A ring buffer of whole transitions that lives on the device."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Buffer:
    """The newest `capacity` transitions, whatever their number of fields; every dtype is kept."""

    transitions: Any  # [capacity, ...]
    position: jax.Array  # [] int32, the row that is written next
    size: jax.Array  # [] int32, rows written so far, at most capacity


def init_buffer(transition: Any, capacity: int) -> Buffer:
    """An empty buffer for transitions of these shapes and dtypes; `transition` is one row, abstract or not."""
    rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), transition)
    return Buffer(transitions=rows, position=jnp.int32(0), size=jnp.int32(0))


def add(buffer: Buffer, transitions: Any) -> Buffer:
    """Write transitions [n, ...] over the oldest rows, in order, as `collections.deque(maxlen=capacity).extend` would.

    In place where the buffer is donated or carried by a loop. n may not exceed the capacity and need not divide it.

    Raises:
        ValueError: more transitions than the buffer has rows.
    """
    capacity = jax.tree.leaves(buffer.transitions)[0].shape[0]
    n = jax.tree.leaves(transitions)[0].shape[0]
    if n > capacity:
        raise ValueError(f"{n} transitions do not fit a buffer of {capacity}")
    rows = (buffer.position + jnp.arange(n, dtype=jnp.int32)) % capacity
    if n == 1:
        # On a CPU, XLA would fuse the write of a single row into the reads that follow, and copy the whole buffer for
        # that. A row that is written twice stays a loop of its own.
        rows, transitions = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), (rows, transitions))
    return Buffer(
        transitions=jax.tree.map(
            lambda old, new: old.at[rows].set(new.astype(old.dtype)), buffer.transitions, transitions
        ),
        position=(buffer.position + n) % capacity,
        size=jnp.minimum(buffer.size + n, capacity),
    )


def sample(buffer: Buffer, key: jax.Array, shape: tuple[int, ...]) -> Any:
    """Transitions [*shape, ...] drawn uniformly, with replacement, from the rows that are written. Costs O(shape)."""
    rows = jax.random.randint(key, shape, 0, buffer.size)
    return jax.tree.map(lambda x: x[rows], buffer.transitions)


def check_replay(config: Any) -> None:
    """Refuse settings of the replay that cannot be honoured exactly.

    Raises:
        ValueError: naming the fields and what would fit.
    """
    if max(config.num_envs, config.train_interval) % min(config.num_envs, config.train_interval):
        raise ValueError(
            f"num_envs = {config.num_envs} and train_interval = {config.train_interval}: one must be a multiple of the "
            "other, or updates per env step would not be what they are said to be"
        )
    for name in ("steps_per_iteration", "target_interval"):
        interval = getattr(config, name, config.cycle_steps)
        if interval < 1 or interval % config.cycle_steps:
            raise ValueError(
                f"{name} = {interval} must be a multiple of {config.cycle_steps} = max(num_envs, train_interval)"
            )
    if config.learning_starts % config.num_envs:
        raise ValueError(
            f"learning_starts = {config.learning_starts} is not a multiple of num_envs = {config.num_envs}"
        )
    if not config.batch_size <= config.learning_starts <= config.buffer_size:
        raise ValueError(
            "batch_size <= learning_starts <= buffer_size must hold, not "
            f"{config.batch_size} <= {config.learning_starts} <= {config.buffer_size}"
        )
