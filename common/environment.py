"""Gymnax environments as the scripts use them: vectorised, with plain arrays and both ends of an episode told apart."""

import difflib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class _Adapter:
    """One gymnax environment whose observations are arrays of rank 1 or images [H, W, C] and whose rewards are float32.

    Discrete observations become one-hot float32 vectors; other ranks are flattened. A dtype is kept as the
    environment makes it.
    """

    def __init__(self, env, params):
        self._env = env
        self._params = params
        space = env.observation_space(params)
        self._num_observations = getattr(space, "n", None)  # of a Discrete space

    def _convert(self, obs):
        if self._num_observations is not None:
            return jax.nn.one_hot(obs, self._num_observations, dtype=jnp.float32)
        obs = jnp.asarray(obs)
        is_image = obs.ndim == 3 and min(obs.shape[:2]) >= 3  # the smallest a 3x3 convolution takes
        return obs if is_image else obs.reshape(-1)

    def reset(self, key, params):
        obs, env_state = self._env.reset(key, params)
        return self._convert(obs), env_state

    def step(self, key, env_state, action, params):
        obs, env_state, reward, terminated, truncated, info = self._env.step(key, env_state, action, params)
        info = {"final_observation": self._convert(info["final_observation"])}
        return self._convert(obs), env_state, jnp.asarray(reward, jnp.float32), terminated, truncated, info


class Environment:
    """`num_envs` copies of a gymnax environment side by side, reset automatically when an episode ends.

    Attributes:
        name: the gymnax id.
        action_space: `Discrete` or a bounded `Box` of rank 1.
        obs_shape, obs_dtype: of one observation.
        max_episode_steps: the time limit in steps, None if the environment does not tell.
    """

    def __init__(self, name: str, env, params):
        from gymnax.wrappers import LogWrapper

        self.name = name
        self.env, self.params = env, params
        self.action_space = env.action_space(params)
        limit = getattr(params, "max_steps_in_episode", None)
        self.max_episode_steps = None if limit is None else int(limit)
        self._logged = LogWrapper(_Adapter(env, params))
        obs, _ = jax.eval_shape(self._logged.reset, jax.random.key(0), params)
        self.obs_shape, self.obs_dtype = obs.shape, obs.dtype

    def reset(self, keys: jax.Array) -> tuple[jax.Array, Any]:
        """Start an episode in each environment. keys [num_envs] -> obs [num_envs, *obs_shape], env_state."""
        return jax.vmap(self._logged.reset, in_axes=(0, None))(keys, self.params)

    def step(self, keys: jax.Array, env_state: Any, action: jax.Array):
        """One step in each environment.

        Args:
            keys: [num_envs], one key for the step and the reset that may follow it.
            env_state: from `reset` or `step`.
            action: [num_envs, ...], in the environment's own units.

        Returns:
            obs [num_envs, *obs_shape] (after an end: the next episode's first), env_state, reward, terminated,
            truncated (each [num_envs], both flags may be true at once), and info with `final_observation` (the true
            next observation, on every step) and gymnax' `returned_episode`, `returned_episode_returns`,
            `returned_episode_lengths` (each [num_envs]).
        """
        return jax.vmap(self._logged.step, in_axes=(0, 0, 0, None))(keys, env_state, action, self.params)


def make_env(name: str) -> Environment:
    """Make an environment by its gymnax id; `gymnax.register(name, factory)` adds one of your own.

    Raises:
        ValueError: unknown name (the nearest ones are suggested), or a space that the scripts cannot use.
    """
    import gymnax  # two seconds, and it starts JAX's backend: --help need not wait, and processes have to meet before
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
    action_space = environment.action_space
    if isinstance(action_space, spaces.Discrete):
        return environment
    if not isinstance(action_space, spaces.Box) or len(action_space.shape) != 1:
        raise ValueError(
            f"{name} has the action space {action_space}; these scripts take Discrete(n) or a Box of shape (n,)"
        )
    if not all(np.isfinite(bound).all() for bound in (action_space.low, action_space.high)):
        raise ValueError(f"{name} has the unbounded action space {action_space}; give its Box finite bounds")
    return environment


def scale_action(action: jax.Array, space: Any) -> jax.Array:
    """Clip an action [..., n] to [-1, 1] and map it linearly to the gymnax Box, per dimension."""
    low, high = (jnp.broadcast_to(jnp.asarray(x, action.dtype), action.shape) for x in (space.low, space.high))
    return low + 0.5 * (jnp.clip(action, -1, 1) + 1) * (high - low)


def episode_metrics(info: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Mean return and length of the episodes that ended in `info`, whose arrays have any equal shape, and their number.

    The means are NaN where none ended: a zero would be a score.
    """
    ended = info["returned_episode"]
    num_episodes = ended.sum(dtype=jnp.int32)
    divisor = jnp.maximum(num_episodes, 1).astype(jnp.float32)
    total_return = jnp.where(ended, info["returned_episode_returns"], 0).sum()
    total_length = jnp.where(ended, info["returned_episode_lengths"], 0).astype(jnp.float32).sum()
    return {
        "episode_return": jnp.where(num_episodes > 0, total_return / divisor, jnp.nan),
        "episode_length": jnp.where(num_episodes > 0, total_length / divisor, jnp.nan),
        "num_episodes": num_episodes,
    }
