"""Gymnax environments as the scripts use them: vectorised, with `terminated` and `truncated` kept apart."""

import difflib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

GYMNAX_INFO = ("discount", "terminated", "truncated", "returned_episode_valid")  # entries that no script uses


class Environment:
    """`num_envs` copies of a gymnax environment, each reset automatically when its episode ends.

    An observation has the environment's own shape and dtype; only a Discrete one becomes a one-hot float32 vector.

    Attributes:
        action_space: `Discrete` or a bounded `Box` of rank 1.
        obs_shape, obs_dtype: of one observation.
        max_episode_steps: the time limit in steps, None if unknown.
    """

    def __init__(self, name: str, env, params):
        from gymnax.wrappers import LogWrapper

        self.name, self.env, self.params = name, env, params
        self.action_space = env.action_space(params)
        limit = getattr(params, "max_steps_in_episode", None)
        self.max_episode_steps = None if limit is None else int(limit)
        self._logged = LogWrapper(env)
        self._num_observations = getattr(env.observation_space(params), "n", None)  # of a Discrete space
        obs, _ = jax.eval_shape(self.reset, jax.random.split(jax.random.key(0), 1))
        self.obs_shape, self.obs_dtype = obs.shape[1:], obs.dtype

    def _convert(self, obs):
        if self._num_observations is None:
            return obs
        return jax.nn.one_hot(obs, self._num_observations, dtype=jnp.float32)

    def reset(self, keys: jax.Array) -> tuple[jax.Array, Any]:
        """Start an episode in each environment. keys [num_envs] -> obs [num_envs, *obs_shape], env_state."""
        obs, env_state = jax.vmap(self._logged.reset, in_axes=(0, None))(keys, self.params)
        return self._convert(obs), env_state

    def step(self, keys: jax.Array, env_state: Any, action: jax.Array):
        """One step in each environment.

        Args:
            keys: [num_envs], one key for the step and the reset that may follow it.
            env_state: from `reset` or `step`.
            action: [num_envs, ...], in the environment's own units.

        Returns:
            obs [num_envs, *obs_shape] (of the next episode where one ended), env_state, reward, terminated, truncated
            (each [num_envs]; both flags may be true), and info: `final_observation` (the true successor of every step),
            gymnax' `returned_episode`, `returned_episode_returns` and `returned_episode_lengths`, and the scalars of
            the environment's own info.
        """
        step = jax.vmap(self._logged.step, in_axes=(0, 0, 0, None))
        obs, env_state, reward, terminated, truncated, info = step(keys, env_state, action, self.params)
        next_obs = self._convert(info.pop("final_observation"))
        info = {
            name: x for name, x in info.items() if name not in GYMNAX_INFO and getattr(x, "shape", None) == keys.shape
        }
        info["final_observation"] = next_obs
        return self._convert(obs), env_state, reward.astype(jnp.float32), terminated, truncated, info


def make_env(name: str) -> Environment:
    """Make an environment by its gymnax id; `gymnax.register(name, factory)` adds one of your own.

    Raises:
        ValueError: an unknown name (the message suggests the nearest ones) or an unsupported action space.
    """
    import gymnax  # imported here: it takes two seconds and starts JAX's backend, which must happen after hosts.connect
    from gymnax.environments import spaces

    if name not in gymnax.registered_envs:
        near = difflib.get_close_matches(name, gymnax.registered_envs, n=3) or gymnax.registered_envs
        raise ValueError(f"unknown environment {name!r}; did you mean {' or '.join(near)}?")
    try:
        with jax.ensure_compile_time_eval():  # its spaces are constants, also where a sweep traces all of `make`
            env, params = gymnax.make(name)
            environment = Environment(name, env, params)
    except (OSError, ImportError) as error:
        raise ValueError(f"{name} cannot be made here: {error}") from error
    space = environment.action_space
    if isinstance(space, spaces.Discrete):
        return environment
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"{name} has the action space {space}; the scripts take Discrete(n) or a Box of shape (n,)")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(f"{name} has the unbounded action space {space}; give its Box finite bounds")
    return environment


def scale_action(action: jax.Array, space: Any) -> jax.Array:
    """Clip an action [..., n] to [-1, 1] and map it linearly to the gymnax Box, per dimension."""
    low, high = (jnp.broadcast_to(jnp.asarray(x, action.dtype), action.shape) for x in (space.low, space.high))
    return low + 0.5 * (jnp.clip(action, -1, 1) + 1) * (high - low)


def episode_metrics(info: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Number of the episodes that ended, and means over them: return, length, last values of the environment's scalars.

    The arrays in `info` have any equal shape. The means are NaN where no episode ended: a zero would be a score.
    """
    ended = info["returned_episode"]
    num_episodes = ended.sum(dtype=jnp.int32)

    def mean(x):
        total = jnp.where(ended, x, 0).astype(jnp.float32).sum()
        return jnp.where(num_episodes > 0, total / jnp.maximum(num_episodes, 1).astype(jnp.float32), jnp.nan)

    scalars = {name: mean(x) for name, x in info.items() if not name.startswith("returned_episode")}
    return scalars | {
        "episode_return": mean(info["returned_episode_returns"]),
        "episode_length": mean(info["returned_episode_lengths"]),
        "num_episodes": num_episodes,
    }
