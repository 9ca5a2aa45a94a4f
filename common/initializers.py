"""Initialisation of the networks' weights."""

import math

import jax
import jax.numpy as jnp


def orthogonal(scale: float) -> jax.nn.initializers.Initializer:
    """Orthogonal initialisation (Saxe et al. 2014) by Gram-Schmidt, a drop-in for `nn.initializers.orthogonal`.

    A kernel [..., fan_out], as a matrix [fan_in, fan_out], gets orthogonal rows or columns, whichever are fewer, of
    length `scale`, distributed uniformly. JAX's own calls LAPACK's QR: batched calls can deadlock several CPU devices.
    """

    def init(key, shape, dtype=jnp.float32):
        fan_in, fan_out = math.prod(shape[:-1]), shape[-1]
        normal = jax.random.normal(key, (min(fan_in, fan_out), max(fan_in, fan_out)), dtype)

        def add_row(i, rows):
            row = normal[i]
            for _ in range(2):  # a second pass removes the rounding errors of the first
                row = row - jnp.matmul(jnp.matmul(rows, row, precision="highest"), rows, precision="highest")
            return rows.at[i].set(row / jnp.linalg.norm(row))

        rows = jax.lax.fori_loop(0, len(normal), add_row, jnp.zeros_like(normal))
        return jnp.asarray(scale, dtype) * (rows.T if fan_in >= fan_out else rows).reshape(shape)

    return init
