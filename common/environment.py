"""Environments of every suite as the scripts use them: vectorised, with `terminated` and `truncated` kept apart."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from common.environments import make_suite


@struct.dataclass
class EnvState:
    """What `num_envs` environments carry from step to step."""

    state: Any  # of the suite, [num_envs, ...]
    length: jax.Array  # [num_envs] int32, steps of the current episode
    episode_return: jax.Array  # [num_envs] float32, of the current episode
    starts: Any  # observation and state that the next episodes begin with, [num_envs, ...]; None if not kept ahead
    turn: jax.Array  # [] int32, decides whose start is renewed next


class Environment:
    """`num_envs` copies of an environment, each of which starts its next episode when one has ended.

    A suite describes one environment. It has
      - `action_space`: a gymnax `Discrete`, or a bounded `Box` of rank 1;
      - `max_episode_steps`: the time limit in steps, None without one;
      - `reset_period`: 0, every step computes a fresh start, as is best where that is cheap. Otherwise one start per
        environment is kept ahead and renewed once in `reset_period` steps: an episode of at least that length begins
        where no other did, a shorter one may begin as the one before it;
      - `reset(key) -> obs, state` and `step(key, state, action) -> obs, state, reward, terminated, info`, where
        `terminated` never includes the time limit. Scalars in `info` become metrics; `info["truncated"]` says that the
        suite cuts the episode by a rule of its own.

    Attributes:
        obs_shape, obs_dtype: of one observation.
    """

    def __init__(self, suite: Any, max_episode_steps: int | None = None, reset_period: int | None = None):
        self.suite, self.action_space = suite, suite.action_space
        self.max_episode_steps = suite.max_episode_steps if max_episode_steps is None else max_episode_steps
        self.reset_period = suite.reset_period if reset_period is None else reset_period
        obs, _ = jax.eval_shape(suite.reset, jax.eval_shape(jax.random.key, 0))
        self.obs_shape, self.obs_dtype = obs.shape, obs.dtype

    def reset(self, keys: jax.Array) -> tuple[jax.Array, EnvState]:
        """Start an episode in each environment. keys [num_envs] -> obs [num_envs, *obs_shape], env_state."""
        starts = None
        if self.reset_period:
            keys, ahead_keys = _split(keys)
            starts = jax.vmap(self.suite.reset)(ahead_keys)
        obs, state = jax.vmap(self.suite.reset)(keys)
        zeros = jnp.zeros(keys.shape, jnp.int32)
        return obs, EnvState(
            state=state, length=zeros, episode_return=zeros.astype(jnp.float32), starts=starts, turn=jnp.int32(0)
        )

    def advance(self, keys: jax.Array, env_state: EnvState, action: jax.Array):
        """Like `step`, but no episode is started: `obs` is the successor also where the episode has ended."""
        obs, state, reward, terminated, info = jax.vmap(self.suite.step)(keys, env_state.state, action)
        reward, length = reward.astype(jnp.float32), env_state.length + 1
        truncated = info.get("truncated", jnp.zeros(keys.shape, bool))
        if self.max_episode_steps is not None:
            truncated |= length >= self.max_episode_steps
        info = {name: x for name, x in info.items() if getattr(x, "shape", None) == keys.shape and name != "truncated"}
        episode_return = env_state.episode_return + reward
        env_state = env_state.replace(state=state, length=length, episode_return=episode_return)
        return obs, env_state, reward, terminated, truncated, info

    def step(self, keys: jax.Array, env_state: EnvState, action: jax.Array):
        """One step in each environment.

        Args:
            keys: [num_envs], one key for the step and the reset that may follow it.
            env_state: from `reset` or `step`.
            action: [num_envs, ...], in the environment's own units.

        Returns:
            obs [num_envs, *obs_shape] (of the next episode where one ended), env_state, reward, terminated, truncated
            (each [num_envs]; both flags may be true), and info: `final_observation` (the true successor of every step),
            `returned_episode` (whether an episode ended), its `returned_episode_returns` and
            `returned_episode_lengths`, and the scalars of the suite's own info.
        """
        step_keys, reset_keys = _split(keys)
        next_obs, env_state, reward, terminated, truncated, info = self.advance(step_keys, env_state, action)
        done = terminated | truncated
        info |= {
            "final_observation": next_obs,
            "returned_episode": done,
            "returned_episode_returns": env_state.episode_return,
            "returned_episode_lengths": env_state.length,
        }
        starts = env_state.starts if self.reset_period else jax.vmap(self.suite.reset)(reset_keys)
        obs, state = jax.vmap(_select)(done, starts, (next_obs, env_state.state))
        env_state = env_state.replace(
            state=state,
            length=jnp.where(done, 0, env_state.length),
            episode_return=jnp.where(done, 0.0, env_state.episode_return),
        )
        if self.reset_period:
            env_state = self._renew_starts(reset_keys, env_state)
        return obs, env_state, reward, terminated, truncated, info

    def _renew_starts(self, keys: jax.Array, env_state: EnvState) -> EnvState:
        """Renew some of the kept starts, in turn: each once in `reset_period` steps."""
        num_envs = len(keys)
        interval = max(1, self.reset_period // num_envs)  # steps between renewals
        count = -(-num_envs // self.reset_period)  # starts renewed together
        rows = (env_state.turn // interval * count + jnp.arange(count, dtype=jnp.int32)) % num_envs

        def renew(carry):
            starts, _ = carry
            fresh = jax.vmap(self.suite.reset)(keys[rows])
            return jax.tree.map(lambda x, new: x.at[rows].set(new), starts, fresh), jnp.bool_(False)

        # A loop of no or one round: under vmap it is skipped where no lane needs it, which a cond is not.
        is_due = env_state.turn % interval == 0
        starts, _ = jax.lax.while_loop(lambda carry: carry[1], renew, (env_state.starts, is_due))
        num_turns = interval * -(-num_envs // count)
        return env_state.replace(starts=starts, turn=(env_state.turn + 1) % num_turns)


def _split(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two keys from each. [num_envs] -> [num_envs], [num_envs]."""
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def _select(condition: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jax.lax.select(condition, x, y), a, b)


@functools.cache
def make_env(name: str) -> Environment:
    """Make an environment by its name: a gymnax id, or `SUITE/ENVIRONMENT` as `brax/ant`, perhaps with options.

    `brax/ant:backend=spring`, `CartPole-v1:max_episode_steps=100,reset_period=16`: the last two options are those of
    every suite, the others are arguments of the suite. `gymnax.register(id, factory)` adds an environment, a module in
    common/environments a suite.

    Raises:
        ValueError: an unknown name (the message suggests the nearest ones), a package that is not installed, a wrong
            option or an unsupported action space.
    """
    from gymnax.environments import spaces  # imported here: it starts JAX's backend, which must happen after connecting

    with jax.ensure_compile_time_eval():  # its constants are no tracers, also where a sweep traces all of `make`
        suite, limits = make_suite(name)
        environment = Environment(suite, **limits)
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
