"""DQN: deep Q-learning with a replay buffer and a target network (Mnih et al. 2015, Nature 518).

Implementation details:
  1 Adam instead of RMSProp, and the squared error (Obando-Ceron & Castro 2021, arXiv:2011.14826); Huber as a flag. 2
  Double DQN, the action of the online and the value of the target network (van Hasselt et al. 2016,
  arXiv:1509.06461), as a flag. 3 Dueling network that subtracts the mean over actions (Wang et al. 2016,
  arXiv:1511.06581), as a flag. 4 Hard target updates, tau = 1, or soft ones. 5 Epsilon falls linearly with env steps;
  coin, random action and environment have their own keys, per environment.

Deviations:
  - A time limit is not an end: the target bootstraps from the true next observation of a truncated episode, and stops
    at a terminated one only (Pardo et al. 2018, arXiv:1712.00378).
  - Updates and target updates happen at exact numbers of env steps for every num_envs, or the settings are refused.
  - The buffer is filled with `learning_starts` uniform-random transitions before the first iteration, by `init`.

Metrics (mean over the updates of an iteration, unless said otherwise):
  episode_return, episode_length: mean over the episodes that ended in the iteration, NaN if none did; num_episodes:
      how many did.
  q_loss: as minimised. q_mean: mean of the Q that is trained. epsilon: at the last step of the iteration.

Run it: python dqn.py --env CartPole-v1 --num-seeds 16      Everything it can do: python dqn.py --env Acrobot-v1 --help
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from common.buffer import Buffer, add, check_replay, init_buffer, sample
from common.config import Fraction, NonNegative, Positive, PositiveFraction, validate
from common.environment import episode_metrics, make_env
from common.initializers import orthogonal
from common.normalization import RunningStatistics, init_statistics, normalize, update_statistics

# -- Config ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Floats (NonNegative, Positive and Fraction too) may be JAX tracers, so they can be swept; the rest is static."""

    env: str = "CartPole-v1"  # gymnax id
    total_timesteps: int = 500_000  # env steps of one seed with learning_starts, rounded down to whole iterations
    num_envs: int = 1  # environments side by side; updates per env step do not depend on it
    steps_per_iteration: int = 1_000  # env steps between two records of metrics
    learning_starts: int = 1_000  # uniform-random env steps that fill the buffer before the first iteration
    buffer_size: int = 100_000  # transitions
    batch_size: int = 128  # transitions of one update
    train_interval: int = 4  # env steps between updates: as in Mnih et al. 2015
    gradient_steps: int = 1  # updates each time, so gradient_steps / train_interval per env step
    target_interval: int = 500  # env steps between updates of the target network
    tau: PositiveFraction = 1.0  # share of the online network in an update of the target network, 1: copy
    learning_rate: NonNegative = 2.5e-4  # Adam step size, at the start
    anneal_learning_rate: bool = False  # linearly to 0 at total_timesteps
    adam_eps: Positive = 1e-8  # of Adam; 1.5e-4 to 3e-4 is common at Atari scale
    max_grad_norm: Positive = 10.0  # global norm over all parameters
    gamma: Fraction = 0.99  # discount
    epsilon_start: Fraction = 1.0  # share of random actions at first
    epsilon_end: Fraction = 0.05  # and at last
    exploration_fraction: PositiveFraction = 0.5  # part of total_timesteps over which it falls
    double: bool = True  # detail 2
    dueling: bool = False  # detail 3
    loss: Literal["mse", "huber"] = "mse"  # detail 1
    normalize_obs: bool = False  # by running mean and variance; the buffer keeps raw observations
    hidden_sizes: tuple[int, ...] = (128, 128)  # after the convolution, if there is one
    activation: Literal["tanh", "relu", "swish"] = "relu"  # as in the paper

    @property
    def cycle_steps(self) -> int:
        """Env steps from one burst of updates to the next."""
        return max(self.num_envs, self.train_interval)

    @property
    def cycle_updates(self) -> int:
        """Updates in one burst."""
        return self.gradient_steps * self.cycle_steps // self.train_interval

    @property
    def num_iterations(self) -> int:
        """Iterations in a run."""
        return (self.total_timesteps - self.learning_starts) // self.steps_per_iteration

    def env_steps(self, iterations: int) -> int:
        """Environment steps that one seed has made after so many iterations."""
        return self.learning_starts + iterations * self.steps_per_iteration


CLASSIC = {
    "total_timesteps": 100_000,
    "num_envs": 10,
    "train_interval": 10,
    "gradient_steps": 5,
    "learning_rate": 1e-3,
    "anneal_learning_rate": True,
    "exploration_fraction": 0.2,
}
MINATAR = {  # Obando-Ceron & Castro 2021
    "total_timesteps": 1_000_000,
    "steps_per_iteration": 10_000,
    "num_envs": 4,
    "batch_size": 32,
    "target_interval": 1_000,
    "adam_eps": 3.125e-4,
    "epsilon_end": 0.1,
    "exploration_fraction": 0.1,
    "hidden_sizes": (128,),
}
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": CLASSIC | {"target_interval": 100, "gamma": 0.98, "normalize_obs": True},
    "Acrobot-v1": CLASSIC | {"target_interval": 250},
    **dict.fromkeys(
        ["Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar"], MINATAR
    ),
}


# -- Networks -------------------------------------------------------------------------------------------------------


class Torso(nn.Module):
    """Features of an observation; for an image [H, W, C] a 3x3 convolution comes first."""

    hidden_sizes: tuple[int, ...]
    activation: str
    is_image: bool

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        activation = getattr(nn, self.activation)
        x = obs.astype(jnp.float32)  # [..., *obs_shape]
        if self.is_image:
            # A product of patches and kernel: with one kernel for each seed it is several times faster than nn.Conv.
            height, width = x.shape[-3] - 2, x.shape[-2] - 2
            patches = [x[..., i : i + height, j : j + width, :] for i in range(3) for j in range(3)]
            x = jnp.concatenate(patches, axis=-1)  # [..., height, width, 9 * C]
            x = nn.relu(nn.Dense(16, kernel_init=orthogonal(np.sqrt(2)))(x))
            x = x.reshape(*x.shape[:-3], -1)  # [..., height * width * 16]
        for size in self.hidden_sizes:
            x = activation(nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x))
        return x  # [..., hidden_sizes[-1]]


class QNetwork(nn.Module):
    """The value of each action."""

    num_actions: int
    dueling: bool
    hidden_sizes: tuple[int, ...]
    activation: str
    is_image: bool

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = Torso(self.hidden_sizes, self.activation, self.is_image)(obs)
        q = nn.Dense(self.num_actions, kernel_init=orthogonal(1.0))(x)  # [..., num_actions]
        if self.dueling:
            value = nn.Dense(1, kernel_init=orthogonal(1.0))(x)  # [..., 1]
            q = value + q - q.mean(axis=-1, keepdims=True)
        return q


# -- Data -----------------------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment, as the buffer keeps it; a batch has batch_size in place of num_envs."""

    obs: jax.Array  # [num_envs, *obs_shape], as the environment gave it
    action: jax.Array  # [num_envs] int
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, nothing follows
    next_obs: jax.Array  # [num_envs, *obs_shape], the true one, also at an end


@struct.dataclass
class State:
    """All that a lane carries from one iteration to the next; a checkpoint holds just this and the iteration."""

    params: Any  # of QNetwork
    target_params: Any  # of QNetwork
    opt_state: optax.OptState
    buffer: Buffer  # of Transition, [buffer_size, ...]
    env_state: Any  # [num_envs, ...]
    obs: jax.Array  # [num_envs, *obs_shape]
    key: jax.Array  # []
    obs_statistics: RunningStatistics | None  # when normalize_obs


class Algorithm(NamedTuple):
    """Pure functions of one lane."""

    init: Callable  # key -> State
    step: Callable  # (State, iteration) -> (State, metrics)
    act: Callable  # (State, obs, key=None) -> action in the environment's units; greedy without a key
    value: Callable  # (State, obs) -> value


# -- Algorithm ------------------------------------------------------------------------------------------------------


def q_target(
    q_next: jax.Array, q_select: jax.Array, reward: jax.Array, terminated: jax.Array, gamma: float
) -> jax.Array:
    """The target of Q-learning: reward + gamma * q_next at the best action of q_select.

    Args:
        q_next: [batch_size, num_actions], target network at the next observation.
        q_select: the same shape; the online network for Double DQN (van Hasselt et al. 2016, eq. 4), else q_next
            itself.
        reward, terminated: [batch_size].
    """
    action = q_select.argmax(axis=-1)
    value = jnp.take_along_axis(q_next, action[:, None], axis=-1).squeeze(-1)  # [batch_size]
    return reward + gamma * jnp.where(terminated, 0.0, value)


def make(config: Config) -> Algorithm:
    """Build the pure functions of DQN for one lane.

    Raises:
        ValueError: a field that cannot be honoured, an unknown environment or an unsupported space.
    """
    config = validate(config)
    check_replay(config)
    env = make_env(config.env)
    if not hasattr(env.action_space, "n"):
        raise ValueError(f"{config.env} has continuous actions, DQN needs discrete ones; use sac.py, td3.py or ppo.py")
    num_actions = env.action_space.n
    network = QNetwork(
        num_actions, config.dueling, config.hidden_sizes, config.activation, is_image=len(env.obs_shape) == 3
    )
    num_cycles = config.steps_per_iteration // config.cycle_steps
    num_updates = config.num_iterations * num_cycles * config.cycle_updates
    annealed = optax.linear_schedule(config.learning_rate, 0.0, num_updates)
    learning_rate = annealed if config.anneal_learning_rate else config.learning_rate
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.adam(learning_rate, eps=config.adam_eps)
    )
    num_steps = config.cycle_steps // config.num_envs  # of each environment in a cycle
    num_prefill_steps = config.learning_starts // config.num_envs

    def init(key):
        params_key, env_key, action_key, step_key, key = jax.random.split(key, 5)
        params = network.init(params_key, jnp.zeros((1, *env.obs_shape)))
        obs, env_state = env.reset(jax.random.split(env_key, config.num_envs))
        row = Transition(obs[0], jnp.int32(0), jnp.float32(0), jnp.bool_(False), obs[0])
        state = State(
            params=params,
            target_params=params,
            opt_state=optimizer.init(params),
            buffer=init_buffer(row, config.buffer_size),
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=init_statistics(env.obs_shape) if config.normalize_obs else None,
        )
        actions = jax.random.randint(action_key, (num_prefill_steps, config.num_envs), 0, num_actions)
        step_keys = jax.random.split(step_key, (num_prefill_steps, config.num_envs))
        return jax.lax.scan(env_step, state, (actions, step_keys))[0]

    def preprocess(state, obs):
        return normalize(state.obs_statistics, obs) if config.normalize_obs else obs

    def act(state, obs, key=None):
        action = network.apply(state.params, preprocess(state, obs)).argmax(axis=-1)
        if key is None:
            return action
        coin_key, action_key = jax.random.split(key)
        is_random = jax.random.uniform(coin_key, action.shape) < config.epsilon_end
        return jnp.where(is_random, jax.random.randint(action_key, action.shape, 0, num_actions), action)

    def value(state, obs):
        return network.apply(state.params, preprocess(state, obs)).max(axis=-1)

    def epsilon_at(env_steps):
        remaining = 1.0 - jnp.float32(env_steps) / (config.exploration_fraction * config.total_timesteps)
        return config.epsilon_end + jnp.maximum((config.epsilon_start - config.epsilon_end) * remaining, 0.0)

    def env_step(state, inputs):
        action, step_keys = inputs
        obs, env_state, reward, terminated, _, info = env.step(step_keys, state.env_state, action)
        next_obs = info.pop("final_observation")
        state = state.replace(
            buffer=add(state.buffer, Transition(state.obs, action, reward, terminated, next_obs)),
            obs_statistics=update_statistics(state.obs_statistics, state.obs) if config.normalize_obs else None,
            env_state=env_state,
            obs=obs,
        )
        return state, info

    def explore(state, inputs):
        explore_key, step_keys, epsilon = inputs
        coin_key, action_key = jax.random.split(explore_key)
        is_random = jax.random.uniform(coin_key, (config.num_envs,)) < epsilon
        random_action = jax.random.randint(action_key, (config.num_envs,), 0, num_actions)
        return env_step(state, (jnp.where(is_random, random_action, act(state, state.obs)), step_keys))

    def q_loss(params, state, batch):
        next_obs = preprocess(state, batch.next_obs)
        q_next = network.apply(state.target_params, next_obs)  # [batch_size, num_actions]
        q_select = network.apply(state.params, next_obs) if config.double else q_next
        target = q_target(q_next, q_select, batch.reward, batch.terminated, config.gamma)
        q = network.apply(params, preprocess(state, batch.obs))
        q = jnp.take_along_axis(q, batch.action[:, None], axis=-1).squeeze(-1)  # [batch_size]
        error = optax.l2_loss(q, target) if config.loss == "mse" else optax.huber_loss(q, target)
        return error.mean(), {"q_loss": error.mean(), "q_mean": q.mean()}

    def update(state, batch):
        grads, metrics = jax.grad(q_loss, has_aux=True)(state.params, state, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        return state.replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state), metrics

    def learn(state, key):
        batches = sample(state.buffer, key, (config.cycle_updates, config.batch_size))
        return jax.lax.scan(update, state, batches)

    def update_target(state, cycles):
        is_due = cycles * config.cycle_steps % config.target_interval == 0
        target_params = jax.lax.cond(
            is_due,
            lambda: optax.incremental_update(state.params, state.target_params, config.tau),
            lambda: state.target_params,
        )
        return state.replace(target_params=target_params)

    def cycle(state, inputs):
        explore_keys, step_keys, epsilons, sample_key, cycles = inputs  # cycles: how many came before
        state, info = jax.lax.scan(explore, state, (explore_keys, step_keys, epsilons))
        state, metrics = learn(state, sample_key)
        return update_target(state, cycles + 1), (info, metrics)

    def step(state, iteration):
        key, explore_key, step_key, sample_key = jax.random.split(state.key, 4)
        explore_keys = jax.random.split(explore_key, (num_cycles, num_steps))
        step_keys = jax.random.split(step_key, (num_cycles, num_steps, config.num_envs))
        sample_keys = jax.random.split(sample_key, num_cycles)
        cycles = iteration * num_cycles + jnp.arange(num_cycles)
        env_steps = config.env_steps(iteration) + jnp.arange(num_cycles * num_steps) * config.num_envs
        epsilons = epsilon_at(env_steps).reshape(num_cycles, num_steps)
        state, (info, metrics) = jax.lax.scan(
            cycle, state.replace(key=key), (explore_keys, step_keys, epsilons, sample_keys, cycles)
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        metrics["epsilon"] = epsilons[-1, -1]
        return state, episode_metrics(info) | metrics

    return Algorithm(init, step, act, value)


# -- Training -------------------------------------------------------------------------------------------------------


def make_train(config: Config) -> Callable[[jax.Array], tuple[State, dict[str, jax.Array]]]:
    """The whole run as one pure function of a key: key -> (State, metrics [num_iterations])."""
    algorithm = make(config)

    def train(key):
        return jax.lax.scan(algorithm.step, algorithm.init(key), jnp.arange(config.num_iterations))

    return train  # for many seeds: jax.jit(jax.vmap(make_train(config)))(keys)


if __name__ == "__main__":
    from common.runner.main import run

    run(__file__, Config, PRESETS, make)
