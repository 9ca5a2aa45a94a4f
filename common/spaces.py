"""Parts and units of observations, legal actions, units of actions, and whether a script takes them."""

from typing import Any

import jax
import jax.numpy as jnp


def actor_obs(obs: Any) -> Any:
    """The part of an observation that the policy sees: all of it, or the entry `actor`. Takes `obs_shape` too."""
    return obs["actor"] if isinstance(obs, dict) else obs


def critic_obs(obs: Any) -> Any:
    """The part that value functions see: the entry `critic`, as in simulation (Pinto et al. 2018), or the policy's."""
    return obs["critic"] if isinstance(obs, dict) and "critic" in obs else actor_obs(obs)


def legal_actions(obs: Any) -> jax.Array | None:
    """The entry `legal` of an observation, [..., n] bool; None if all actions are legal. Takes `obs_shape` too."""
    return obs.get("legal") if isinstance(obs, dict) else None


def forbid_illegal(scores: jax.Array, obs: Any) -> jax.Array:
    """Scores of actions [..., n], logits or Q values, made very low where obs calls the action illegal.

    As logits they have probability 0 and gradient 0 (Huang & Ontañón 2022, arXiv:2006.14171).
    """
    legal = legal_actions(obs)
    return scores if legal is None else jnp.where(legal, scores, -1e9)


def draw_choices(key: jax.Array, shape: tuple[int, ...], env: Any) -> jax.Array:
    """Random integers [*shape] int32 from which `choose_legal` makes actions, uniform over the legal ones."""
    return jax.random.randint(key, shape, 0, 2**30 if legal_actions(env.obs_shape) else env.action_space.n)


def choose_legal(number: jax.Array, obs: Any) -> jax.Array:
    """The legal action with this number [...] int, modulo their count; the number itself if all actions are legal."""
    legal = legal_actions(obs)
    if legal is None:
        return number
    number = number % legal.sum(axis=-1)
    return (legal.cumsum(axis=-1) > number[..., None]).argmax(axis=-1)


def patches(x: jax.Array, size: int) -> jax.Array:
    """All size x size patches of images, [..., h, w, c] -> [..., h - size + 1, w - size + 1, size**2 * c].

    A Dense layer on them is a convolution without padding: under vmap several times faster than nn.Conv.
    """
    height, width = x.shape[-3] - size + 1, x.shape[-2] - size + 1
    shifts = [(i, j) for i in range(size) for j in range(size)]
    return jnp.concatenate([x[..., i : i + height, j : j + width, :] for i, j in shifts], axis=-1)


def to_float(obs: jax.Array, obs_shape: tuple[int, ...]) -> jax.Array:
    """Observations [..., *obs_shape] as float32; bytes of images, [height, width, channels], are divided by 255."""
    is_image = obs.dtype == jnp.uint8 and len(obs_shape) == 3
    return obs.astype(jnp.float32) / 255.0 if is_image else obs.astype(jnp.float32)


def check_discrete(name: str, env: Any, only_vectors: bool = False) -> None:
    """Raise ValueError unless an Environment has discrete actions, and no part of observations for critics alone."""
    if not hasattr(env.action_space, "n"):
        raise ValueError(f"{name} has continuous actions, and this script takes discrete ones")
    if isinstance(env.obs_shape, dict) and "critic" in env.obs_shape:
        raise ValueError(f"{name} has observations that only a critic may see, and this script has none")
    if only_vectors:
        _check_vectors(name, env)


def check_continuous(name: str, env: Any) -> None:
    """Raise ValueError unless an Environment has continuous actions, and vectors as observations."""
    if hasattr(env.action_space, "n"):
        raise ValueError(f"{name} has discrete actions, and this script takes continuous ones")
    _check_vectors(name, env)


def _check_vectors(name: str, env: Any) -> None:
    if not len(env.actor_shape) == len(env.critic_shape) == 1:
        raise ValueError(f"{name} has observations {env.obs_shape}, and this script takes vectors")


def scale_action(action: jax.Array, space: Any) -> jax.Array:
    """Clip an action [..., n] to [-1, 1] and map it linearly to the gymnax Box, per dimension.

    Discrete actions stay as they are.
    """
    if hasattr(space, "n"):
        return action
    low, high = (jnp.broadcast_to(jnp.asarray(x, action.dtype), action.shape) for x in (space.low, space.high))
    return low + 0.5 * (jnp.clip(action, -1, 1) + 1) * (high - low)
