"""PPO: Proximal Policy Optimization with the clipped objective (Schulman et al. 2017, arXiv:1707.06347).

Implementation details, numbered as in "The 37 Implementation Details of PPO" (Huang et al. 2022, ICLR blog track):
  1 vectorised environments; 2 orthogonal initialisation, sqrt(2) hidden, 0.01 policy, 1 value; 3 Adam with eps 1e-5;
  4 the learning rate falls linearly to 0 over the run; 5 GAE (Schulman et al. 2016, arXiv:1506.02438); 6 shuffled
  minibatches; 7 advantages are normalised in each minibatch; 8 clipped ratio; 9 clipped value loss, as a flag; 10
  entropy bonus; 11 global norm clipping; 12 approx_kl and clip_fraction; 13 separate networks. Continuous: state-
  independent log_std, log-probs summed over dimensions, the stored action is the one that was sampled, only what the
  environment receives is clipped, observation and reward scaling.

Deviations:
  - A time limit is not an end: the value of the true next observation counts when an episode is truncated, and does
    not when it is terminated (Pardo et al. 2018, arXiv:1712.00378). Published PPOs mostly merge the two.
  - Continuous actions live in [-1, 1] and are scaled to the environment's box, so the initial std of 1 means the same
    everywhere.
  - Observation statistics move once an iteration, after the epochs, so that the first minibatch is exactly on-policy.

Metrics (mean over the updates of an iteration, unless said otherwise):
  episode_return, episode_length: mean over the episodes that ended in the iteration, NaN if none did; num_episodes:
      how many did.
  policy_loss, value_loss, entropy: the three terms. approx_kl: mean of (ratio - 1) - log ratio (Schulman 2020).
  clip_fraction: share of ratios outside 1 +- clip_eps. explained_variance: 1 - Var[target - value] / Var[target]
  before the update. grad_norm: before clipping.

Run it: python ppo.py --env CartPole-v1 --num-seeds 16      Everything it can do: python ppo.py --env Pendulum-v1 --help
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from common.config import Fraction, NonNegative, Positive, validate
from common.environment import episode_metrics, make_env, scale_action
from common.initializers import orthogonal
from common.normalization import (
    RewardScaling,
    RunningStatistics,
    init_reward_scaling,
    init_statistics,
    normalize,
    scale_rewards,
    update_statistics,
)

# -- Config ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Floats (NonNegative, Positive and Fraction too) may be JAX tracers, so they can be swept; the rest is static."""

    env: str = "CartPole-v1"  # gymnax id
    total_timesteps: int = 500_000  # env steps of one seed, rounded down to whole iterations
    num_envs: int = 4  # environments side by side
    num_steps: int = 128  # steps of each environment between updates
    num_epochs: int = 4  # passes over the rollout
    num_minibatches: int = 4  # updates per pass; must divide num_envs * num_steps
    learning_rate: NonNegative = 2.5e-4  # Adam step size at the start
    anneal_learning_rate: bool = True  # linearly to 0 at total_timesteps
    adam_eps: Positive = 1e-5  # as in the original code, detail 3
    max_grad_norm: Positive = 0.5  # global norm over all parameters
    gamma: Fraction = 0.99  # discount
    gae_lambda: Fraction = 0.95  # 0: one-step advantage, 1: Monte Carlo
    clip_eps: Positive = 0.2  # trust region of the ratio (and of the value, if clip_value)
    clip_value: bool = False  # in units of reward, so it can stall large values; Andrychowicz et al. 2021 found no gain
    vf_coef: NonNegative = 0.5  # weight of the value loss
    ent_coef: NonNegative = 0.01  # weight of the entropy bonus
    normalize_obs: bool = False  # by running mean and variance
    normalize_reward: bool = False  # by the std of the running discounted return
    hidden_sizes: tuple[int, ...] = (64, 64)  # of the policy and of the value network
    activation: Literal["tanh", "relu", "swish"] = "tanh"  # tanh: detail 2 and Andrychowicz et al. 2021

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps in one iteration."""
        return self.num_envs * self.num_steps

    @property
    def num_iterations(self) -> int:
        """Iterations in a run."""
        return self.total_timesteps // self.steps_per_iteration

    def env_steps(self, iterations: int) -> int:
        """Environment steps that one seed has made after so many iterations."""
        return iterations * self.steps_per_iteration


MINATAR = {
    "total_timesteps": 10_000_000,
    "num_envs": 64,
    "num_minibatches": 8,
    "learning_rate": 1e-3,
    "activation": "relu",
}
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"total_timesteps": 200_000, "num_envs": 8, "num_steps": 64, "learning_rate": 2.5e-3},
    "Acrobot-v1": {
        "total_timesteps": 300_000,
        "num_envs": 16,
        "num_steps": 64,
        "learning_rate": 2.5e-3,
        "normalize_obs": True,
        "normalize_reward": True,
    },
    "Pendulum-v1": {
        "total_timesteps": 200_000,
        "num_envs": 16,
        "num_steps": 64,
        "num_epochs": 10,
        "num_minibatches": 16,
        "learning_rate": 1e-3,
        "gamma": 0.95,
        "ent_coef": 0.0,
        "normalize_reward": True,
    },
    "Asterix-MinAtar": MINATAR,
    "Breakout-MinAtar": MINATAR,
    "Freeway-MinAtar": MINATAR,
    "Seaquest-MinAtar": MINATAR,
    "SpaceInvaders-MinAtar": MINATAR,
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


class ActorCritic(nn.Module):
    """Policy and value, two networks that share nothing."""

    num_outputs: int  # actions, or dimensions of the action
    is_discrete: bool
    hidden_sizes: tuple[int, ...]
    activation: str
    is_image: bool

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[distrax.Distribution, jax.Array]:
        x = Torso(self.hidden_sizes, self.activation, self.is_image)(obs)
        x = nn.Dense(self.num_outputs, kernel_init=orthogonal(0.01))(x)  # [..., num_outputs]
        if self.is_discrete:
            policy = distrax.Categorical(logits=x)
        else:
            log_std = self.param("log_std", nn.initializers.zeros, (self.num_outputs,), jnp.float32)
            std = jnp.exp(jnp.clip(log_std, -20.0, 2.0))
            policy = distrax.MultivariateNormalDiag(x, jnp.broadcast_to(std, x.shape))
        x = Torso(self.hidden_sizes, self.activation, self.is_image)(obs)
        value = nn.Dense(1, kernel_init=orthogonal(1.0))(x).squeeze(-1)  # [...]
        return policy, value


# -- Data -----------------------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment; a rollout stacks num_steps of them."""

    obs: jax.Array  # [num_envs, *obs_shape], as the environment gave it
    action: jax.Array  # [num_envs] int, or [num_envs, action_dim] as sampled, not clipped
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, nothing follows
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true one, also at an end
    log_prob: jax.Array  # [num_envs], of action when it was taken
    value: jax.Array  # [num_envs], of obs


@struct.dataclass
class Batch:
    """What an update sees of the rollout, time and environments merged."""

    obs: jax.Array  # [batch_size, *obs_shape]
    action: jax.Array  # [batch_size, ...]
    log_prob: jax.Array  # [batch_size]
    value: jax.Array  # [batch_size], when the action was taken
    advantage: jax.Array  # [batch_size], not normalised
    target: jax.Array  # [batch_size], of the value


@struct.dataclass
class State:
    """All that a lane carries from one iteration to the next; a checkpoint holds just this and the iteration."""

    params: Any  # of ActorCritic
    opt_state: optax.OptState
    env_state: Any  # [num_envs, ...]
    obs: jax.Array  # [num_envs, *obs_shape]
    key: jax.Array  # []
    obs_statistics: RunningStatistics | None  # when normalize_obs
    reward_scaling: RewardScaling | None  # when normalize_reward


class Algorithm(NamedTuple):
    """Pure functions of one lane."""

    init: Callable  # key -> State
    step: Callable  # (State, iteration) -> (State, metrics)
    act: Callable  # (State, obs, key=None) -> action in the environment's units; greedy without a key
    value: Callable  # (State, obs) -> value


# -- Algorithm ------------------------------------------------------------------------------------------------------


def gae(transitions: Transition, next_value: jax.Array, gamma: float, gae_lambda: float) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) with both ends of an episode told apart.

    Args:
        transitions: [num_steps, num_envs].
        next_value: [num_steps, num_envs], value of the true next observations.

    Returns:
        advantage and target (of the value), each [num_steps, num_envs].
    """
    delta = transitions.reward + gamma * jnp.where(transitions.terminated, 0.0, next_value) - transitions.value
    decay = jnp.where(transitions.terminated | transitions.truncated, 0.0, gamma * gae_lambda)

    def accumulate(advantage, step):
        delta, decay = step
        advantage = delta + decay * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(accumulate, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage, advantage + transitions.value


def shuffle(key: jax.Array, num_rows: int) -> jax.Array:
    """The rows 0 to num_rows - 1 in random order, [num_rows] uint32.

    Words are sorted that have random bits above and the number of a row below. On a CPU that is several times faster
    than `jax.random.permutation`, which sorts pairs. Rows with equal random bits keep their order, which is seen only
    if a minibatch ends between them: 1 end in 33,000 for 512 rows, 1 in 128 for 8,192.
    """
    row_bits = (num_rows - 1).bit_length()
    random_bits = jax.random.bits(key, (num_rows,), jnp.uint32) >> row_bits << row_bits
    return jnp.sort(random_bits | jnp.arange(num_rows, dtype=jnp.uint32)) & (2**row_bits - 1)


def make(config: Config) -> Algorithm:
    """Build the pure functions of PPO for one lane.

    Raises:
        ValueError: a field that cannot be honoured, an unknown environment or an unsupported space.
    """
    config = validate(config)
    batch_size = config.num_envs * config.num_steps
    if batch_size % config.num_minibatches:
        raise ValueError(
            f"num_minibatches = {config.num_minibatches} does not divide "
            f"num_envs * num_steps = {config.num_envs} * {config.num_steps} = {batch_size}"
        )
    env = make_env(config.env)
    is_discrete = hasattr(env.action_space, "n")
    num_outputs = env.action_space.n if is_discrete else env.action_space.shape[0]
    network = ActorCritic(num_outputs, is_discrete, config.hidden_sizes, config.activation, len(env.obs_shape) == 3)
    num_updates = config.num_iterations * config.num_epochs * config.num_minibatches
    annealed = optax.linear_schedule(config.learning_rate, 0.0, num_updates)
    learning_rate = annealed if config.anneal_learning_rate else config.learning_rate
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.adam(learning_rate, eps=config.adam_eps)
    )

    def init(key):
        params_key, env_key, key = jax.random.split(key, 3)
        params = network.init(params_key, jnp.zeros((1, *env.obs_shape)))
        obs, env_state = env.reset(jax.random.split(env_key, config.num_envs))
        return State(
            params=params,
            opt_state=optimizer.init(params),
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=init_statistics(env.obs_shape) if config.normalize_obs else None,
            reward_scaling=init_reward_scaling(config.num_envs) if config.normalize_reward else None,
        )

    def preprocess(state, obs):
        return normalize(state.obs_statistics, obs) if config.normalize_obs else obs

    def act(state, obs, key=None):
        policy, _ = network.apply(state.params, preprocess(state, obs))
        action = policy.mode() if key is None else policy.sample(seed=key)
        return action if is_discrete else scale_action(action, env.action_space)

    def value(state, obs):
        return network.apply(state.params, preprocess(state, obs))[1]

    def explore(state, keys):
        action_key, env_keys = keys
        policy, value = network.apply(state.params, preprocess(state, state.obs))
        action, log_prob = policy.sample_and_log_prob(seed=action_key)
        env_action = action if is_discrete else scale_action(action, env.action_space)
        obs, env_state, reward, terminated, truncated, info = env.step(env_keys, state.env_state, env_action)
        next_obs = info.pop("final_observation")
        transition = Transition(state.obs, action, reward, terminated, truncated, next_obs, log_prob, value)
        return state.replace(obs=obs, env_state=env_state), (transition, info)

    def rollout(state):
        key, action_key, env_key = jax.random.split(state.key, 3)
        action_keys = jax.random.split(action_key, config.num_steps)
        env_keys = jax.random.split(env_key, (config.num_steps, config.num_envs))
        return jax.lax.scan(explore, state.replace(key=key), (action_keys, env_keys))

    def loss(params, state, batch):
        policy, value = network.apply(params, preprocess(state, batch.obs))
        log_ratio = policy.log_prob(batch.action) - batch.log_prob  # [minibatch]
        ratio = jnp.exp(log_ratio)
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        clipped_ratio = jnp.clip(ratio, 1 - config.clip_eps, 1 + config.clip_eps)
        policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()

        value_error = (value - batch.target) ** 2
        if config.clip_value:
            clipped_value = batch.value + jnp.clip(value - batch.value, -config.clip_eps, config.clip_eps)
            value_error = jnp.maximum(value_error, (clipped_value - batch.target) ** 2)
        value_loss = 0.5 * value_error.mean()

        entropy = policy.entropy().mean()
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (jnp.abs(ratio - 1) > config.clip_eps).mean(),
        }
        return policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy, metrics

    def update(state, batch):
        grads, metrics = jax.grad(loss, has_aux=True)(state.params, state, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        return state.replace(params=params, opt_state=opt_state), metrics | {"grad_norm": optax.tree.norm(grads)}

    def learn(state, transitions):
        if config.normalize_reward:
            done = transitions.terminated | transitions.truncated
            reward_scaling, reward = scale_rewards(state.reward_scaling, transitions.reward, done, config.gamma)
            state, transitions = state.replace(reward_scaling=reward_scaling), transitions.replace(reward=reward)
        next_value = value(state, transitions.next_obs)  # [num_steps, num_envs]
        advantage, target = gae(transitions, next_value, config.gamma, config.gae_lambda)
        batch = Batch(transitions.obs, transitions.action, transitions.log_prob, transitions.value, advantage, target)
        batch = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), batch)

        key, shuffle_key = jax.random.split(state.key)
        epoch_keys = jax.random.split(shuffle_key, config.num_epochs)
        rows = jax.vmap(shuffle, in_axes=(0, None))(epoch_keys, batch_size)  # [num_epochs, batch_size]
        rows = rows.reshape(config.num_epochs * config.num_minibatches, -1)  # [updates, minibatch_size]
        state, metrics = jax.lax.scan(
            lambda state, rows: update(state, jax.tree.map(lambda x: x[rows], batch)), state.replace(key=key), rows
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        metrics["explained_variance"] = 1 - (batch.target - batch.value).var() / (batch.target.var() + 1e-8)
        if config.normalize_obs:
            state = state.replace(obs_statistics=update_statistics(state.obs_statistics, transitions.obs))
        return state, metrics

    def step(state, iteration):
        del iteration  # PPO's only schedule, the learning rate, counts updates in opt_state
        state, (transitions, info) = rollout(state)
        state, metrics = learn(state, transitions)
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
