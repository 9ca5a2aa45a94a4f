"""Parts and units of observations, legal actions, the units of actions, and which scripts take them."""

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


def to_float(obs: jax.Array, obs_shape: tuple[int, ...]) -> jax.Array:
    """Observations [..., *obs_shape] as float32; bytes of images, [height, width, channels], are divided by 255."""
    is_image = obs.dtype == jnp.uint8 and len(obs_shape) == 3
    return obs.astype(jnp.float32) / 255.0 if is_image else obs.astype(jnp.float32)


def scripts_for(env: Any) -> list[str]:
    """Those of the four scripts that take the actions and observations of an Environment."""
    if hasattr(env.action_space, "n"):
        return ["ppo.py"] if isinstance(env.obs_shape, dict) else ["ppo.py", "dqn.py"]
    return ["ppo.py", "sac.py", "td3.py"] if _has_vectors(env) else ["ppo.py"]


def check_discrete(name: str, env: Any, only_vectors: bool = False) -> None:
    """Raise ValueError unless an Environment has discrete actions, and observations of which the policy sees all."""
    reason = ""
    if not hasattr(env.action_space, "n"):
        reason = "continuous actions, not discrete ones"
    elif isinstance(env.obs_shape, dict):
        reason = "observations that only a critic may see"
    elif only_vectors and not _has_vectors(env):
        reason = f"observations {env.obs_shape}, not vectors"
    _refuse(name, env, reason)


def check_continuous(name: str, env: Any) -> None:
    """Raise ValueError unless an Environment has continuous actions, and vectors as observations."""
    reason = ""
    if hasattr(env.action_space, "n"):
        reason = "discrete actions, not continuous ones"
    elif not _has_vectors(env):
        reason = f"observations {env.obs_shape}, not vectors"
    _refuse(name, env, reason)


def _has_vectors(env: Any) -> bool:
    return len(actor_obs(env.obs_shape)) == len(critic_obs(env.obs_shape)) == 1


def _refuse(name: str, env: Any, reason: str) -> None:
    if reason:
        raise ValueError(f"{name} has {reason}; use {' or '.join(scripts_for(env))}")


def scale_action(action: jax.Array, space: Any) -> jax.Array:
    """Clip an action [..., n] to [-1, 1] and map it linearly to the gymnax Box, per dimension.

    Discrete actions stay as they are.
    """
    if hasattr(space, "n"):
        return action
    low, high = (jnp.broadcast_to(jnp.asarray(x, action.dtype), action.shape) for x in (space.low, space.high))
    return low + 0.5 * (jnp.clip(action, -1, 1) + 1) * (high - low)
