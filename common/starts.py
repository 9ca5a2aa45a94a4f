"""Starts of episodes that are computed ahead, for suites whose reset takes as long as many steps.

Each environment keeps one start, and all are renewed together, once in `period` steps: an episode that follows one of
at least that length has a start of its own, one that follows a shorter episode may begin as that did. With a period of
0 no start is kept, and each step computes fresh ones. `reset` is vectorised: keys [num_envs] -> observations, states.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def init_starts(reset: Callable, keys: jax.Array, period: int) -> Any:
    """The first starts that are kept; None if none are."""
    return reset(keys) if period else None


def next_starts(reset: Callable, keys: jax.Array, starts: Any) -> Any:
    """Observations and states for the episodes that begin after this step."""
    return reset(keys) if starts is None else starts


def renew_starts(reset: Callable, keys: jax.Array, starts: Any, turn: jax.Array, period: int) -> tuple[Any, jax.Array]:
    """Renew all kept starts where `turn`, the number of steps since the last time, reaches the period.

    All at once, because on a GPU a deep reset costs its depth, not its width.
    """
    if starts is None:
        return starts, turn
    turn += 1
    is_due = turn == period
    # A loop of no or one round: under vmap it is skipped where no lane needs it, which a cond is not.
    renew = lambda _: (reset(keys), jnp.bool_(False))  # noqa: E731
    starts, _ = jax.lax.while_loop(lambda carry: carry[1], renew, (starts, is_due))
    return starts, jnp.where(is_due, 0, turn)
