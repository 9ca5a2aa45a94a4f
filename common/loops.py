"""Loops that launch few kernels on a GPU."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def gpu_unroll(rounds: int) -> int:
    """The `unroll` of a `jax.lax.scan` with a short body: `rounds` on a GPU, 1 elsewhere.

    Each round that is unrolled saves kernels and takes longer to compile (benchmarks/NOTES.md).
    """
    return rounds if jax.default_backend() == "gpu" else 1


def scan_mean(body: Callable, carry: Any, xs: Any, unroll: int = 1) -> tuple[Any, Any]:
    """`jax.lax.scan(body, carry, xs)` with the mean of the outputs [], as float32, in place of the stacked outputs.

    They are summed in the carry: on a GPU each stacked output would be a kernel of its own in every round.

    Raises:
        ValueError: naming an output that is an array.
    """
    body = jax.jit(body, inline=True)  # traced once for both uses

    def add(carry_and_total, x):
        carry, total = carry_and_total
        carry, outputs = body(carry, x)
        return (carry, total + jnp.stack(jax.tree.leaves(outputs)).astype(jnp.float32)), None

    _, shapes = jax.eval_shape(lambda carry, xs: body(carry, jax.tree.map(lambda x: x[0], xs)), carry, xs)
    for path, x in jax.tree.leaves_with_path(shapes):
        if x.shape:
            raise ValueError(f"{jax.tree_util.keystr(path, simple=True)} must be a number [], not {list(x.shape)}")
    leaves, structure = jax.tree.flatten(shapes)
    (carry, total), _ = jax.lax.scan(add, (carry, jnp.zeros(len(leaves), jnp.float32)), xs, unroll=unroll)
    return carry, jax.tree.unflatten(structure, total / len(jax.tree.leaves(xs)[0]))
