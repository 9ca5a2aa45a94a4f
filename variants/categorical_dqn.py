"""Categorical DQN, C51: deep Q-learning of distributions (Bellemare et al. 2017, arXiv:1707.06887).

An iteration is steps_per_iteration env steps and their updates.
docs/categorical_dqn.md has the mathematics, each implementation detail, and what each metric means.

Different from the original:
  - Time limits do not stop the bootstrap (Pardo et al. 2018, arXiv:1712.00378).
  - Double DQN (the means select), clipped gradients, a smaller epsilon of Adam.
  - Updates per env step never depend on num_envs; other settings raise ValueError.
  - `init` fills the buffer with learning_starts uniform-random transitions.
  - Actions declared illegal are never chosen nor bootstrapped from (arXiv:2006.14171).

Options, off by default:
  - n_step (Hessel et al. 2018, arXiv:1710.02298), uncorrected.
  - layer_norm (arXiv:2407.04811).

Run: python variants/categorical_dqn.py --env CartPole-v1 --num-seeds 16 (--help: all settings)
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # the folder of `common`
from common import normalization
from common.buffer import Buffer, add, draw_rows, init_buffer, read_windows
from common.config import (
    Fraction,
    NonNegative,
    Positive,
    PositiveFraction,
    require,
    require_multiple,
    validate,
)
from common.environment import clear_episodes, episode_metrics, make_env
from common.initializers import orthogonal
from common.loops import scan_mean
from common.spaces import (
    actor_obs,
    check_discrete,
    choose_legal,
    draw_choices,
    forbid_illegal,
    patches,
    to_float,
)

# -- Config ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Float fields can be swept in one compilation; any other change compiles anew."""

    env: str = "CartPole-v1"  # listed by python -m common.suites
    total_timesteps: int = 500_000  # env steps per seed with learning_starts, in whole iterations
    num_envs: int = 1  # parallel environments
    steps_per_iteration: int = 1_000  # env steps per record of metrics
    learning_starts: int = 1_000  # uniform-random env steps before the first iteration
    buffer_size: int = 100_000  # capacity in transitions
    batch_size: int = 128  # transitions per update
    train_interval: int = 4  # env steps between updates; 4 as in Mnih et al. 2015
    gradient_steps: int = 1  # updates per train_interval
    target_interval: int = 500  # env steps between target updates, from learning_starts on
    tau: PositiveFraction = 1.0  # step of the target network towards the online network; 1: copy
    learning_rate: NonNegative = 2.5e-4  # Adam step size at the start
    anneal_learning_rate: bool = False  # decay the learning rate linearly to 0
    adam_eps: Positive = 1e-8  # epsilon of Adam; 1.5e-4 to 3e-4 at Atari scale
    max_grad_norm: Positive = 10.0  # gradients are clipped to this global norm
    gamma: Fraction = 0.99  # discount
    n_step: int = 1  # steps of reward before the bootstrap (Sutton 1988, Hessel et al. 2018)
    value_min: float = -100.0  # lowest bin: min(0, least reward) / (1 - gamma)
    value_max: float = 100.0  # highest bin; what matters is that the metric clipped_targets stays 0
    num_bins: int = 51  # values that a distribution is over, evenly spaced; atoms in the paper
    epsilon_start: Fraction = 1.0  # initial epsilon, the share of random actions, prefill included
    epsilon_end: Fraction = 0.05  # final epsilon
    exploration_fraction: PositiveFraction = 0.5  # share of total_timesteps in which epsilon falls
    double: bool = True  # Double DQN: the online network selects, the target network evaluates
    normalize_obs: bool = False  # normalise by running mean and variance; the buffer keeps raw obs
    reward_scale: Positive = 1.0  # factor of the rewards
    hidden_sizes: tuple[int, ...] = (128, 128)  # units in each hidden layer, after any convolution
    activation: Literal["tanh", "relu", "swish"] = "relu"  # activation of the hidden layers
    layer_norm: bool = False  # LayerNorm in each hidden layer, before the activation

    @property
    def cycle_steps(self) -> int:
        """Env steps per cycle, the larger of num_envs and train_interval."""
        return max(self.num_envs, self.train_interval)

    @property
    def cycle_updates(self) -> int:
        """Gradient steps per cycle of max(num_envs, train_interval) env steps."""
        return self.gradient_steps * self.cycle_steps // self.train_interval

    @property
    def num_iterations(self) -> int:
        """Iterations in a run."""
        return (self.total_timesteps - self.learning_starts) // self.steps_per_iteration

    def env_steps(self, iterations: int) -> int:
        """Env steps per seed after this many iterations."""
        return self.learning_starts + iterations * self.steps_per_iteration


# -- Networks --------------------------------------------------------------------------------------


class Torso(nn.Module):
    """Features of any observation; of images, MinAtar's convolution (Young & Tian 2019)."""

    obs_shape: tuple[int, ...]
    hidden_sizes: tuple[int, ...]
    activation: str
    layer_norm: bool

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        activation = getattr(nn, self.activation)
        leading = obs.shape[: obs.ndim - len(self.obs_shape)]
        x = to_float(obs, self.obs_shape)  # [*leading, *obs_shape]

        if len(self.obs_shape) == 3 and min(self.obs_shape[:2]) >= 3:  # an image: a convolution
            x = nn.relu(nn.Dense(16, kernel_init=orthogonal(np.sqrt(2)))(patches(x, size=3)))

        x = x.reshape(*leading, -1)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x)
            x = activation(nn.LayerNorm()(x) if self.layer_norm else x)
        return x  # [*leading, hidden_sizes[-1]]


class QNetwork(nn.Module):
    """The Q value of each action, and the logits of its distribution over the bins."""

    num_actions: int
    bins: jax.Array  # [num_bins]
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = self.torso()(actor_obs(obs))
        x = nn.Dense(self.num_actions * self.bins.size, kernel_init=orthogonal(1.0))(x)
        logits = x.reshape(*x.shape[:-1], self.num_actions, self.bins.size)
        q = nn.softmax(logits) @ self.bins  # [*leading, num_actions]
        return forbid_illegal(q, obs), logits


# -- Data ------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment; in a batch, batch_size takes the place of num_envs."""

    obs: jax.Array  # [num_envs, *obs_shape], not normalised
    action: jax.Array  # [num_envs] int
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, no successor state
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true successor, also where the episode ended
    discount: jax.Array | None = None  # [batch_size] gamma ** (window length), by read_windows


@struct.dataclass
class State:
    """Everything that a seed carries from iteration to iteration; a checkpoint saves it."""

    params: Any  # of QNetwork
    target_params: Any  # of QNetwork
    opt_state: optax.OptState
    buffer: Buffer  # of Transition, [buffer_size, ...]
    env_state: Any  # of num_envs environments
    obs: jax.Array  # [num_envs, *obs_shape]
    key: jax.Array  # []
    obs_statistics: normalization.RunningStatistics | None  # if normalize_obs


class Algorithm(NamedTuple):
    """Pure functions that train one seed."""

    init: Callable  # key -> State
    step: Callable  # one iteration: (State, iteration) -> (State, metrics)
    act: Callable  # (State, obs, key=None) -> action for the environment, greedy without a key
    value: Callable  # (State, obs) -> value


# -- Algorithm -------------------------------------------------------------------------------------


def project(probs: jax.Array, values: jax.Array, bins: jax.Array) -> jax.Array:
    """Probabilities [num_values] of any values, projected onto evenly spaced bins [num_bins].

    The two bins around a value share its probability by distance (equation 7); values outside count
    as the ends. Each value is compared with all bins, so one that is on a bin needs no case; by its
    place among them, as differences of bins that are narrow and far from 0 are rounded.
    """
    low, high = bins[0], bins[-1]
    place = (jnp.clip(values, low, high) - low) / (high - low) * (bins.size - 1)  # [num_values]
    distance = jnp.abs(place[:, None] - jnp.arange(bins.size, dtype=jnp.float32)[None])
    share = jnp.maximum(1.0 - distance, 0.0)  # [num_values, num_bins]
    return (probs[:, None] * share).sum(axis=0)


def make(config: Config) -> Algorithm:
    """Build the pure functions that train one seed:

    step            one iteration: num_cycles times cycle
      cycle         num_steps times explore, then learn, then update_target
        explore     choose actions, env_step (store the transitions)
        learn       read all batches; with each of them: update

    Raises:
        ValueError: an invalid field, an unknown environment or an unsupported space.
    """
    config = validate(config)
    require_multiple(config, "cycle_steps", "num_envs", "train_interval")
    require_multiple(config, "steps_per_iteration", "num_envs", "train_interval")
    require_multiple(config, "learning_starts", "num_envs")
    fits = config.batch_size <= config.learning_starts <= config.buffer_size
    require(config, fits, "learning_starts must be at least batch_size and at most buffer_size")
    require_multiple(config, "target_interval", "num_envs", "train_interval")
    falls = config.epsilon_start >= config.epsilon_end
    require(config, falls, "epsilon_start must be at least epsilon_end")
    require(config, config.value_min < config.value_max, "value_min must be below value_max")
    require(config, config.num_bins >= 2, "num_bins must be at least 2")
    env = make_env(config.env)
    check_discrete(config.env, env)
    num_actions = env.action_space.n
    bins = jnp.linspace(config.value_min, config.value_max, config.num_bins)
    torso = partial(Torso, activation=config.activation, layer_norm=config.layer_norm)
    network = QNetwork(num_actions, bins, partial(torso, env.actor_shape, config.hidden_sizes))
    windows = {"n_step": config.n_step, "num_envs": config.num_envs, "gamma": config.gamma}
    num_cycles = config.steps_per_iteration // config.cycle_steps
    num_steps = config.cycle_steps // config.num_envs  # of each environment per cycle
    rows_shape = num_cycles, config.cycle_updates, config.batch_size

    total_updates = config.num_iterations * num_cycles * config.cycle_updates
    annealed = optax.linear_schedule(config.learning_rate, 0.0, total_updates)
    learning_rate = annealed if config.anneal_learning_rate else config.learning_rate
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    optimizer = optax.chain(clip, optax.adam(learning_rate, eps=config.adam_eps))

    def init(key):
        params_key, reset_key, action_key, env_key, key = jax.random.split(key, 5)
        obs, env_state = env.reset(jax.random.split(reset_key, config.num_envs))
        params = network.init(params_key, obs)
        action, reward, false = jnp.int32(0), jnp.float32(0), jnp.bool_(False)
        first = jax.tree.map(lambda x: x[0], obs)
        row = Transition(first, action, reward, terminated=false, truncated=false, next_obs=first)
        statistics = normalization.init_statistics(env.obs_shape)
        state = State(
            params=params,
            target_params=params,
            opt_state=optimizer.init(params),
            buffer=init_buffer(row, config.buffer_size),
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=statistics if config.normalize_obs else None,
        )
        shape = config.learning_starts // config.num_envs, config.num_envs
        numbers = draw_choices(action_key, shape, env)
        return jax.lax.scan(fill, state, (numbers, jax.random.split(env_key, shape)))[0]

    def fill(state, inputs):
        number, env_keys = inputs
        return env_step(state, (choose_legal(number, state.obs), env_keys))

    def step(state, iteration):
        shape = num_cycles, num_steps, config.num_envs  # drawn at once: each draw is a GPU kernel
        first_step = config.env_steps(iteration)
        env_steps = first_step + config.num_envs * jnp.arange(num_cycles * num_steps)
        epsilons = epsilon_at(env_steps).reshape(num_cycles, num_steps, 1)
        key, explore_key, env_key, row_key = jax.random.split(state.key, 4)
        is_random, numbers = draw_exploration(explore_key, shape, epsilons)
        explore_inputs = is_random, numbers, jax.random.split(env_key, shape)
        rows = draw_rows(state.buffer, row_key, rows_shape, config.cycle_steps)
        cycles = iteration * num_cycles + jnp.arange(1, num_cycles + 1)
        is_due = cycles * config.cycle_steps % config.target_interval == 0
        state = state.replace(key=key, env_state=clear_episodes(state.env_state))
        state, metrics = scan_mean(cycle, state, (explore_inputs, rows, is_due))
        return state, episode_metrics(state.env_state) | metrics | {"epsilon": epsilons[-1, -1, 0]}

    def epsilon_at(env_steps):
        progress = jnp.float32(env_steps) / (config.exploration_fraction * config.total_timesteps)
        fall = (config.epsilon_start - config.epsilon_end) * (1.0 - progress)
        return config.epsilon_end + jnp.maximum(fall, 0.0)

    def draw_exploration(key, shape, epsilon):
        """Epsilon-greedy coin flips, and random integers for choose_legal."""
        coin_key, action_key = jax.random.split(key)
        is_random = jax.random.uniform(coin_key, shape) < epsilon
        return is_random, draw_choices(action_key, shape, env)

    def cycle(state, inputs):
        explore_inputs, rows, is_due = inputs
        state, _ = jax.lax.scan(explore, state, explore_inputs, unroll=env.unroll)
        state, metrics = learn(state, rows)
        return update_target(state, is_due), metrics

    def explore(state, inputs):
        is_random, number, env_keys = inputs
        action = jnp.where(is_random, choose_legal(number, state.obs), act(state, state.obs))
        return env_step(state, (action, env_keys))

    def env_step(state, inputs):
        action, env_keys = inputs
        outcome = env.step(env_keys, state.env_state, action)
        obs, env_state, reward, terminated, truncated, info = outcome
        transition = Transition(
            obs=state.obs,
            action=action,
            reward=config.reward_scale * reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=info["final_observation"],
        )
        statistics = normalization.update_statistics(state.obs_statistics, transition.obs)
        state = state.replace(env_state=env_state, obs=obs, obs_statistics=statistics)
        return state.replace(buffer=add(state.buffer, transition)), None

    def learn(state, rows):
        batches = read_windows(state.buffer, rows, **windows)
        return scan_mean(update, state, batches)

    def update(state, batch):
        grads, metrics = jax.grad(q_loss, has_aux=True)(state.params, state, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        return state.replace(params=params, opt_state=opt_state), metrics

    def q_loss(params, state, batch):
        next_obs = preprocess(state, batch.next_obs)
        q_next, logits_next = network.apply(state.target_params, next_obs)
        q_select = network.apply(state.params, next_obs)[0] if config.double else q_next
        next_probs = nn.softmax(logits_of(logits_next, q_select.argmax(axis=-1)))
        discount = jnp.where(batch.terminated, 0.0, batch.discount)
        values = batch.reward[:, None] + discount[:, None] * bins[None]  # [batch_size, num_bins]
        target = jax.vmap(project, in_axes=(0, 0, None))(next_probs, values, bins)

        logits = logits_of(network.apply(params, preprocess(state, batch.obs))[1], batch.action)
        loss = optax.softmax_cross_entropy(logits, target).mean()
        is_outside = values != jnp.clip(values, config.value_min, config.value_max)
        clipped = jnp.where(is_outside, next_probs, 0.0).sum(axis=-1).mean()
        q = nn.softmax(logits) @ bins
        return loss, {"q_loss": loss, "q_mean": q.mean(), "clipped_targets": clipped}

    def logits_of(logits, action):
        """Logits of an action, [..., num_actions, num_bins] -> [..., num_bins]; no scatter."""
        chosen = jax.nn.one_hot(action, num_actions, dtype=logits.dtype)
        return (logits * chosen[..., None]).sum(axis=-2)

    def update_target(state, is_due):
        target_params = optax.incremental_update(state.params, state.target_params, config.tau)
        target_params = jax.tree.map(partial(jnp.where, is_due), target_params, state.target_params)
        return state.replace(target_params=target_params)

    def preprocess(state, obs):
        return normalization.normalize(state.obs_statistics, obs)  # without statistics: obs

    def act(state, obs, key=None):
        action = network.apply(state.params, preprocess(state, obs))[0].argmax(axis=-1)
        if key is None:
            return action
        is_random, number = draw_exploration(key, action.shape, config.epsilon_end)
        return jnp.where(is_random, choose_legal(number, obs), action)

    def value(state, obs):
        return network.apply(state.params, preprocess(state, obs))[0].max(axis=-1)

    return Algorithm(init, step, act, value)


# -- Training --------------------------------------------------------------------------------------


def make_train(config: Config) -> Callable[[jax.Array], tuple[State, dict[str, jax.Array]]]:
    """The whole run as one pure function of a key: key -> (State, metrics [num_iterations])."""
    algorithm = make(config)

    def train(key):
        return jax.lax.scan(algorithm.step, algorithm.init(key), jnp.arange(config.num_iterations))

    return train  # for many seeds: jax.jit(jax.vmap(make_train(config)))(keys)


if __name__ == "__main__":
    from runner.main import run

    run(__file__, Config, make)
