"""REPPO: Relative Entropy Pathwise Policy Optimization (Voelcker et al. 2025, arXiv:2507.11019).

An iteration is a rollout of num_steps steps in num_envs environments, and its updates.
docs/reppo.md has the mathematics, each implementation detail, and what each metric means.

Different from the original:
  - Time limits do not stop the bootstrap (Pardo et al. 2018, arXiv:1712.00378), and cut lambda.
  - The KL is exact: that of the Gaussians, which the squashing does not change.
  - The weight of the KL, eta, never falls below its start, so that a late excursion is corrected.
  - No auxiliary head. Observation statistics change after the epochs.

Run: python variants/reppo.py --env Pendulum-v1 --num-seeds 16 (--help lists every setting)
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # the folder of `common`
from common import normalization
from common.config import Fraction, NonNegative, Positive, require, require_multiple, validate
from common.environment import clear_episodes, episode_metrics, make_env
from common.hl_gauss import histogram_mean, hl_gauss
from common.initializers import orthogonal
from common.loops import gpu_unroll, scan_mean
from common.random import shuffle_epochs
from common.spaces import actor_obs, check_continuous, critic_obs, scale_action

# -- Config ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Float fields can be swept in one compilation; any other change compiles anew."""

    env: str = "Pendulum-v1"  # listed by python -m common.suites
    total_timesteps: int = 1_000_000  # env steps per seed, rounded down to whole iterations
    num_envs: int = 64  # parallel environments
    num_steps: int = 32  # steps of each environment per iteration
    num_epochs: int = 8  # passes over the rollout
    num_minibatches: int = 8  # updates per pass; must divide num_envs * num_steps
    num_samples: int = 4  # actions per next state, whose mean Q and entropy make the target
    learning_rate: NonNegative = 3e-4  # Adam step size of all parameters at the start
    anneal_learning_rate: bool = False  # decay the learning rate linearly to 0
    max_grad_norm: Positive = 0.5  # gradients of each part of Params are clipped to this norm
    gamma: Fraction = 0.99  # discount
    q_lambda: Fraction = 0.95  # lambda of the returns; 0: one step, 1: Monte Carlo
    value_min: float = -100.0  # lower end of the critic's range: min(0, least reward) / (1 - gamma)
    value_max: float = 100.0  # upper end; spare two bins, and keep the metric clipped_targets at 0
    num_bins: int = 151  # bins of the critic's range
    alpha: Positive = 0.01  # initial temperature
    target_entropy: float = -0.5  # target per action dimension
    eta: Positive = 0.01  # weight of the KL at the start, and at least
    kl_bound: Positive = 0.1  # rows whose KL from the old policy is larger only reduce that KL
    normalize_obs: bool = True  # normalise by running mean and variance
    reward_scale: Positive = 1.0  # factor of the rewards
    hidden_sizes: tuple[int, ...] = (256, 256)  # units in each hidden layer of both networks
    value_hidden_sizes: tuple[int, ...] = ()  # hidden layers of the critic; empty: as hidden_sizes
    activation: Literal["tanh", "relu", "swish"] = "swish"  # activation of the hidden layers
    layer_norm: bool = True  # LayerNorm in each hidden layer, before the activation

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
    """Features of a vector."""

    hidden_sizes: tuple[int, ...]
    activation: str
    layer_norm: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        activation = getattr(nn, self.activation)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x)
            x = activation(nn.LayerNorm()(x) if self.layer_norm else x)
        return x  # [..., hidden_sizes[-1]]


class Actor(nn.Module):
    """The Gaussian whose actions `squash` maps to [-1, 1]."""

    action_dim: int
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> distrax.Distribution:
        x = self.torso()(actor_obs(obs).astype(jnp.float32))
        mean = nn.Dense(self.action_dim, kernel_init=orthogonal(0.01))(x)  # [..., action_dim]
        log_std = nn.Dense(self.action_dim, kernel_init=orthogonal(0.01))(x)  # [..., action_dim]
        return distrax.MultivariateNormalDiag(mean, jnp.exp(jnp.clip(log_std, -20.0, 2.0)))


class Critic(nn.Module):
    """Logits of the bins of an observation's and an action's value; the action in [-1, 1]."""

    num_bins: int
    start: Callable  # initializer: the logits of the value 0
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        x = jnp.concatenate([critic_obs(obs).astype(jnp.float32), action], axis=-1)
        x = self.torso()(x)
        return nn.Dense(self.num_bins, kernel_init=orthogonal(0.01), bias_init=self.start)(x)


# -- Data ------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment; a rollout stacks num_steps of them."""

    obs: jax.Array  # [num_envs, *obs_shape], not normalised
    action: jax.Array  # [num_envs, action_dim], in [-1, 1]
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, no successor state
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true successor, also where the episode ended


@struct.dataclass
class Batch:
    """Rows of a rollout for the losses; minibatch_size in a minibatch."""

    obs: jax.Array  # not normalised
    action: jax.Array
    target: jax.Array  # of the action's value
    mean: jax.Array  # of the policy before the updates
    std: jax.Array  # of the policy before the updates


class Params(NamedTuple):  # dataclasses may collide in jit's cache (docs/traps.md, 14)
    """The trained parameters."""

    actor: Any  # of Actor
    critic: Any  # of Critic
    log_alpha: jax.Array  # []
    log_eta: jax.Array  # []


@struct.dataclass
class State:
    """Everything that a seed carries from iteration to iteration; a checkpoint saves it."""

    params: Params
    opt_state: dict[str, optax.OptState]  # by the names in Params
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


def squash(gaussian_action: jax.Array, gaussian_log_prob: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tanh of a Gaussian action [..., action_dim] and its log-prob [...] (arXiv:1812.05905, C).

    Stable for large actions: log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)).
    """
    correction = 2.0 * (jnp.log(2.0) - gaussian_action - nn.softplus(-2.0 * gaussian_action))
    return jnp.tanh(gaussian_action), gaussian_log_prob - correction.sum(axis=-1)


def q_returns(rollout: Transition, next_q: jax.Array, gamma: float, q_lambda: float) -> jax.Array:
    """Q(lambda) returns [num_steps, num_envs] of soft rewards; next_q: the mean Q of next_obs."""
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
      learn         make the batch; with each minibatch: update
        make_batch  returns, the policy before the updates
        update      descend(critic), descend(actor), descend(log_alpha), descend(log_eta)

    Raises:
        ValueError: an invalid field, an unknown environment or an unsupported space.
    """
    config = validate(config)
    require_multiple(config, "steps_per_iteration", "num_minibatches")
    require(config, config.value_min < config.value_max, "value_min must be below value_max")
    require(config, config.num_bins >= 2, "num_bins must be at least 2")
    reachable = config.target_entropy < np.log(2)
    require(config, reachable, "target_entropy must be below log 2 = 0.693, the most in [-1, 1]")
    num_rows = config.steps_per_iteration  # num_envs * num_steps
    minibatch_size = num_rows // config.num_minibatches
    env = make_env(config.env)
    check_continuous(config.env, env)
    action_dim = env.action_space.shape[0]
    value_range = {"low": config.value_min, "high": config.value_max}
    to_histogram = partial(hl_gauss, **value_range, num_bins=config.num_bins)
    torso = partial(Torso, activation=config.activation, layer_norm=config.layer_norm)
    value_sizes = config.value_hidden_sizes or config.hidden_sizes
    actor = Actor(action_dim, partial(torso, config.hidden_sizes))
    start = lambda *_: 40.0 * to_histogram(jnp.float32(0))  # 40: nearly all at 0
    critic = Critic(config.num_bins, start, partial(torso, value_sizes))

    num_updates = config.num_epochs * config.num_minibatches  # per iteration, all at one rate
    schedule = optax.linear_schedule(config.learning_rate, 0.0, config.num_iterations)
    annealed = lambda count: schedule(count // num_updates)
    learning_rate = annealed if config.anneal_learning_rate else config.learning_rate
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    optimizer = optax.chain(clip, optax.adam(learning_rate))

    def init(key):
        actor_key, critic_key, reset_key, key = jax.random.split(key, 4)
        obs, env_state = env.reset(jax.random.split(reset_key, config.num_envs))
        action = jnp.zeros((config.num_envs, action_dim), jnp.float32)
        params = Params(
            actor=actor.init(actor_key, obs),
            critic=critic.init(critic_key, obs, action),
            log_alpha=jnp.log(jnp.asarray(config.alpha, jnp.float32)),
            log_eta=jnp.log(jnp.asarray(config.eta, jnp.float32)),
        )
        statistics = normalization.init_statistics(env.obs_shape)
        return State(
            params=params,
            opt_state={name: optimizer.init(x) for name, x in params._asdict().items()},
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=statistics if config.normalize_obs else None,
        )

    def step(state, iteration):
        del iteration  # the optimizer counts its updates
        key, noise_key, env_key = jax.random.split(state.key, 3)
        shape = config.num_steps, config.num_envs  # drawn at once: each draw is a GPU kernel
        noise = jax.random.normal(noise_key, (*shape, action_dim), jnp.float32)
        inputs = noise, jax.random.split(env_key, shape)
        state = state.replace(key=key, env_state=clear_episodes(state.env_state))
        state, rollout = jax.lax.scan(explore, state, inputs, unroll=env.unroll)
        state, metrics = learn(state, rollout)
        return state, episode_metrics(state.env_state) | metrics

    def explore(state, inputs):
        noise, env_keys = inputs
        policy = actor.apply(state.params.actor, preprocess(state, state.obs))
        action, _ = sample_action(policy, noise)
        outcome = env.step(env_keys, state.env_state, scale_action(action, env.action_space))
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
        # Make the batch.
        key, value_key, shuffle_key, noise_key = jax.random.split(state.key, 4)
        shape = config.num_samples, *rollout.action.shape
        batch = make_batch(state, rollout, jax.random.normal(value_key, shape, jnp.float32))
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

        # Update with shuffled minibatches.
        rows = shuffle_epochs(shuffle_key, config.num_epochs, num_rows, minibatch_size)
        noise = jax.random.normal(noise_key, (*rows.shape, action_dim), jnp.float32)
        state, metrics = scan_mean(partial(update, batch), state.replace(key=key), (rows, noise))
        in_range = jnp.clip(batch.target, config.value_min, config.value_max)
        metrics["clipped_targets"] = (in_range != batch.target).mean()

        # Update the observation statistics.
        statistics = normalization.update_statistics(state.obs_statistics, rollout.obs)
        return state.replace(obs_statistics=statistics), metrics

    def make_batch(state, rollout, noise):
        obs, next_obs = preprocess(state, rollout.obs), preprocess(state, rollout.next_obs)
        policy, next_policy = (actor.apply(state.params.actor, x) for x in (obs, next_obs))
        sample_next = partial(sample_action, next_policy)
        action, log_prob = jax.vmap(sample_next)(noise)  # [num_samples, ...]
        next_q = jax.vmap(partial(q_value, state.params.critic, next_obs))(action).mean(axis=0)
        bonus = config.gamma * -jnp.exp(state.params.log_alpha) * log_prob.mean(axis=0)
        soft = rollout.replace(reward=rollout.reward + jnp.where(rollout.terminated, 0.0, bonus))
        target = q_returns(soft, next_q, config.gamma, config.q_lambda)
        mean, std = policy.mean(), policy.stddev()
        return Batch(obs=rollout.obs, action=rollout.action, target=target, mean=mean, std=std)

    def update(batch, state, inputs):
        rows, noise = inputs
        minibatch = jax.tree.map(lambda x: x[rows], batch)
        state, critic_metrics = descend(state, "critic", critic_loss, minibatch)
        state, actor_metrics = descend(state, "actor", actor_loss, minibatch, noise)
        state, alpha_metrics = descend(state, "log_alpha", alpha_loss, actor_metrics["entropy"])
        state, eta_metrics = descend(state, "log_eta", eta_loss, actor_metrics["kl"])
        log_eta = jnp.maximum(state.params.log_eta, jnp.log(config.eta))
        state = state.replace(params=state.params._replace(log_eta=log_eta))
        return state, critic_metrics | actor_metrics | alpha_metrics | eta_metrics

    def descend(state, name, loss, *inputs):
        """One optimizer step on the parameters called `name`."""
        params = getattr(state.params, name)
        grads, metrics = jax.grad(loss, has_aux=True)(params, state, *inputs)
        updates, opt_state = optimizer.update(grads, state.opt_state[name])
        params = state.params._replace(**{name: optax.apply_updates(params, updates)})
        return state.replace(params=params, opt_state=state.opt_state | {name: opt_state}), metrics

    def critic_loss(critic_params, state, batch):
        logits = critic.apply(critic_params, preprocess(state, batch.obs), batch.action)
        loss = optax.softmax_cross_entropy(logits, to_histogram(batch.target)).mean()
        return loss, {"critic_loss": loss, "q_mean": histogram_mean(logits, **value_range).mean()}

    def actor_loss(actor_params, state, batch, noise):
        obs = preprocess(state, batch.obs)
        policy = actor.apply(actor_params, obs)
        action, log_prob = sample_action(policy, noise)
        q = q_value(state.params.critic, obs, action)  # [minibatch_size]
        kl = distrax.MultivariateNormalDiag(batch.mean, batch.std).kl_divergence(policy)
        alpha, eta = jnp.exp(state.params.log_alpha), jnp.exp(state.params.log_eta)
        loss = jnp.where(kl < config.kl_bound, alpha * log_prob - q, eta * kl).mean()
        return loss, {"actor_loss": loss, "entropy": -log_prob.mean(), "kl": kl.mean()}

    def alpha_loss(log_alpha, state, entropy):
        alpha = jnp.exp(log_alpha)
        return alpha * (entropy - config.target_entropy * action_dim), {"alpha": alpha}

    def eta_loss(log_eta, state, kl):
        return jnp.exp(log_eta) * (config.kl_bound - kl), {"eta": jnp.exp(log_eta)}

    def q_value(critic_params, obs, action):
        return histogram_mean(critic.apply(critic_params, obs, action), **value_range)

    def sample_action(policy, noise):
        mean, std = policy.mean(), policy.stddev()
        # policy.log_prob would divide to find the noise again: inexact where std is small.
        log_prob = (jax.scipy.stats.norm.logpdf(noise) - jnp.log(std)).sum(axis=-1)
        return squash(mean + std * noise, log_prob)

    def preprocess(state, obs):
        return normalization.normalize(state.obs_statistics, obs)  # without statistics: obs

    def act(state, obs, key=None):
        policy = actor.apply(state.params.actor, preprocess(state, obs))
        action = jnp.tanh(policy.mode() if key is None else policy.sample(seed=key))
        return scale_action(action, env.action_space)

    def value(state, obs):
        obs = preprocess(state, obs)
        action = jnp.tanh(actor.apply(state.params.actor, obs).mode())
        return q_value(state.params.critic, obs, action)

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
