"""PQN: Parallelised Q-Network (Gallici et al. 2025, arXiv:2407.04811).

Q-learning without a replay buffer and without a target network.

An iteration is a rollout of num_steps steps in num_envs environments, and its updates.
docs/pqn.md has the mathematics, each implementation detail, and what each metric means.

Different from the original:
  - Time limits do not stop the bootstrap (Pardo et al. 2018, arXiv:1712.00378), and cut lambda.
  - Each target bootstraps from its own successor, that of the last step but one too.
  - Illegal actions are not chosen, and no value is theirs (arXiv:2006.14171).

Sparse rewards are its weakness: it learns from each transition in one iteration only.

Run: python variants/pqn.py --env CartPole-v1 --num-seeds 16 (--help lists every setting)
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
from common.loops import gpu_unroll, scan_mean
from common.random import shuffle_epochs
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
    total_timesteps: int = 500_000  # env steps per seed, rounded down to whole iterations
    num_envs: int = 32  # parallel environments
    num_steps: int = 64  # steps of each environment per iteration
    num_epochs: int = 4  # passes over the rollout
    num_minibatches: int = 16  # updates per pass; must divide num_envs * num_steps
    learning_rate: NonNegative = 2.5e-4  # RAdam step size at the start
    anneal_learning_rate: bool = True  # decay the learning rate linearly to 0
    max_grad_norm: Positive = 10.0  # gradients are clipped to this global norm
    gamma: Fraction = 0.99  # discount
    q_lambda: Fraction = 0.65  # lambda of the returns; 0: one step, 1: Monte Carlo
    epsilon_start: Fraction = 1.0  # initial epsilon, the share of random actions
    epsilon_end: Fraction = 0.05  # final epsilon
    exploration_fraction: PositiveFraction = 0.1  # share of total_timesteps in which epsilon falls
    normalize_obs: bool = False  # normalise by running mean and variance
    reward_scale: Positive = 1.0  # factor of the rewards
    hidden_sizes: tuple[int, ...] = (128, 128)  # units in each hidden layer, after any convolution
    activation: Literal["tanh", "relu", "swish"] = "relu"  # activation of the hidden layers
    layer_norm: bool = True  # LayerNorm in each hidden layer and convolution, before the activation

    @property
    def steps_per_iteration(self) -> int:
        """Env steps per iteration, num_envs * num_steps."""
        return self.num_envs * self.num_steps

    @property
    def num_iterations(self) -> int:
        """Iterations in a run."""
        return self.total_timesteps // self.steps_per_iteration

    def env_steps(self, iterations: int) -> int:
        """Env steps per seed after this many iterations."""
        return iterations * self.steps_per_iteration


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
            x = nn.Dense(16, kernel_init=orthogonal(np.sqrt(2)))(patches(x, size=3))
            x = nn.relu(nn.LayerNorm()(x) if self.layer_norm else x)

        x = x.reshape(*leading, -1)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x)
            x = activation(nn.LayerNorm()(x) if self.layer_norm else x)
        return x  # [*leading, hidden_sizes[-1]]


class QNetwork(nn.Module):
    """The Q value of each action."""

    num_actions: int
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = self.torso()(actor_obs(obs))
        q = nn.Dense(self.num_actions, kernel_init=orthogonal(1.0))(x)  # [*leading, num_actions]
        return forbid_illegal(q, obs)


# -- Data ------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment; a rollout stacks num_steps of them."""

    obs: jax.Array  # [num_envs, *obs_shape], not normalised
    action: jax.Array  # [num_envs] int
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, no successor state
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true successor, also where the episode ended


@struct.dataclass
class Batch:
    """Rows of a rollout for the loss; minibatch_size in a minibatch."""

    obs: jax.Array  # not normalised
    action: jax.Array
    target: jax.Array  # of the action's Q value


@struct.dataclass
class State:
    """Everything that a seed carries from iteration to iteration; a checkpoint saves it."""

    params: Any  # of QNetwork
    opt_state: optax.OptState
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


def q_returns(rollout: Transition, next_q: jax.Array, gamma: float, q_lambda: float) -> jax.Array:
    """Q(lambda) returns [num_steps, num_envs] (section 4.2); next_q: max Q of next_obs."""
    next_q = jnp.where(rollout.terminated, 0.0, next_q)
    decay = jnp.where(rollout.terminated | rollout.truncated, 0.0, q_lambda)

    def accumulate(target, inputs):
        reward, next_q, decay = inputs
        target = reward + gamma * (decay * target + (1.0 - decay) * next_q)
        return target, target

    inputs = rollout.reward, next_q, decay
    return jax.lax.scan(accumulate, next_q[-1], inputs, reverse=True, unroll=gpu_unroll(16))[1]


def make(config: Config) -> Algorithm:
    """Build the pure functions that train one seed:

    step            one iteration: num_steps times explore, then learn
      explore       choose actions, step the environments
      learn         returns of the rollout, then update with each minibatch

    Raises:
        ValueError: an invalid field, an unknown environment or an unsupported space.
    """
    config = validate(config)
    require_multiple(config, "steps_per_iteration", "num_minibatches")
    falls = config.epsilon_start >= config.epsilon_end
    require(config, falls, "epsilon_start must be at least epsilon_end")
    num_rows = config.steps_per_iteration  # num_envs * num_steps
    minibatch_size = num_rows // config.num_minibatches
    env = make_env(config.env)
    check_discrete(config.env, env)
    num_actions = env.action_space.n
    torso = partial(Torso, activation=config.activation, layer_norm=config.layer_norm)
    network = QNetwork(num_actions, partial(torso, env.actor_shape, config.hidden_sizes))

    num_updates = config.num_epochs * config.num_minibatches  # per iteration, all at one rate
    schedule = optax.linear_schedule(config.learning_rate, 0.0, config.num_iterations)
    annealed = lambda count: schedule(count // num_updates)
    learning_rate = annealed if config.anneal_learning_rate else config.learning_rate
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    optimizer = optax.chain(clip, optax.radam(learning_rate))

    def init(key):
        params_key, reset_key, key = jax.random.split(key, 3)
        obs, env_state = env.reset(jax.random.split(reset_key, config.num_envs))
        params = network.init(params_key, obs)
        statistics = normalization.init_statistics(env.obs_shape)
        return State(
            params=params,
            opt_state=optimizer.init(params),
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=statistics if config.normalize_obs else None,
        )

    def step(state, iteration):
        key, explore_key, env_key = jax.random.split(state.key, 3)
        shape = config.num_steps, config.num_envs  # drawn at once: each draw is a GPU kernel
        env_steps = config.env_steps(iteration) + config.num_envs * jnp.arange(config.num_steps)
        epsilons = epsilon_at(env_steps)[:, None]  # [num_steps, 1]
        is_random, numbers = draw_exploration(explore_key, shape, epsilons)
        inputs = is_random, numbers, jax.random.split(env_key, shape)
        state = state.replace(key=key, env_state=clear_episodes(state.env_state))
        state, rollout = jax.lax.scan(explore, state, inputs, unroll=env.unroll)
        state, metrics = learn(state, rollout)
        return state, episode_metrics(state.env_state) | metrics | {"epsilon": epsilons[-1, 0]}

    def epsilon_at(env_steps):
        progress = jnp.float32(env_steps) / (config.exploration_fraction * config.total_timesteps)
        fall = (config.epsilon_start - config.epsilon_end) * (1.0 - progress)
        return config.epsilon_end + jnp.maximum(fall, 0.0)

    def draw_exploration(key, shape, epsilon):
        """Epsilon-greedy coin flips, and random integers for choose_legal."""
        coin_key, action_key = jax.random.split(key)
        is_random = jax.random.uniform(coin_key, shape) < epsilon
        return is_random, draw_choices(action_key, shape, env)

    def explore(state, inputs):
        is_random, number, env_keys = inputs
        action = jnp.where(is_random, choose_legal(number, state.obs), act(state, state.obs))
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
        return state.replace(env_state=env_state, obs=obs), transition

    def learn(state, rollout):
        # Returns of the rollout.
        next_q = value(state, rollout.next_obs)  # [num_steps, num_envs]
        target = q_returns(rollout, next_q, config.gamma, config.q_lambda)
        batch = Batch(obs=rollout.obs, action=rollout.action, target=target)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

        # Update with shuffled minibatches.
        key, shuffle_key = jax.random.split(state.key)
        rows = shuffle_epochs(shuffle_key, config.num_epochs, num_rows, minibatch_size)
        state, metrics = scan_mean(partial(update, batch), state.replace(key=key), rows)

        # Update the observation statistics.
        statistics = normalization.update_statistics(state.obs_statistics, rollout.obs)
        return state.replace(obs_statistics=statistics), metrics

    def update(batch, state, rows):
        minibatch = jax.tree.map(lambda x: x[rows], batch)
        grads, metrics = jax.grad(q_loss, has_aux=True)(state.params, state, minibatch)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        metrics["grad_norm"] = optax.tree.norm(grads)
        return state.replace(params=params, opt_state=opt_state), metrics

    def q_loss(params, state, batch):
        q = network.apply(params, preprocess(state, batch.obs))  # [minibatch_size, num_actions]
        is_taken = jax.nn.one_hot(batch.action, num_actions, dtype=q.dtype)
        q = (q * is_taken).sum(axis=-1)  # as a sum, its gradient needs no scatter
        loss = 0.5 * ((q - batch.target) ** 2).mean()
        return loss, {"q_loss": loss, "q_mean": q.mean()}

    def preprocess(state, obs):
        return normalization.normalize(state.obs_statistics, obs)  # without statistics: obs

    def act(state, obs, key=None):
        action = network.apply(state.params, preprocess(state, obs)).argmax(axis=-1)
        if key is None:
            return action
        is_random, number = draw_exploration(key, action.shape, config.epsilon_end)
        return jnp.where(is_random, choose_legal(number, obs), action)

    def value(state, obs):
        return network.apply(state.params, preprocess(state, obs)).max(axis=-1)

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
