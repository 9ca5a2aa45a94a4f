"""SAC for discrete actions (Christodoulou 2019, arXiv:1910.07207), with a learned temperature.

An iteration is steps_per_iteration env steps and their updates.
docs/sac_discrete.md has the mathematics, each implementation detail, and what each metric means.

Different from the original:
  - Time limits do not stop the bootstrap (Pardo et al. 2018, arXiv:1712.00378).
  - Updates per env step never depend on num_envs; other settings raise ValueError.
  - `init` fills the buffer with learning_starts uniform-random transitions.
  - Actions declared illegal are never chosen nor bootstrapped from (arXiv:2006.14171).

Options, off by default:
  - n_step (Hessel et al. 2018, arXiv:1710.02298), uncorrected; only the last entropy counts.
  - layer_norm (arXiv:2403.00514).

Run: python variants/sac_discrete.py --env CartPole-v1 --num-seeds 16 (--help lists every setting)
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
    legal_actions,
)

# -- Config ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Float fields can be swept in one compilation; any other change compiles anew."""

    env: str = "CartPole-v1"  # listed by python -m common.suites
    total_timesteps: int = 1_000_000  # env steps per seed with learning_starts, in whole iterations
    num_envs: int = 1  # parallel environments
    steps_per_iteration: int = 1_000  # env steps per record of metrics
    learning_starts: int = 1_000  # uniform-random env steps before the first iteration
    buffer_size: int = 1_000_000  # capacity in transitions
    batch_size: int = 256  # transitions per update
    train_interval: int = 1  # env steps between updates
    gradient_steps: int = 1  # updates per train_interval
    tau: PositiveFraction = 0.005  # step of the target networks towards the online networks
    actor_learning_rate: NonNegative = 3e-4  # Adam step size of the actor
    critic_learning_rate: NonNegative = 3e-4  # Adam step size of the critics
    alpha_learning_rate: NonNegative = 3e-4  # Adam step size of log alpha; 0 fixes alpha
    alpha: Positive = 1.0  # initial temperature
    target_entropy: Fraction = 0.98  # share of the most, log(number of legal actions); paper: 0.98
    gamma: Fraction = 0.99  # discount
    n_step: int = 1  # steps of reward before the bootstrap (Sutton 1988, Hessel et al. 2018)
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
    """The policy."""

    num_actions: int
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> distrax.Distribution:
        x = self.torso()(actor_obs(obs).astype(jnp.float32))
        x = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))(x)  # [..., num_actions]
        return distrax.Categorical(logits=forbid_illegal(x, obs))


class Critic(nn.Module):
    """The Q value of each action."""

    num_actions: int
    torso: Callable  # () -> Torso

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = self.torso()(actor_obs(obs).astype(jnp.float32))
        return nn.Dense(self.num_actions, kernel_init=orthogonal(1.0))(x)  # [..., num_actions]


TwinCritic = nn.vmap(  # two that share nothing: params [2, ...], values [..., num_actions, 2]
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
    action: jax.Array  # [num_envs] int
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, no successor state
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true successor, also where the episode ended
    discount: jax.Array | None = None  # [batch_size] gamma ** (window length), by read_windows


class Params(NamedTuple):  # dataclasses may collide in jit's cache (docs/traps.md, 14)
    """The trained parameters."""

    actor: Any  # of Actor
    critic: Any  # of TwinCritic, [2, ...]
    log_alpha: jax.Array  # []


@struct.dataclass
class State:
    """Everything that a seed carries from iteration to iteration; a checkpoint saves it."""

    params: Params
    target_params: Any  # of TwinCritic, [2, ...]
    opt_state: dict[str, optax.OptState]  # by the names in Params
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


def expectation(policy: distrax.Categorical, x: jax.Array) -> jax.Array:
    """The mean of x [..., num_actions] over the actions of a policy, [...]."""
    return (policy.probs * x).sum(axis=-1)


def make(config: Config) -> Algorithm:
    """Build the pure functions that train one seed:

    step            one iteration: num_cycles times cycle
      cycle         num_steps times explore, then learn
        explore     choose actions, env_step (store the transitions)
        learn       read all batches; with each of them: update
          update    descend(critic), descend(actor), descend(log_alpha), move the targets

    Raises:
        ValueError: an invalid field, an unknown environment or an unsupported space.
    """
    config = validate(config)
    require_multiple(config, "cycle_steps", "num_envs", "train_interval")
    require_multiple(config, "steps_per_iteration", "num_envs", "train_interval")
    require_multiple(config, "learning_starts", "num_envs")
    fits = config.batch_size <= config.learning_starts <= config.buffer_size
    require(config, fits, "learning_starts must be at least batch_size and at most buffer_size")
    env = make_env(config.env)
    check_discrete(config.env, env, only_vectors=True)
    num_actions = env.action_space.n
    torso = partial(Torso, activation=config.activation, layer_norm=config.layer_norm)
    value_sizes = config.value_hidden_sizes or config.hidden_sizes
    actor = Actor(num_actions, partial(torso, config.hidden_sizes))
    critic = TwinCritic(num_actions, partial(torso, value_sizes))
    optimizers = {
        "actor": optax.adam(config.actor_learning_rate),
        "critic": optax.adam(config.critic_learning_rate),
        "log_alpha": optax.adam(config.alpha_learning_rate),
    }
    windows = {"n_step": config.n_step, "num_envs": config.num_envs, "gamma": config.gamma}
    num_cycles = config.steps_per_iteration // config.cycle_steps
    num_steps = config.cycle_steps // config.num_envs  # of each environment per cycle
    rows_shape = num_cycles, config.cycle_updates, config.batch_size

    def init(key):
        actor_key, critic_key, reset_key, action_key, env_key, key = jax.random.split(key, 6)
        obs, env_state = env.reset(jax.random.split(reset_key, config.num_envs))
        params = Params(
            actor=actor.init(actor_key, obs),
            critic=critic.init(critic_key, obs),
            log_alpha=jnp.log(jnp.asarray(config.alpha, jnp.float32)),
        )
        action, reward, false = jnp.int32(0), jnp.float32(0), jnp.bool_(False)
        first = jax.tree.map(lambda x: x[0], obs)
        row = Transition(first, action, reward, terminated=false, truncated=false, next_obs=first)
        statistics = normalization.init_statistics(env.obs_shape)
        state = State(
            params=params,
            target_params=params.critic,
            opt_state={name: x.init(getattr(params, name)) for name, x in optimizers.items()},
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
        del iteration  # nothing follows a schedule
        key, explore_key, env_key, row_key = jax.random.split(state.key, 4)
        shape = num_cycles, num_steps, config.num_envs  # drawn at once: each draw is a GPU kernel
        noise = jax.random.gumbel(explore_key, (*shape, num_actions), jnp.float32)
        explore_inputs = noise, jax.random.split(env_key, shape)
        rows = draw_rows(state.buffer, row_key, rows_shape, config.cycle_steps)
        state = state.replace(key=key, env_state=clear_episodes(state.env_state))
        state, metrics = scan_mean(cycle, state, (explore_inputs, rows))
        return state, episode_metrics(state.env_state) | metrics

    def cycle(state, inputs):
        explore_inputs, rows = inputs
        state, _ = jax.lax.scan(explore, state, explore_inputs, unroll=env.unroll)
        return learn(state, rows)

    def explore(state, inputs):
        noise, env_keys = inputs
        policy = actor.apply(state.params.actor, preprocess(state, state.obs))
        action = (policy.logits + noise).argmax(axis=-1)  # Gumbel-max trick
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
        state, critic_metrics = descend(state, "critic", critic_loss, batch)
        state, actor_metrics = descend(state, "actor", actor_loss, batch)
        entropy = actor_metrics["entropy"]
        state, alpha_metrics = descend(state, "log_alpha", alpha_loss, batch, entropy)
        target = optax.incremental_update(state.params.critic, state.target_params, config.tau)
        return state.replace(target_params=target), critic_metrics | actor_metrics | alpha_metrics

    def descend(state, name, loss, *inputs):
        """One optimizer step on the parameters called `name`."""
        params = getattr(state.params, name)
        grads, metrics = jax.grad(loss, has_aux=True)(params, state, *inputs)
        updates, opt_state = optimizers[name].update(grads, state.opt_state[name])
        params = state.params._replace(**{name: optax.apply_updates(params, updates)})
        return state.replace(params=params, opt_state=state.opt_state | {name: opt_state}), metrics

    def critic_loss(critic_params, state, batch):
        next_obs = preprocess(state, batch.next_obs)
        policy = actor.apply(state.params.actor, next_obs)
        q_next = critic.apply(state.target_params, next_obs).min(axis=-1)  # [batch_size, num_actions]
        soft_q = q_next - jnp.exp(state.params.log_alpha) * policy.logits
        next_value = expectation(policy, soft_q)  # [batch_size], eq. 10
        target = batch.reward + batch.discount * jnp.where(batch.terminated, 0.0, next_value)

        obs = preprocess(state, batch.obs)
        q = critic.apply(critic_params, obs)  # [batch_size, num_actions, 2]
        is_taken = jax.nn.one_hot(batch.action, num_actions, dtype=q.dtype)
        q = (q * is_taken[..., None]).sum(axis=1)  # [batch_size, 2], without a scatter in its gradient
        loss = ((q - target[:, None]) ** 2).mean(axis=0).sum()  # each critic has its own mean
        return loss, {"critic_loss": loss, "q_mean": q.mean()}

    def actor_loss(actor_params, state, batch):
        obs = preprocess(state, batch.obs)
        policy = actor.apply(actor_params, obs)
        q = critic.apply(state.params.critic, obs).min(axis=-1)  # [batch_size, num_actions]
        minus_soft_q = jnp.exp(state.params.log_alpha) * policy.logits - q
        loss = expectation(policy, minus_soft_q).mean()  # eq. 12
        return loss, {"actor_loss": loss, "entropy": policy.entropy().mean()}

    def alpha_loss(log_alpha, state, batch, entropy):
        alpha = jnp.exp(log_alpha)
        target = config.target_entropy * max_entropy(batch.obs).mean()
        return alpha * (entropy - target), {"alpha": alpha}

    def max_entropy(obs):
        """Entropy of the uniform policy: the log of the number of legal actions."""
        legal = legal_actions(obs)
        return jnp.log(num_actions if legal is None else legal.sum(axis=-1))

    def preprocess(state, obs):
        return normalization.normalize(state.obs_statistics, obs)  # without statistics: obs

    def act(state, obs, key=None):
        policy = actor.apply(state.params.actor, preprocess(state, obs))
        return policy.mode() if key is None else policy.sample(seed=key)

    def value(state, obs):
        obs = preprocess(state, obs)
        action = actor.apply(state.params.actor, obs).mode()
        q = critic.apply(state.params.critic, obs).min(axis=-1)  # [..., num_actions]
        return jnp.take_along_axis(q, action[..., None], axis=-1).squeeze(-1)

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
