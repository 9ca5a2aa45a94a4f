"""Environments of every suite as the scripts use them: vectorised, with `terminated` and `truncated` kept apart."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from common.contract import check_suite
from common.loops import gpu_unroll
from common.random import is_key
from common.spaces import actor_obs, critic_obs
from common.starts import init_starts, next_starts, renew_starts
from common.suites import Suite, find_maker, make_suite


@struct.dataclass
class EnvState:
    """State of `num_envs` environments."""

    state: Any  # of the suite, [num_envs, ...]
    length: jax.Array  # [num_envs] int32, steps of the current episode
    episode_return: jax.Array  # [num_envs] float32, of the current episode
    episodes: dict[str, jax.Array]  # sums over ended episodes, [num_envs] each; see `episode_metrics`
    starts: Any  # kept observations and states of the next episodes, [num_envs, ...], or None; see common/starts.py
    turn: jax.Array  # [] int32, steps since the starts were renewed
    told: dict[str, jax.Array]  # scalar of the suite -> number of ended episodes that summed it, [num_envs] int32


class Environment:
    """`num_envs` copies of an environment; each starts a new episode when one has ended.

    Keys are typed or old-style ones (`jax.random.PRNGKey`).

    Attributes:
        obs_shape, obs_dtype: of one observation; dicts of them if observations are dicts, see `common.suites.Suite`.
        scalars: names of the scalars in the suite's info, which become metrics.

    Raises:
        ValueError: the suite is not what common/suites says, in one line.
    """

    def __init__(self, suite: Suite, max_episode_steps: int | None = None, reset_period: int | None = None):
        self.suite, self.action_space = suite, suite.action_space
        # Physics takes seconds to trace: with jit once for all programs and loops. XLA inlines the calls.
        once = (lambda function: function) if suite.is_small else jax.jit
        reset, self._step_one = once(suite.reset), once(suite.step)
        obs, state, scalars = check_suite(suite, reset, self._step_one)
        self._reset = lambda keys: jax.tree.map(_cast, jax.vmap(reset)(keys), (obs, state))
        self.max_episode_steps = suite.max_episode_steps if max_episode_steps is None else max_episode_steps
        period = self.max_episode_steps if suite.reset_period is None else suite.reset_period
        self.reset_period = (period if reset_period is None else reset_period) or 0
        self.obs_shape = jax.tree.map(lambda x: x.shape, obs)
        self.obs_dtype = jax.tree.map(lambda x: x.dtype, obs)
        self.scalars = list(scalars)

    @property
    def actor_shape(self) -> tuple[int, ...]:
        """Shape of the part of an observation that the policy sees. Raises ValueError if that is a tree of arrays."""
        return self._shape_of("actor", actor_obs(self.obs_shape))

    @property
    def critic_shape(self) -> tuple[int, ...]:
        """Shape of the part of an observation that value functions see; raises as `actor_shape` does."""
        return self._shape_of("critic", critic_obs(self.obs_shape))

    def _shape_of(self, part: str, shape: Any) -> tuple[int, ...]:
        if isinstance(shape, tuple):
            return shape
        hint = "edit the networks of the script, and where `make` gives them a shape"
        raise ValueError(f"the {part} sees several arrays, {shape}; {hint}")

    @property
    def unroll(self) -> int:
        """Rounds that a loop over steps runs as one, `jax.lax.scan(..., unroll=env.unroll)`."""
        return gpu_unroll(4) if self.suite.is_small else 1

    def reset(self, keys: jax.Array) -> tuple[jax.Array, EnvState]:
        """Start an episode in each environment. keys [num_envs] -> obs [num_envs, *obs_shape], env_state."""
        keys, ahead_keys = _split(keys, 2) if self.reset_period else (_typed(keys), None)
        starts = init_starts(self._reset, ahead_keys, self.reset_period)
        obs, state = self._reset(keys)
        zeros = jnp.zeros(keys.shape, jnp.float32)
        zero = zeros.astype(jnp.int32)
        return obs, EnvState(
            state=state,
            length=zero,
            episode_return=zeros,
            episodes=dict.fromkeys([*self.scalars, "episode_return", "episode_length"], zeros) | {"num_episodes": zero},
            starts=starts,
            turn=jnp.int32(0),
            told=dict.fromkeys(self.scalars, zero),
        )

    def advance(self, keys: jax.Array, env_state: EnvState, action: jax.Array):
        """Like `step`, but start no episode: `obs` is the true successor also where the episode has ended."""
        obs, state, reward, terminated, info = jax.vmap(self._step_one)(_typed(keys), env_state.state, action)
        reward, length = reward.astype(jnp.float32), env_state.length + 1
        truncated = info.get("truncated", jnp.zeros(terminated.shape, bool))
        if self.max_episode_steps is not None:
            truncated |= length >= self.max_episode_steps
        info = info | {name: jnp.float32(info[name]) for name in self.scalars}
        episode_return = env_state.episode_return + reward
        env_state = env_state.replace(state=state, length=length, episode_return=episode_return)
        return obs, env_state, reward, terminated, truncated, info

    def step(self, keys: jax.Array, env_state: EnvState, action: jax.Array):
        """Take one step in each environment.

        Args:
            keys: [num_envs], one key for the step and the reset that may follow it.
            env_state: from `reset` or `step`.
            action: [num_envs, ...], in the units of `action_space`.

        Returns:
            obs [num_envs, *obs_shape] (of the next episode where one ended), env_state, reward, terminated, truncated
            (each [num_envs]; both flags may be true), and info: `final_observation` (the true successor of every step)
            and all that the suite's info has, its scalars as float32.
        """
        step_keys, *reset_keys = _split(keys, 3 if self.reset_period else 2)  # to renew kept starts, to use one
        next_obs, env_state, reward, terminated, truncated, info = self.advance(step_keys, env_state, action)
        done = terminated | truncated
        is_told = {name: done & jnp.isfinite(info[name]) for name in self.scalars}
        episode = {"episode_return": env_state.episode_return, "episode_length": env_state.length, "num_episodes": 1}
        add = lambda total, x, is_counted: total + jnp.where(is_counted, x, 0).astype(total.dtype)
        counted = is_told | dict.fromkeys(episode, done)
        last = {name: info[name] for name in self.scalars} | episode
        episodes = jax.tree.map(add, env_state.episodes, last, counted)
        told = jax.tree.map(lambda count, x: count + x.astype(count.dtype), env_state.told, is_told)
        info = info | {"final_observation": next_obs}
        starts = next_starts(self._reset, reset_keys[-1], env_state.starts)
        obs, state = jax.vmap(_select)(done, starts, (next_obs, env_state.state))
        env_state = env_state.replace(
            state=state,
            length=jnp.where(done, 0, env_state.length),
            episode_return=jnp.where(done, 0.0, env_state.episode_return),
            episodes=episodes,
            told=told,
        )
        starts, turn = renew_starts(self._reset, reset_keys[0], env_state.starts, env_state.turn, self.reset_period)
        env_state = env_state.replace(starts=starts, turn=turn)
        return obs, env_state, reward, terminated, truncated, info


def _typed(keys: jax.Array) -> jax.Array:
    """Typed keys, also where they are old-style ones, uint32 [num_envs, 2]."""
    return keys if is_key(keys) else jax.random.wrap_key_data(keys)


def _split(keys: jax.Array, num: int) -> tuple[jax.Array, ...]:
    """Split each key [num_envs] into `num` keys: arrays [num_envs]; the first ones do not depend on `num`."""
    keys = jax.vmap(lambda key: jax.random.split(key, num))(_typed(keys))
    return tuple(keys[:, i] for i in range(num))


def _cast(x: jax.Array, like: jax.Array) -> jax.Array:
    return x if x.dtype == like.dtype else x.astype(like.dtype)


def _select(condition: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jax.lax.select(condition, x, y), a, b)


def make_env(name: str) -> Environment:
    """Make an environment by its name: a gymnax id or `SUITE/ENVIRONMENT`, as `brax/ant`, with or without options.

    Every suite has the options of `CartPole-v1:max_episode_steps=100,reset_period=16`; others, as in
    `brax/ant:backend=spring`, are arguments of the suite. `gymnax.register(id, factory)` adds an environment, a module
    in common/suites adds a suite.

    The same name gives the same Environment until another is registered under it. A class that was changed in place,
    as in a notebook, is seen after `make_env.cache_clear()`.

    Raises:
        ValueError: an unknown name (the message suggests the nearest ones), a package that is not installed, a wrong
            option, an unsupported action space, or an environment that is not what common/suites says.
    """
    return _make_env(name, find_maker(name))


@functools.cache
def _make_env(name: str, maker: Any) -> Environment:
    with jax.ensure_compile_time_eval():  # keeps its constants concrete where a sweep traces all of `make`
        suite, limits = make_suite(name)
        try:
            return Environment(suite, **limits)
        except ValueError as error:
            if hasattr(error, "__notes__"):  # JAX's, on an error inside of the environment: it keeps its traceback
                raise
            raise ValueError(f"{name}: {error}") from error


make_env.cache_clear = _make_env.cache_clear


def clear_episodes(env_state: EnvState) -> EnvState:
    """Restart the sums over ended episodes."""
    episodes, told = jax.tree.map(jnp.zeros_like, (env_state.episodes, env_state.told))
    return env_state.replace(episodes=episodes, told=told)


def episode_metrics(env_state: EnvState) -> dict[str, jax.Array]:
    """Number of episodes ended since `clear_episodes`, and means of their returns, lengths and last scalars.

    The means are NaN if no episode has ended: a zero would be a score. A scalar that is not finite is left out.
    """
    totals, told = jax.tree.map(lambda x: x.sum(dtype=x.dtype), (env_state.episodes, env_state.told))
    num_episodes = totals.pop("num_episodes")

    def mean_of(count):
        divisor = jnp.maximum(count, 1).astype(jnp.float32)
        return lambda total: jnp.where(count > 0, total / divisor, jnp.nan)

    mean = {name: mean_of(count) for name, count in told.items()}
    of_all = mean_of(num_episodes)
    means = {name: mean.get(name, of_all)(total) for name, total in totals.items()}
    return means | {"num_episodes": num_episodes}
