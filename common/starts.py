"""Starts of episodes that are computed ahead, for suites whose reset takes as long as many steps.

Each environment keeps one start, and all are renewed together, once in `period` steps: an episode that follows one of
at least that length has a start of its own, one that follows a shorter episode may begin as that did. With a period of
0 no start is kept, and each step computes fresh ones. `reset` is vectorised: keys [num_envs] -> observations, states.

A start that is used again gets new generators, or the whole episode would have the random numbers of the one before:
the typed keys in its state, and old-style ones, uint32 [2], that are called `rng` or `key`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from common.random import is_key


def init_starts(reset: Callable, keys: jax.Array, period: int) -> Any:
    """The first starts that are kept; None if none are."""
    return reset(keys) if period else None


def next_starts(reset: Callable, keys: jax.Array, starts: Any) -> Any:
    """Observations and states for the episodes that begin after this step."""
    if starts is None:
        return reset(keys)
    obs, states = starts
    return obs, jax.vmap(_renew_generators)(keys, states)


def _renew_generators(key: jax.Array, state: Any) -> Any:
    """The state of one environment with a key of its own in place of each generator."""
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves = [x for _, x in paths_and_leaves]
    places = [place for place, (path, x) in enumerate(paths_and_leaves) if _is_generator(path, x)]
    for place, new in zip(places, jax.random.split(key, len(places)), strict=True):
        x = leaves[place]
        leaves[place] = jax.random.key_data(new) if x.dtype == jnp.uint32 else jax.random.split(new, x.shape)
    return jax.tree.unflatten(structure, leaves)


def _is_generator(path: Any, x: jax.Array) -> bool:
    is_raw = x.dtype == jnp.uint32 and x.shape == (2,)
    is_named = jax.tree_util.keystr(path[-1:], simple=True) in ("rng", "key")
    return is_key(x) or (is_raw and is_named)


def renew_starts(reset: Callable, keys: jax.Array, starts: Any, turn: jax.Array, period: int) -> tuple[Any, jax.Array]:
    """Renew all kept starts where `turn`, the number of steps since they were renewed, reaches the period.

    All at once, because on a GPU a deep reset costs its depth, not its width.
    """
    if starts is None:
        return starts, turn
    turn += 1
    is_due = turn == period

    def renew(carry):
        # Keys that nothing in the loop changed would let XLA compute the reset before it, in every step.
        loop_keys, _ = jax.lax.optimization_barrier((keys, carry[1]))
        return reset(loop_keys), jnp.bool_(False)

    # A loop of no or one round: under vmap it is skipped where no trial needs it, which a cond is not.
    starts, _ = jax.lax.while_loop(lambda carry: carry[1], renew, (starts, is_due))
    return starts, jnp.where(is_due, 0, turn)
