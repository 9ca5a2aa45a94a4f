"""Initialisation of the networks' weights."""

import math
from functools import partial

import jax
import jax.numpy as jnp


def orthogonal(scale: float) -> jax.nn.initializers.Initializer:
    """Orthogonal initialisation (Saxe et al. 2014) by Gram-Schmidt, a drop-in for `nn.initializers.orthogonal`.

    A kernel [..., fan_out], as a matrix [fan_in, fan_out], gets orthogonal rows or columns, whichever are fewer, of
    length `scale`, distributed uniformly. JAX's own calls LAPACK's QR: batched calls can deadlock several CPU devices.
    """

    def init(key, shape, dtype=jnp.float32):
        fan_in, fan_out = math.prod(shape[:-1]), shape[-1]
        rows = _orthonormal_rows(key, min(fan_in, fan_out), max(fan_in, fan_out), dtype)
        return jnp.asarray(scale, dtype) * (rows.T if fan_in >= fan_out else rows).reshape(shape)

    return init


@partial(jax.jit, static_argnums=(1, 2, 3), inline=True)  # traced once per shape: flax asks in every `apply`
def _orthonormal_rows(key: jax.Array, num_rows: int, size: int, dtype: jnp.dtype) -> jax.Array:
    """Rows of length 1, orthogonal to each other, [num_rows, size]."""
    normal = jax.random.normal(key, (num_rows, size), dtype)

    def add_row(i, rows):
        def project(_, row):
            return row - jnp.matmul(jnp.matmul(rows, row, precision="highest"), rows, precision="highest")

        row = jax.lax.fori_loop(0, 2, project, normal[i])  # a second pass removes the rounding errors of the first
        return rows.at[i].set(row / jnp.linalg.norm(row))

    return jax.lax.fori_loop(0, num_rows, add_row, jnp.zeros_like(normal))
