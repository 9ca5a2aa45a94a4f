"""Parts of observations, legal actions, and the units of actions."""

from typing import Any

import jax
import jax.numpy as jnp


def forbid(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Scores of actions [..., n], logits or Q values, made very low where the mask [..., n] has no legal action.

    As logits they have probability 0 and gradient 0 (Huang & Ontañón 2022, arXiv:2006.14171).
    """
    return scores if mask is None else jnp.where(mask, scores, -1e9)


def choose_legal(number: jax.Array, mask: jax.Array | None) -> jax.Array:
    """The legal action of a number [...] int, counted in a circle; without a mask [..., n] the number itself."""
    if mask is None:
        return number
    number = number % mask.sum(axis=-1)
    return (mask.cumsum(axis=-1) > number[..., None]).argmax(axis=-1)


def actor_obs(obs: Any) -> Any:
    """The part of an observation that the policy sees: all of it, or the entry `actor`. Also of `obs_shape`."""
    return obs["actor"] if isinstance(obs, dict) else obs


def critic_obs(obs: Any) -> Any:
    """The part that value functions see: all of it, or the entry `critic`, known in simulation (Pinto et al. 2018)."""
    return obs["critic"] if isinstance(obs, dict) else obs


def scale_action(action: jax.Array, space: Any) -> jax.Array:
    """Clip an action [..., n] to [-1, 1] and map it linearly to the gymnax Box, per dimension.

    Discrete actions stay as they are.
    """
    if hasattr(space, "n"):
        return action
    low, high = (jnp.broadcast_to(jnp.asarray(x, action.dtype), action.shape) for x in (space.low, space.high))
    return low + 0.5 * (jnp.clip(action, -1, 1) + 1) * (high - low)
