"""TD3: Twin Delayed Deep Deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

An iteration is steps_per_iteration env steps and their updates.
docs/td3.md has the mathematics, each implementation detail, and what each metric means.

Different from the original:
  - Time limits do not stop the bootstrap (Pardo et al. 2018, arXiv:1712.00378).
  - Actions live in [-1, 1] and are scaled to the environment's box; noise is in the same units.
  - Updates per env step never depend on num_envs; other settings raise ValueError.
  - `init` fills the buffer with learning_starts uniform-random transitions.

Options, off by default:
  - n_step (Hessel et al. 2018, arXiv:1710.02298), uncorrected.
  - noise_steps: AR(1) exploration noise, also across episodes (after Eberhard et al. 2023, ICLR).
  - exploration_noise_max: a std of the noise for each environment (arXiv:2307.12983).
  - layer_norm (arXiv:2403.00514).

Run: python td3.py --env Pendulum-v1 --num-seeds 16 (--help lists every setting)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

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
from common.loops import gpu_unroll, scan_mean
from common.random import correlate
from common.spaces import actor_obs, check_continuous, critic_obs, scale_action

# -- Config ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Float fields can be swept in one compilation; any other change compiles anew."""

    env: str = "Pendulum-v1"  # listed by python -m common.suites
    total_timesteps: int = 1_000_000  # env steps per seed with learning_starts, in whole iterations
    num_envs: int = 1  # parallel environments
    steps_per_iteration: int = 1_000  # env steps per record of metrics
    learning_starts: int = 1_000  # uniform-random env steps before the first iteration
    buffer_size: int = 1_000_000  # capacity in transitions
    batch_size: int = 256  # transitions per critic update
    train_interval: int = 2  # env steps between updates; policy_delay must divide cycle_updates
    gradient_steps: int = 2  # critic updates per train_interval
    policy_delay: int = 2  # critic updates per update of the actor and the targets
    tau: PositiveFraction = 0.005  # step of the target networks towards the online networks
    actor_learning_rate: NonNegative = 3e-4  # Adam step size of the actor
    critic_learning_rate: NonNegative = 3e-4  # Adam step size of the critics
    gamma: Fraction = 0.99  # discount
    n_step: int = 1  # steps of reward before the bootstrap (Sutton 1988, Hessel et al. 2018)
    noise_steps: int = 1  # correlation time of exploration noise (Eberhard et al. 2023); 1: white
    exploration_noise: NonNegative = 0.1  # std of the noise on actions in [-1, 1]
    exploration_noise_max: NonNegative = 0.0  # if larger: std of the last env, others in between
    target_noise: NonNegative = 0.2  # std of the noise on target actions in [-1, 1]
    target_noise_clip: NonNegative = 0.5  # bound of the noise on target actions
    normalize_obs: bool = False  # normalise by running mean and variance; the buffer keeps raw obs
    reward_scale: Positive = 1.0  # factor of the rewards
    hidden_sizes: tuple[int, ...] = (256, 256)  # units in each hidden layer of every network
    value_hidden_sizes: tuple[int, ...] = ()  # hidden layers of each critic; empty: as hidden_sizes
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
    """The greedy action, in [-1, 1]."""

    action_dim: int
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = self.torso()(actor_obs(obs).astype(jnp.float32))
        x = nn.Dense(self.action_dim, kernel_init=orthogonal(0.5))(x)  # 0.01 begins at rest
        return nn.tanh(x)  # [..., action_dim]


class Critic(nn.Module):
    """The value of an observation and an action in [-1, 1]."""

    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        x = jnp.concatenate([critic_obs(obs).astype(jnp.float32), action], axis=-1)
        x = self.torso()(x)
        return nn.Dense(1, kernel_init=orthogonal(1.0))(x).squeeze(-1)  # [...]


TwinCritic = nn.vmap(  # two critics that share nothing: params [2, ...], values [..., 2]
    Critic,
    in_axes=None,
    out_axes=-1,
    axis_size=2,
    variable_axes={True: 0},
    split_rngs={"params": True},
)


# -- Data ------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment; in a batch, batch_size takes the place of num_envs."""

    obs: jax.Array  # [num_envs, *obs_shape], not normalised
    action: jax.Array  # [num_envs, action_dim], in [-1, 1]
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, no successor state
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true successor, also where the episode ended
    discount: jax.Array | None = None  # [batch_size] gamma ** (window length), by read_windows


class Params(NamedTuple):  # dataclasses may collide in jit's cache (docs/traps.md, 14)
    """The trained parameters."""

    actor: Any  # of Actor
    critic: Any  # of TwinCritic, [2, ...]


@struct.dataclass
class State:
    """Everything that a seed carries from iteration to iteration; a checkpoint saves it."""

    params: Params
    target_params: Params
    opt_state: dict[str, optax.OptState]  # by the names in Params
    buffer: Buffer  # of Transition, [buffer_size, ...]
    env_state: Any  # of num_envs environments
    obs: jax.Array  # [num_envs, *obs_shape]
    key: jax.Array  # []
    obs_statistics: normalization.RunningStatistics | None  # if normalize_obs
    noise: jax.Array | None  # [num_envs, action_dim], of the last step, if noise_steps > 1


class Algorithm(NamedTuple):
    """Pure functions that train one seed."""

    init: Callable  # key -> State
    step: Callable  # one iteration: (State, iteration) -> (State, metrics)
    act: Callable  # (State, obs, key=None) -> action for the environment, greedy without a key
    value: Callable  # (State, obs) -> value


# -- Algorithm -------------------------------------------------------------------------------------


def smooth(action: jax.Array, noise: jax.Array, noise_clip: float) -> jax.Array:
    """Target policy smoothing (Fujimoto et al. 2018, eq. 14), [batch_size, action_dim]."""
    return jnp.clip(action + jnp.clip(noise, -noise_clip, noise_clip), -1.0, 1.0)


def make(config: Config) -> Algorithm:
    """Build the pure functions that train one seed:

    step            one iteration: num_cycles times cycle
      cycle         num_steps times explore, then learn
        explore     choose actions, env_step (store the transitions)
        learn       read all batches; with policy_delay of them: update
          update    policy_delay times descend(critic), descend(actor), move the targets

    Raises:
        ValueError: an invalid field, an unknown environment or an unsupported space.
    """
    config = validate(config)
    require_multiple(config, "cycle_steps", "num_envs", "train_interval")
    require_multiple(config, "steps_per_iteration", "num_envs", "train_interval")
    require_multiple(config, "learning_starts", "num_envs")
    fits = config.batch_size <= config.learning_starts <= config.buffer_size
    require(config, fits, "learning_starts must be at least batch_size and at most buffer_size")
    require_multiple(config, "cycle_updates", "policy_delay")
    has_last = config.num_envs > 1 or config.exploration_noise_max == 0
    require(config, has_last, "exploration_noise_max needs num_envs to be at least 2")
    env = make_env(config.env)
    check_continuous(config.env, env)
    action_dim = env.action_space.shape[0]
    torso = partial(Torso, activation=config.activation, layer_norm=config.layer_norm)
    value_sizes = config.value_hidden_sizes or config.hidden_sizes
    actor = Actor(action_dim, partial(torso, config.hidden_sizes))
    critic = TwinCritic(partial(torso, value_sizes))
    optimizers = {
        "actor": optax.adam(config.actor_learning_rate),
        "critic": optax.adam(config.critic_learning_rate),
    }
    windows = {"n_step": config.n_step, "num_envs": config.num_envs, "gamma": config.gamma}
    num_cycles = config.steps_per_iteration // config.cycle_steps
    num_steps = config.cycle_steps // config.num_envs  # of each environment per cycle
    num_updates = config.cycle_updates // config.policy_delay  # of the actor per cycle
    rows_shape = num_cycles, num_updates, config.policy_delay, config.batch_size
    noise_shape = *rows_shape, action_dim
    spread = jnp.maximum(config.exploration_noise_max - config.exploration_noise, 0.0)
    share = np.linspace(0.0, 1.0, config.num_envs, dtype=np.float32)[:, None]
    noise_std = config.exploration_noise + share * spread  # [num_envs, 1]

    def init(key):
        keys = jax.random.split(key, 7)
        actor_key, critic_key, reset_key, action_key, env_key, key, noise_key = keys
        obs, env_state = env.reset(jax.random.split(reset_key, config.num_envs))
        noise = jax.random.normal(noise_key, (config.num_envs, action_dim), jnp.float32)
        params = Params(
            actor=actor.init(actor_key, obs),
            critic=critic.init(critic_key, obs, noise),
        )
        reward, false = jnp.float32(0), jnp.bool_(False)
        first = jax.tree.map(lambda x: x[0], obs)
        row = Transition(first, noise[0], reward, terminated=false, truncated=false, next_obs=first)
        statistics = normalization.init_statistics(env.obs_shape)
        state = State(
            params=params,
            target_params=params,
            opt_state={name: x.init(getattr(params, name)) for name, x in optimizers.items()},
            buffer=init_buffer(row, config.buffer_size),
            env_state=env_state,
            obs=obs,
            key=key,
            obs_statistics=statistics if config.normalize_obs else None,
            noise=noise if config.noise_steps > 1 else None,
        )
        shape = config.learning_starts // config.num_envs, config.num_envs
        actions = jax.random.uniform(action_key, (*shape, action_dim), jnp.float32, -1.0, 1.0)
        return jax.lax.scan(env_step, state, (actions, jax.random.split(env_key, shape)))[0]

    def step(state, iteration):
        del iteration  # nothing follows a schedule
        key, explore_key, env_key, row_key, learn_key = jax.random.split(state.key, 5)
        shape = num_cycles, num_steps, config.num_envs  # drawn at once: each draw is a GPU kernel
        noise = jax.random.normal(explore_key, (*shape, action_dim), jnp.float32)
        explore_inputs = noise, jax.random.split(env_key, shape)
        rows = draw_rows(state.buffer, row_key, rows_shape, config.cycle_steps)
        learn_inputs = rows, jax.random.normal(learn_key, noise_shape, jnp.float32)
        state = state.replace(key=key, env_state=clear_episodes(state.env_state))
        state, metrics = scan_mean(cycle, state, (explore_inputs, learn_inputs))
        return state, episode_metrics(state.env_state) | metrics

    def cycle(state, inputs):
        explore_inputs, learn_inputs = inputs
        state, _ = jax.lax.scan(explore, state, explore_inputs, unroll=env.unroll)
        return learn(state, learn_inputs)

    def explore(state, inputs):
        noise, env_keys = inputs
        carried, noise = correlate(state.noise, noise, config.noise_steps)
        action = actor.apply(state.params.actor, preprocess(state, state.obs))
        action = jnp.clip(action + noise_std * noise, -1.0, 1.0)
        return env_step(state.replace(noise=carried), (action, env_keys))

    def env_step(state, inputs):
        action, env_keys = inputs
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
        statistics = normalization.update_statistics(state.obs_statistics, transition.obs)
        state = state.replace(env_state=env_state, obs=obs, obs_statistics=statistics)
        return state.replace(buffer=add(state.buffer, transition)), None

    def learn(state, inputs):
        rows, noise = inputs
        batches = read_windows(state.buffer, rows, **windows)
        return scan_mean(update, state, (batches, noise))

    def update(state, inputs):
        batches, _ = inputs  # [policy_delay, ...]; the actor needs no noise
        state, critic_metrics = scan_mean(update_critic, state, inputs, unroll=gpu_unroll(4))
        last_batch = jax.tree.map(lambda x: x[-1], batches)
        state, actor_metrics = descend(state, "actor", actor_loss, last_batch)
        target_params = optax.incremental_update(state.params, state.target_params, config.tau)
        return state.replace(target_params=target_params), critic_metrics | actor_metrics

    def update_critic(state, inputs):
        return descend(state, "critic", critic_loss, *inputs)  # inputs: batch, noise

    def descend(state, name, loss, *inputs):
        """One optimizer step on the parameters called `name`."""
        params = getattr(state.params, name)
        grads, metrics = jax.grad(loss, has_aux=True)(params, state, *inputs)
        updates, opt_state = optimizers[name].update(grads, state.opt_state[name])
        params = state.params._replace(**{name: optax.apply_updates(params, updates)})
        return state.replace(params=params, opt_state=state.opt_state | {name: opt_state}), metrics

    def critic_loss(critic_params, state, batch, noise):
        next_obs = preprocess(state, batch.next_obs)
        next_action = actor.apply(state.target_params.actor, next_obs)
        next_action = smooth(next_action, config.target_noise * noise, config.target_noise_clip)
        q_next = critic.apply(state.target_params.critic, next_obs, next_action)  # [batch_size, 2]
        next_value = q_next.min(axis=-1)  # clipped double Q-learning, eq. 10
        target = batch.reward + batch.discount * jnp.where(batch.terminated, 0.0, next_value)

        obs = preprocess(state, batch.obs)
        q = critic.apply(critic_params, obs, batch.action)  # [batch_size, 2]
        loss = ((q - target[:, None]) ** 2).mean(axis=0).sum()  # each critic has its own mean
        return loss, {"critic_loss": loss, "q_mean": q.mean()}

    def actor_loss(actor_params, state, batch):
        obs = preprocess(state, batch.obs)
        action = actor.apply(actor_params, obs)
        q = critic.apply(state.params.critic, obs, action)  # [batch_size, 2]
        loss = -q[:, 0].mean()
        return loss, {"actor_loss": loss}

    def preprocess(state, obs):
        return normalization.normalize(state.obs_statistics, obs)  # without statistics: obs

    def act(state, obs, key=None):
        action = actor.apply(state.params.actor, preprocess(state, obs))
        if key is not None:
            noise = jax.random.normal(key, action.shape, action.dtype)
            action = action + config.exploration_noise * noise
        return scale_action(action, env.action_space)

    def value(state, obs):
        obs = preprocess(state, obs)
        action = actor.apply(state.params.actor, obs)
        return critic.apply(state.params.critic, obs, action).min(axis=-1)

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
