"""PPO: Proximal Policy Optimization, clipped objective (Schulman et al. 2017, arXiv:1707.06347).

An iteration is a rollout of num_steps steps in num_envs environments, and its updates.
docs/ppo.md has the mathematics, each implementation detail, and what each metric means.

Different from the original:
  - Time limits do not stop the bootstrap (Pardo et al. 2018, arXiv:1712.00378).
  - Illegal actions have probability 0 (arXiv:2006.14171).
  - Observation statistics change after the epochs: the first minibatch is exactly on-policy.

Run: python ppo.py --env CartPole-v1 --num-seeds 16 (--help lists every setting)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from common import normalization
from common.config import Fraction, NonNegative, Positive, require, require_multiple, validate
from common.environment import clear_episodes, episode_metrics, make_env
from common.gradients import clip_inward
from common.initializers import orthogonal
from common.loops import gpu_unroll, scan_mean
from common.random import shuffle_epochs
from common.spaces import actor_obs, critic_obs, forbid_illegal, patches, scale_action, to_float

# -- Config ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Float fields can be swept in one compilation; any other change compiles anew."""

    env: str = "CartPole-v1"  # listed by python -m common.suites
    total_timesteps: int = 500_000  # env steps per seed, rounded down to whole iterations
    num_envs: int = 4  # parallel environments
    num_steps: int = 128  # steps of each environment per iteration
    num_epochs: int = 4  # passes over the rollout
    num_minibatches: int = 4  # updates per pass; must divide num_envs * num_steps
    learning_rate: NonNegative = 2.5e-4  # Adam step size at the start
    anneal_learning_rate: bool = True  # decay the learning rate linearly to 0
    adam_eps: Positive = 1e-5  # epsilon of Adam
    max_grad_norm: Positive = 0.5  # gradients are clipped to this global norm
    gamma: Fraction = 0.99  # discount
    gae_lambda: Fraction = 0.95  # lambda of GAE; 0: one-step advantage, 1: Monte Carlo
    clip_eps: Positive = 0.2  # bound of |ratio - 1|, and of the value's change if clip_value
    clip_value: bool = False  # clip the value loss; no gain in Andrychowicz et al. 2021
    vf_coef: NonNegative = 0.5  # weight of the value loss
    ent_coef: NonNegative = 0.01  # weight of the entropy bonus
    log_std_init: float = 0.0  # log of the standard deviation of continuous actions at the start
    normalize_obs: bool = False  # normalise by running mean and variance
    normalize_reward: bool = False  # divide by the std of the discounted return
    reward_scale: Positive = 1.0  # factor of the rewards
    hidden_sizes: tuple[int, ...] = (64, 64)  # units in each hidden layer, after any convolution
    value_hidden_sizes: tuple[int, ...] = ()  # hidden layers of the critic; empty: as hidden_sizes
    activation: Literal["tanh", "relu", "swish"] = "tanh"  # activation of the hidden layers
    layer_norm: bool = False  # LayerNorm in each hidden layer, before the activation

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
            x = nn.relu(nn.Dense(16, kernel_init=orthogonal(np.sqrt(2)))(patches(x, size=3)))

        x = x.reshape(*leading, -1)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x)
            x = activation(nn.LayerNorm()(x) if self.layer_norm else x)
        return x  # [*leading, hidden_sizes[-1]]


class Actor(nn.Module):
    """The policy."""

    num_outputs: int  # number of actions, or action_dim
    is_discrete: bool
    log_std_init: float  # of continuous actions
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> distrax.Distribution:
        x = self.torso()(actor_obs(obs))
        x = nn.Dense(self.num_outputs, kernel_init=orthogonal(0.01))(x)  # [*leading, num_outputs]
        if self.is_discrete:
            return distrax.Categorical(logits=forbid_illegal(x, obs))
        log_std_init = nn.initializers.constant(self.log_std_init)
        log_std = self.param("log_std", log_std_init, (self.num_outputs,), jnp.float32)
        std = jnp.exp(clip_inward(log_std, -20.0, 2.0))  # outside, jnp.clip has no gradient
        std = jnp.broadcast_to(std, x.shape)  # distrax would leave it without the batch axes
        return distrax.MultivariateNormalDiag(x, std)


class Critic(nn.Module):
    """The value of an observation."""

    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return nn.Dense(1, kernel_init=orthogonal(1.0))(self.torso()(critic_obs(obs))).squeeze(-1)


# -- Data ------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment; a rollout stacks num_steps of them."""

    obs: jax.Array  # [num_envs, *obs_shape], not normalised
    action: jax.Array  # [num_envs] int, or [num_envs, action_dim] as sampled
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, no successor state
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true successor, also where the episode ended


@struct.dataclass
class Batch:
    """Rows of a rollout for the loss; minibatch_size in a minibatch."""

    obs: jax.Array  # not normalised
    action: jax.Array
    log_prob: jax.Array  # of the action when sampled
    value: jax.Array  # of obs, before any update
    advantage: jax.Array  # not normalised
    target: jax.Array  # of the value


class Params(NamedTuple):  # dataclasses may collide in jit's cache (docs/traps.md, 14)
    """The trained parameters."""

    actor: Any  # of Actor
    critic: Any  # of Critic


@struct.dataclass
class State:
    """Everything that a seed carries from iteration to iteration; a checkpoint saves it."""

    params: Params
    opt_state: optax.OptState
    env_state: Any  # of num_envs environments
    obs: jax.Array  # [num_envs, *obs_shape]
    key: jax.Array  # []
    obs_statistics: normalization.RunningStatistics | None  # if normalize_obs
    reward_scaling: normalization.RewardScaling | None  # if normalize_reward


class Algorithm(NamedTuple):
    """Pure functions that train one seed."""

    init: Callable  # key -> State
    step: Callable  # one iteration: (State, iteration) -> (State, metrics)
    act: Callable  # (State, obs, key=None) -> action for the environment, greedy without a key
    value: Callable  # (State, obs) -> value


# -- Algorithm -------------------------------------------------------------------------------------


def gae(
    rollout: Transition, value: jax.Array, next_value: jax.Array, gamma: float, gae_lambda: float
) -> tuple[jax.Array, jax.Array]:
    """Advantages and value targets [num_steps, num_envs] (Schulman et al. 2016, eq. 16)."""
    next_value = jnp.where(rollout.terminated, 0.0, next_value)
    delta = rollout.reward + gamma * next_value - value
    decay = jnp.where(rollout.terminated | rollout.truncated, 0.0, gamma * gae_lambda)

    def accumulate(advantage, inputs):
        delta, decay = inputs
        advantage = delta + decay * advantage
        return advantage, advantage

    zeros = jnp.zeros_like(delta[0])
    inputs = delta, decay
    _, advantage = jax.lax.scan(accumulate, zeros, inputs, reverse=True, unroll=gpu_unroll(16))
    return advantage, advantage + value


def make(config: Config) -> Algorithm:
    """Build the pure functions that train one seed:

    step            one iteration: num_steps times explore, then learn
      explore       choose actions, step the environments
      learn         make the batch, then update with each minibatch
        make_batch  log-probs, values, advantages, targets

    Raises:
        ValueError: an invalid field, an unknown environment or an unsupported space.
    """
    config = validate(config)
    # A single advantage, normalised, is 0.
    require_multiple(config, "steps_per_iteration", "num_minibatches", least=2)
    no_scale = not config.normalize_reward or config.reward_scale == 1
    require(config, no_scale, "normalize_reward, which divides by reward_scale, needs it to be 1")
    num_rows = config.steps_per_iteration  # num_envs * num_steps
    minibatch_size = num_rows // config.num_minibatches
    env = make_env(config.env)
    is_discrete = hasattr(env.action_space, "n")
    num_outputs = env.action_space.n if is_discrete else env.action_space.shape[0]
    draw_noise = jax.random.gumbel if is_discrete else jax.random.normal
    torso = partial(Torso, activation=config.activation, layer_norm=config.layer_norm)
    value_sizes = config.value_hidden_sizes or config.hidden_sizes
    actor_torso = partial(torso, env.actor_shape, config.hidden_sizes)
    actor = Actor(num_outputs, is_discrete, config.log_std_init, actor_torso)
    critic = Critic(partial(torso, env.critic_shape, value_sizes))

    num_updates = config.num_epochs * config.num_minibatches  # per iteration, all at one rate
    schedule = optax.linear_schedule(config.learning_rate, 0.0, config.num_iterations)
    annealed = lambda count: schedule(count // num_updates)
    learning_rate = annealed if config.anneal_learning_rate else config.learning_rate
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    optimizer = optax.chain(clip, optax.adam(learning_rate, eps=config.adam_eps))

    def init(key):
        actor_key, critic_key, reset_key, key = jax.random.split(key, 4)
        obs, env_state = env.reset(jax.random.split(reset_key, config.num_envs))
        params = Params(actor=actor.init(actor_key, obs), critic=critic.init(critic_key, obs))
        scaling = normalization.init_reward_scaling(config.num_envs)
        statistics = normalization.init_statistics(env.obs_shape)
        return State(
            params=params,
            opt_state=optimizer.init(params),
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=statistics if config.normalize_obs else None,
            reward_scaling=scaling if config.normalize_reward else None,
        )

    def step(state, iteration):
        del iteration  # the optimizer counts its updates
        key, noise_key, env_key = jax.random.split(state.key, 3)
        shape = config.num_steps, config.num_envs  # drawn at once: each draw is a GPU kernel
        noise = draw_noise(noise_key, (*shape, num_outputs), jnp.float32)
        inputs = noise, jax.random.split(env_key, shape)
        state = state.replace(key=key, env_state=clear_episodes(state.env_state))
        state, rollout = jax.lax.scan(explore, state, inputs, unroll=env.unroll)
        state, metrics = learn(state, rollout)
        return state, episode_metrics(state.env_state) | metrics

    def explore(state, inputs):
        noise, env_keys = inputs
        policy = actor.apply(state.params.actor, preprocess(state, state.obs))
        if is_discrete:
            action = (policy.logits + noise).argmax(axis=-1)  # Gumbel-max trick
        else:
            action = policy.mean() + policy.stddev() * noise
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
        scaling, rollout = normalization.scale_rewards(state.reward_scaling, rollout, config.gamma)
        batch = make_batch(state, rollout)
        v, target = batch.value, batch.target
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

        # Update with shuffled minibatches.
        key, shuffle_key = jax.random.split(state.key)
        rows = shuffle_epochs(shuffle_key, config.num_epochs, num_rows, minibatch_size)
        state, metrics = scan_mean(partial(update, batch), state.replace(key=key), rows)
        metrics["explained_variance"] = 1 - (target - v).var() / (target.var() + 1e-8)

        # Update the observation statistics.
        statistics = normalization.update_statistics(state.obs_statistics, rollout.obs)
        return state.replace(obs_statistics=statistics, reward_scaling=scaling), metrics

    def make_batch(state, rollout):
        obs, next_obs = preprocess(state, rollout.obs), preprocess(state, rollout.next_obs)
        log_prob = actor.apply(state.params.actor, obs).log_prob(rollout.action)
        v = critic.apply(state.params.critic, obs)
        next_value = critic.apply(state.params.critic, next_obs)
        advantage, target = gae(rollout, v, next_value, config.gamma, config.gae_lambda)
        return Batch(
            obs=rollout.obs,
            action=rollout.action,
            log_prob=log_prob,
            value=v,
            advantage=advantage,
            target=target,
        )

    def update(batch, state, rows):
        minibatch = jax.tree.map(lambda x: x[rows], batch)
        grads, metrics = jax.grad(loss, has_aux=True)(state.params, state, minibatch)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        metrics["grad_norm"] = optax.tree.norm(grads)
        return state.replace(params=params, opt_state=opt_state), metrics

    def loss(params, state, batch):
        obs = preprocess(state, batch.obs)
        policy = actor.apply(params.actor, obs)
        v = critic.apply(params.critic, obs)
        log_ratio = policy.log_prob(batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        clipped_ratio = jnp.clip(ratio, 1 - config.clip_eps, 1 + config.clip_eps)
        policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()

        error = (v - batch.target) ** 2
        if config.clip_value:
            clipped_v = batch.value + jnp.clip(v - batch.value, -config.clip_eps, config.clip_eps)
            error = jnp.maximum(error, (clipped_v - batch.target) ** 2)
        value_loss = 0.5 * error.mean()

        entropy = policy.entropy().mean()
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (jnp.abs(ratio - 1) > config.clip_eps).mean(),
        }
        return policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy, metrics

    def preprocess(state, obs):
        return normalization.normalize(state.obs_statistics, obs)  # without statistics: obs

    def act(state, obs, key=None):
        policy = actor.apply(state.params.actor, preprocess(state, obs))
        action = policy.mode() if key is None else policy.sample(seed=key)
        return scale_action(action, env.action_space)

    def value(state, obs):
        return critic.apply(state.params.critic, preprocess(state, obs))

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
