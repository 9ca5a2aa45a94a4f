"""A guard for physics, which becomes NaN or infinite now and then, on a GPU more often."""

from typing import Any

import jax
import jax.numpy as jnp


def guard_physics(
    obs: Any, reward: jax.Array, terminated: jax.Array, metrics: dict[str, jax.Array]
) -> tuple[Any, jax.Array, jax.Array, dict[str, jax.Array]]:
    """End an episode whose observation or reward is not finite, as a termination, so that learning never sees either.

    Takes and returns what one step of one environment tells: obs [*obs_shape] or a dict of such, reward [],
    terminated [] bool, and metrics [] each. In the step that failed obs, reward and metrics are 0. A metric is added:
    `physics_failed`, whose mean over episodes is the share of those that ended so.
    """
    is_finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves((obs, reward))]).all()
    obs, reward, metrics = jax.tree.map(lambda x: jnp.where(is_finite, x, jnp.zeros_like(x)), (obs, reward, metrics))
    return obs, reward, terminated | ~is_finite, metrics | {"physics_failed": ~is_finite}
