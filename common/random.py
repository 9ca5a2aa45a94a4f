"""Keys, random rows of minibatches, and noise that is correlated in time."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def is_key(x: Any) -> bool:
    """Whether an array, concrete or abstract, holds typed keys."""
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def shuffle(key: jax.Array, num_rows: int) -> jax.Array:
    """The row numbers 0 to num_rows - 1 in random order, [num_rows] uint32.

    Sorts one uint32 per row, random bits above the row number: on a CPU several times faster than
    `jax.random.permutation`. Ties keep their order, which matters only across a minibatch boundary:
    at 1 boundary in 33,000 for 512 rows, at 1 in 128 for 8,192.
    """
    row_bits = (num_rows - 1).bit_length()
    random_bits = jax.random.bits(key, (num_rows,), jnp.uint32) >> row_bits << row_bits
    return jnp.sort(random_bits | jnp.arange(num_rows, dtype=jnp.uint32)) & (2**row_bits - 1)


def shuffle_epochs(key: jax.Array, num_epochs: int, num_rows: int, minibatch_size: int) -> jax.Array:
    """Row numbers of the minibatches of all epochs, each in an order of its own.

    Returns:
        [num_epochs * num_rows / minibatch_size, minibatch_size] uint32.
    """
    epochs = jax.vmap(shuffle, (0, None))(jax.random.split(key, num_epochs), num_rows)
    return shard_rows(epochs.reshape(-1, minibatch_size))


def shard_rows(rows: jax.Array) -> jax.Array:
    """Split row numbers [..., minibatch_size], and with them the gradient, over the devices of a trial.

    They stay whole where a trial has one device, that is without a mesh axis "env" in the context, and where
    minibatch_size does not divide by the number of devices.
    """
    num_devices = jax.sharding.get_abstract_mesh().shape.get("env", 1)
    if num_devices == 1 or rows.shape[-1] % num_devices:
        return rows
    return jax.lax.with_sharding_constraint(rows, PartitionSpec(*[None] * (rows.ndim - 1), "env"))


def correlate(last: jax.Array | None, noise: jax.Array, noise_steps: int) -> tuple[jax.Array | None, jax.Array]:
    """Next noise of an AR(1) process: variance 1, autocorrelation (1 - 1 / noise_steps)^lag.

    Args:
        last: the noise before; None: nothing is correlated.
        noise: normal, white.

    Returns:
        What is `last` in the next step, and the noise of this one.
    """
    if last is None:
        return None, noise
    correlation = 1.0 - 1.0 / noise_steps
    noise = correlation * last + (1.0 - correlation**2) ** 0.5 * noise
    return noise, noise
