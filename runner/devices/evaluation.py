"""Evaluation over whole episodes, of greedy or of sampled actions: when, and how."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.environment import Environment
from runner.devices.placement import to_host
from runner.experiment import Experiment
from runner.options.fields import parse_integer

STEPS_PER_CHECK = 8  # of whether all episodes have ended; on a GPU the host waits for the answer
MAX_FRAMES = 500  # of an animation
MAX_DEPTH_RATIO = 0.25  # on a GPU or TPU: steps of all evaluations, one after another, over those of training


def auto_evaluations(experiment: Experiment) -> int:
    """Number of evaluations with --eval-every auto, the one at the end included.

    Twenty, or fewer on a GPU or TPU, where an episode costs its length, however many are played at once.
    """
    config, options = experiment.config, experiment.options
    depth = config.env_steps(config.num_iterations) / config.num_envs
    most = MAX_DEPTH_RATIO * depth / episode_limit(experiment.env, options.eval_max_steps)
    return 20 if jax.default_backend() == "cpu" else int(np.clip(most, 1, 20))


def evaluated_iterations(experiment: Experiment) -> np.ndarray:
    """Numbers of iterations after which the trials are evaluated, the end not included; 0 is the untrained policy.

    Without an interval there is none, except that halving compares with the untrained policy. The end of a rung counts
    as an end.
    """
    config, options = experiment.config, experiment.options
    steps, every = experiment.env_steps(config.num_iterations), options.eval_every
    interval = -(-steps[-1] // auto_evaluations(experiment)) if every == "auto" else parse_integer(every)
    if interval == 0 or options.eval_episodes == 0:
        return np.zeros(int(experiment.is_halved), int)
    passed = np.diff(steps // interval, prepend=config.env_steps(0) // interval) > 0
    return np.append(0, np.flatnonzero(passed[:-1]) + 1)


def episode_limit(env: Environment, most: int) -> int:
    """Steps after which an evaluation episode is cut: the environment's own limit, at most `most`."""
    return min(env.max_episode_steps or most, most)


def greedy_policy(algorithm: Any, state: Any, num_envs: int) -> tuple[Callable, Any]:
    """`act(obs, memory, key=None) -> action, memory` of one trial, sampled with a key, and the memory where episodes
    begin; () without one.
    """
    if hasattr(algorithm, "initial_memory"):
        return partial(algorithm.act, state), algorithm.initial_memory(num_envs)
    return lambda obs, memory, key=None: (algorithm.act(state, obs, key), memory), ()


def sampled_policy(algorithm: Any, state: Any, num_envs: int, key: jax.Array) -> tuple[Callable, Any]:
    """`greedy_policy`, but with sampled actions: its memory also has the key from which the next ones are drawn."""
    act, memory = greedy_policy(algorithm, state, num_envs)

    def sample(obs, memory):
        memory, key = memory
        key, action_key = jax.random.split(key)
        action, memory = act(obs, memory, key=action_key)
        return action, (memory, key)

    return sample, (memory, key)


def play_episode(
    env: Environment, act: Callable, memory: Any, key: jax.Array, max_steps: int
) -> tuple[list[Any], np.ndarray]:
    """Play one episode greedily; act and memory as `greedy_policy` gives them for one environment.

    Returns:
        the suite's states before each step, and the rewards summed up to each step [num_frames].
    """
    reset_key, *step_keys = jax.random.split(key, max_steps + 1)
    obs, env_state = jax.jit(env.reset)(reset_key[None])

    @jax.jit
    def step(key, obs, memory, env_state):
        action, memory = act(obs, memory)
        obs, env_state, reward, terminated, truncated, _ = env.advance(key[None], env_state, action)
        return obs, memory, env_state, reward[0], (terminated | truncated)[0]

    states, rewards = [], []
    for step_key in step_keys:
        states.append(jax.tree.map(lambda x: x[0], to_host(env_state.state, 1)))
        obs, memory, env_state, reward, done = step(step_key, obs, memory, env_state)
        rewards.append(float(reward))
        if done:
            break
    return states, np.cumsum(rewards)


def evaluate(
    env: Environment, act: Callable, memory: Any, key: jax.Array, num_episodes: int, limit: int
) -> dict[str, jax.Array]:
    """Play one whole episode in each of `num_episodes` environments, so that short episodes do not count more often.

    Args:
        act: obs [num_episodes, *obs_shape] and memory -> action [num_episodes, ...] in the environment's units, memory;
            see `greedy_policy` and `sampled_policy`.
        memory: before the first observation, of any structure.
        limit: steps after which an episode is cut.

    Returns:
        `episode_return` [num_episodes] float32, undiscounted and raw, `episode_length` [num_episodes] int32, and
        `is_cut` [num_episodes] bool, where an episode had not ended after `limit` steps.
    """
    reset_key, step_key = jax.random.split(key)

    def playing(carry):
        step, _, _, _, finished, *_ = carry
        return (step < limit) & ~finished.all()

    def play(carry, _):
        step, obs, memory, env_state, finished, episode_return, episode_length = carry
        action, memory = act(obs, memory)
        keys = jax.random.split(jax.random.fold_in(step_key, step), num_episodes)
        obs, env_state, reward, terminated, truncated, _ = env.advance(keys, env_state, action)
        counts = ~finished & (step < limit)  # [num_episodes]; the steps before the last check may exceed the limit
        episode_return = episode_return + jnp.where(counts, reward, 0.0)
        episode_length = episode_length + counts
        finished |= counts & (terminated | truncated)
        return (step + 1, obs, memory, env_state, finished, episode_return, episode_length), None

    def play_steps(carry):
        return jax.lax.scan(play, carry, length=STEPS_PER_CHECK)[0]

    obs, env_state = env.reset(jax.random.split(reset_key, num_episodes))
    start = (jnp.int32(0), obs, memory, env_state, jnp.zeros(num_episodes, bool))
    totals = (jnp.zeros(num_episodes, jnp.float32), jnp.zeros(num_episodes, jnp.int32))
    *_, finished, episode_return, episode_length = jax.lax.while_loop(playing, play_steps, start + totals)
    return {"episode_return": episode_return, "episode_length": episode_length, "is_cut": ~finished}
