"""SAC: Soft Actor-Critic with a learned temperature (Haarnoja et al. 2018b, arXiv:1812.05905).

Implementation details:
  1 Twin critics, the target takes the smaller one. 2 Squashed Gaussian policy; the correction for the tanh is
  computed in its stable form (appendix C, rewritten with softplus). 3 The temperature alpha is learned so that the
  entropy meets a target (section 5), or fixed. 4 One update of critics, actor, alpha and target critics after
  another, on one batch.

Deviations:
  - A time limit is not an end: the target bootstraps from the true next observation of a truncated episode, and stops
    at a terminated one only, value and entropy alike (Pardo et al. 2018, arXiv:1712.00378).
  - Actions live in [-1, 1] and are scaled to the environment's box. Log-probs, and so the target entropy, are per
    unit of the tanh's output, whatever the box: a uniform policy has entropy action_dim * log 2.
  - Updates happen at exact numbers of env steps for every num_envs, or the settings are refused.
  - The buffer is filled with `learning_starts` uniform-random transitions before the first iteration, by `init`.

Metrics (mean over the updates of an iteration, unless said otherwise):
  episode_return, episode_length: mean over the episodes that ended in the iteration, NaN if none did; num_episodes:
      how many did.
  critic_loss: as minimised, summed over the critics. actor_loss: alpha * log-prob minus the smaller critic. q_mean:
  mean of both critics. entropy: minus the mean log-prob of fresh actions. alpha: the temperature.

Run it: python sac.py --env Pendulum-v1 --num-seeds 16      Everything it can do: python sac.py --env Pendulum-v1 --help
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

from common.buffer import Buffer, add, check_replay, init_buffer, sample
from common.config import Fraction, NonNegative, Positive, PositiveFraction, validate
from common.environment import episode_metrics, make_env, scale_action
from common.initializers import orthogonal
from common.normalization import RunningStatistics, init_statistics, normalize, update_statistics

# -- Config ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Floats (NonNegative, Positive and Fraction too) may be JAX tracers, so they can be swept; the rest is static."""

    env: str = "Pendulum-v1"  # gymnax id
    total_timesteps: int = 1_000_000  # env steps of one seed with learning_starts, rounded down to whole iterations
    num_envs: int = 1  # environments side by side; updates per env step do not depend on it
    steps_per_iteration: int = 1_000  # env steps between two records of metrics
    learning_starts: int = 1_000  # uniform-random env steps that fill the buffer before the first iteration
    buffer_size: int = 1_000_000  # transitions
    batch_size: int = 256  # transitions of one critic update
    train_interval: int = 1  # env steps between updates
    gradient_steps: int = 1  # updates each time, so gradient_steps / train_interval per env step
    tau: PositiveFraction = 0.005  # share of the online critics in an update of the target critics
    actor_learning_rate: NonNegative = 3e-4  # Adam step size of the actor
    critic_learning_rate: NonNegative = 3e-4  # Adam step size of the critics
    alpha_learning_rate: NonNegative = 3e-4  # Adam step size of log alpha; 0 fixes alpha
    alpha: Positive = 1.0  # temperature at the start
    target_entropy: float = -1.0  # per dimension of the action; -1 is the paper's -action_dim
    gamma: Fraction = 0.99  # discount
    normalize_obs: bool = False  # by running mean and variance; the buffer keeps raw observations
    hidden_sizes: tuple[int, ...] = (256, 256)  # of the actor and of each critic
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


PRESETS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "total_timesteps": 20_000,
        "steps_per_iteration": 200,
        "buffer_size": 20_000,
        "batch_size": 128,
        "tau": 0.01,
        "actor_learning_rate": 2e-3,
        "critic_learning_rate": 2e-3,
        "alpha_learning_rate": 2e-3,
        "gamma": 0.98,
        "hidden_sizes": (64, 64),
    },
}


# -- Networks -------------------------------------------------------------------------------------------------------


class Torso(nn.Module):
    """Features of a vector."""

    hidden_sizes: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        activation = getattr(nn, self.activation)
        for size in self.hidden_sizes:
            x = activation(nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x))
        return x  # [..., hidden_sizes[-1]]


class Actor(nn.Module):
    """The squashed Gaussian policy, before the squashing."""

    action_dim: int
    hidden_sizes: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, obs: jax.Array) -> distrax.Distribution:
        x = Torso(self.hidden_sizes, self.activation)(obs.astype(jnp.float32))
        mean = nn.Dense(self.action_dim, kernel_init=orthogonal(0.01))(x)  # [..., action_dim]
        log_std = nn.Dense(self.action_dim, kernel_init=orthogonal(0.01))(x)  # [..., action_dim]
        return distrax.MultivariateNormalDiag(mean, jnp.exp(jnp.clip(log_std, -20.0, 2.0)))


class Critic(nn.Module):
    """The value of an observation and an action in [-1, 1]."""

    hidden_sizes: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        x = jnp.concatenate([obs.astype(jnp.float32), action], axis=-1)  # [..., obs_dim + action_dim]
        x = Torso(self.hidden_sizes, self.activation)(x)
        return nn.Dense(1, kernel_init=orthogonal(1.0))(x).squeeze(-1)  # [...]


TwinCritic = nn.vmap(  # two critics that share nothing: params [2, ...], values [..., 2]
    Critic, in_axes=None, out_axes=-1, axis_size=2, variable_axes={"params": 0}, split_rngs={"params": True}
)


# -- Data -----------------------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment, as the buffer keeps it; a batch has batch_size in place of num_envs."""

    obs: jax.Array  # [num_envs, *obs_shape], as the environment gave it
    action: jax.Array  # [num_envs, action_dim], in [-1, 1]
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, nothing follows
    next_obs: jax.Array  # [num_envs, *obs_shape], the true one, also at an end


@struct.dataclass
class Params:
    """What is trained; opt_state has the same fields."""

    actor: Any  # of Actor
    critic: Any  # of TwinCritic, [2, ...]
    log_alpha: jax.Array  # []


@struct.dataclass
class State:
    """All that a lane carries from one iteration to the next; a checkpoint holds just this and the iteration."""

    params: Params
    target_params: Any  # of TwinCritic, [2, ...]
    opt_state: Params
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


def squash(gaussian_action: jax.Array, gaussian_log_prob: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tanh of a Gaussian action and its log-prob (Haarnoja et al. 2018b, eq. 26), finite far in the tails.

    log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)).

    Args:
        gaussian_action: [..., action_dim].
        gaussian_log_prob: [...], of the whole action.

    Returns:
        action [..., action_dim] in [-1, 1] and log_prob [...], per unit of the tanh's output.
    """
    correction = 2.0 * (jnp.log(2.0) - gaussian_action - nn.softplus(-2.0 * gaussian_action))
    return jnp.tanh(gaussian_action), gaussian_log_prob - correction.sum(axis=-1)


def soft_q_target(
    q_next: jax.Array,
    next_log_prob: jax.Array,
    alpha: jax.Array,
    reward: jax.Array,
    terminated: jax.Array,
    gamma: float,
) -> jax.Array:
    """The soft Bellman target (Haarnoja et al. 2018b, eq. 2 and 3), from the smaller critic.

    Args:
        q_next: [batch_size, 2], target critics at the next observation and a fresh action.
        next_log_prob: [batch_size], of that action.
        reward, terminated: [batch_size].
    """
    soft_value = q_next.min(axis=-1) - alpha * next_log_prob
    return reward + gamma * jnp.where(terminated, 0.0, soft_value)


def make(config: Config) -> Algorithm:
    """Build the pure functions of SAC for one lane.

    Raises:
        ValueError: a field that cannot be honoured, an unknown environment or an unsupported space.
    """
    config = validate(config)
    check_replay(config)
    env = make_env(config.env)
    if hasattr(env.action_space, "n"):
        raise ValueError(f"{config.env} has discrete actions, SAC needs continuous ones; use dqn.py or ppo.py")
    if len(env.obs_shape) != 1:
        raise ValueError(f"{config.env} has observations of shape {env.obs_shape}, SAC needs vectors; use ppo.py")
    action_dim = env.action_space.shape[0]
    actor = Actor(action_dim, config.hidden_sizes, config.activation)
    critic = TwinCritic(config.hidden_sizes, config.activation)
    actor_optimizer = optax.adam(config.actor_learning_rate)
    critic_optimizer = optax.adam(config.critic_learning_rate)
    alpha_optimizer = optax.adam(config.alpha_learning_rate)
    num_cycles = config.steps_per_iteration // config.cycle_steps
    num_steps = config.cycle_steps // config.num_envs  # of each environment in a cycle
    num_prefill_steps = config.learning_starts // config.num_envs

    def init(key):
        actor_key, critic_key, env_key, action_key, step_key, key = jax.random.split(key, 6)
        obs, env_state = env.reset(jax.random.split(env_key, config.num_envs))
        action = jnp.zeros((config.num_envs, action_dim), jnp.float32)
        params = Params(
            actor=actor.init(actor_key, obs),
            critic=critic.init(critic_key, obs, action),
            log_alpha=jnp.log(jnp.asarray(config.alpha, jnp.float32)),
        )
        opt_state = Params(
            actor=actor_optimizer.init(params.actor),
            critic=critic_optimizer.init(params.critic),
            log_alpha=alpha_optimizer.init(params.log_alpha),
        )
        row = Transition(obs[0], action[0], jnp.float32(0), jnp.bool_(False), obs[0])
        state = State(
            params=params,
            target_params=params.critic,
            opt_state=opt_state,
            buffer=init_buffer(row, config.buffer_size),
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=init_statistics(env.obs_shape) if config.normalize_obs else None,
        )
        actions = jax.random.uniform(action_key, (num_prefill_steps, *action.shape), jnp.float32, -1.0, 1.0)
        step_keys = jax.random.split(step_key, (num_prefill_steps, config.num_envs))
        return jax.lax.scan(env_step, state, (actions, step_keys))[0]

    def preprocess(state, obs):
        return normalize(state.obs_statistics, obs) if config.normalize_obs else obs

    def sample_action(actor_params, obs, key):
        return squash(*actor.apply(actor_params, obs).sample_and_log_prob(seed=key))

    def act(state, obs, key=None):
        policy = actor.apply(state.params.actor, preprocess(state, obs))
        action = jnp.tanh(policy.mode() if key is None else policy.sample(seed=key))
        return scale_action(action, env.action_space)

    def value(state, obs):
        obs = preprocess(state, obs)
        action = jnp.tanh(actor.apply(state.params.actor, obs).mode())
        return critic.apply(state.params.critic, obs, action).min(axis=-1)

    def env_step(state, inputs):
        action, step_keys = inputs
        obs, env_state, reward, terminated, _, info = env.step(
            step_keys, state.env_state, scale_action(action, env.action_space)
        )
        next_obs = info.pop("final_observation")
        state = state.replace(
            buffer=add(state.buffer, Transition(state.obs, action, reward, terminated, next_obs)),
            obs_statistics=update_statistics(state.obs_statistics, state.obs) if config.normalize_obs else None,
            env_state=env_state,
            obs=obs,
        )
        return state, info

    def explore(state, inputs):
        explore_key, step_keys = inputs
        action, _ = sample_action(state.params.actor, preprocess(state, state.obs), explore_key)
        return env_step(state, (action, step_keys))

    def critic_loss(critic_params, state, batch, key):
        next_obs = preprocess(state, batch.next_obs)
        next_action, next_log_prob = sample_action(state.params.actor, next_obs, key)
        q_next = critic.apply(state.target_params, next_obs, next_action)  # [batch_size, 2]
        alpha = jnp.exp(state.params.log_alpha)
        target = soft_q_target(q_next, next_log_prob, alpha, batch.reward, batch.terminated, config.gamma)
        q = critic.apply(critic_params, preprocess(state, batch.obs), batch.action)  # [batch_size, 2]
        loss = ((q - target[:, None]) ** 2).mean(axis=0).sum()  # each critic has its own mean
        return loss, {"critic_loss": loss, "q_mean": q.mean()}

    def actor_loss(actor_params, state, batch, key):
        obs = preprocess(state, batch.obs)
        action, log_prob = sample_action(actor_params, obs, key)
        q = critic.apply(state.params.critic, obs, action).min(axis=-1)  # [batch_size]
        loss = (jnp.exp(state.params.log_alpha) * log_prob - q).mean()
        return loss, {"actor_loss": loss, "entropy": -log_prob.mean()}

    def alpha_loss(log_alpha, entropy):
        alpha = jnp.exp(log_alpha)
        return alpha * (entropy - config.target_entropy * action_dim), {"alpha": alpha}

    def update_critic(state, batch, key):
        grads, metrics = jax.grad(critic_loss, has_aux=True)(state.params.critic, state, batch, key)
        updates, opt_state = critic_optimizer.update(grads, state.opt_state.critic)
        params = optax.apply_updates(state.params.critic, updates)
        return state.replace(
            params=state.params.replace(critic=params), opt_state=state.opt_state.replace(critic=opt_state)
        ), metrics

    def update_actor(state, batch, key):
        grads, metrics = jax.grad(actor_loss, has_aux=True)(state.params.actor, state, batch, key)
        updates, opt_state = actor_optimizer.update(grads, state.opt_state.actor)
        params = optax.apply_updates(state.params.actor, updates)
        return state.replace(
            params=state.params.replace(actor=params), opt_state=state.opt_state.replace(actor=opt_state)
        ), metrics

    def update_alpha(state, entropy):
        grads, metrics = jax.grad(alpha_loss, has_aux=True)(state.params.log_alpha, entropy)
        updates, opt_state = alpha_optimizer.update(grads, state.opt_state.log_alpha)
        log_alpha = optax.apply_updates(state.params.log_alpha, updates)
        return state.replace(
            params=state.params.replace(log_alpha=log_alpha), opt_state=state.opt_state.replace(log_alpha=opt_state)
        ), metrics

    def update(state, inputs):
        batch, key = inputs
        critic_key, actor_key = jax.random.split(key)
        state, critic_metrics = update_critic(state, batch, critic_key)
        state, actor_metrics = update_actor(state, batch, actor_key)
        state, alpha_metrics = update_alpha(state, actor_metrics["entropy"])
        target_params = optax.incremental_update(state.params.critic, state.target_params, config.tau)
        return state.replace(target_params=target_params), critic_metrics | actor_metrics | alpha_metrics

    def learn(state, key):
        sample_key, update_key = jax.random.split(key)
        batches = sample(state.buffer, sample_key, (config.cycle_updates, config.batch_size))
        return jax.lax.scan(update, state, (batches, jax.random.split(update_key, config.cycle_updates)))

    def cycle(state, inputs):
        explore_keys, step_keys, learn_key = inputs
        state, info = jax.lax.scan(explore, state, (explore_keys, step_keys))
        state, metrics = learn(state, learn_key)
        return state, (info, metrics)

    def step(state, iteration):
        del iteration  # nothing in SAC follows a schedule
        key, explore_key, step_key, learn_key = jax.random.split(state.key, 4)
        explore_keys = jax.random.split(explore_key, (num_cycles, num_steps))
        step_keys = jax.random.split(step_key, (num_cycles, num_steps, config.num_envs))
        learn_keys = jax.random.split(learn_key, num_cycles)
        state, (info, metrics) = jax.lax.scan(cycle, state.replace(key=key), (explore_keys, step_keys, learn_keys))
        return state, episode_metrics(info) | jax.tree.map(jnp.mean, metrics)

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
