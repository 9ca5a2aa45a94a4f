"""Recurrent PPO (Schulman et al. 2017, arXiv:1707.06347), a GRU (Cho et al. 2014, arXiv:1406.1078) in each network.

Implementation details (Huang et al. 2022, "The 37 Implementation Details of PPO"):
  - Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438).
  - Shuffled minibatches of whole sequences, one per environment; advantages are normalised per minibatch.
  - Adam with eps 1e-5; global norm clipping; linear learning rate annealing.
  - Separate networks; orthogonal initialisation, sqrt(2) hidden, 0.01 policy, 1 value.
  - Continuous actions: state-independent log_std; the environment gets clipped actions.
  - The memory is zero where an episode begins. A sequence starts from the memory that its rollout
    started from, and gradients stop there.
  - target_kl, optional (Dossa et al. 2021): a minibatch whose approx_kl, before its update, is above
    1.5 * target_kl (factor of Spinning Up) ends the updates of the iteration and makes none.
  - LayerNorm, optional (Lyle et al. 2023, arXiv:2303.01486).
  - SimBa, optional: residual blocks (Lee et al. 2025, arXiv:2410.09754), without weight decay.

Deviations:
  - Time limits do not stop the bootstrap (Pardo et al. 2018, arXiv:1712.00378).
  - Continuous actions live in [-1, 1] and are scaled to the environment's box.
  - Observation statistics change after the epochs: the first minibatch is exactly on-policy.

Metrics, mean over the updates of an iteration unless stated otherwise:
  episode_return, episode_length: mean over episodes that ended in the iteration; NaN if none
  num_episodes: episodes that ended in the iteration
  policy_loss, value_loss, entropy: the unweighted terms of the loss
  approx_kl: mean of (ratio - 1) - log ratio (Schulman 2020)
  clip_fraction: share of ratios outside 1 +- clip_eps
  grad_norm: global norm before clipping
  num_updates: number of updates in the iteration, if target_kl is set
  explained_variance: 1 - Var[target - value] / Var[target], before the first update

Run: python variants/ppo_rnn.py --env MemoryChain-bsuite --num-seeds 16 (--help lists every setting)
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from common.config import Fraction, NonNegative, Positive, validate
from common.environment import episode_metrics, make_env, scale_action
from common.initializers import orthogonal
from common.normalization import init_reward_scaling, init_statistics, normalize, scale_rewards, update_statistics

# -- Config ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Float fields (NonNegative, Positive, Fraction) can be swept; the others are static."""

    env: str = "CartPole-v1"  # listed by python -m common.environments
    total_timesteps: int = 500_000  # env steps per seed, rounded down to whole iterations
    num_envs: int = 4  # parallel environments
    num_steps: int = 128  # steps of each environment per iteration
    num_epochs: int = 4  # passes over the rollout
    num_minibatches: int = 4  # updates per pass; must divide num_envs
    learning_rate: NonNegative = 2.5e-4  # Adam step size at the start
    anneal_learning_rate: bool = True  # decay the learning rate linearly to 0
    adam_eps: Positive = 1e-5  # epsilon of Adam, as in the original code
    max_grad_norm: Positive = 0.5  # gradients are clipped to this global norm
    gamma: Fraction = 0.99  # discount
    gae_lambda: Fraction = 0.95  # lambda of GAE; 0: one-step advantage, 1: Monte Carlo
    clip_eps: Positive = 0.2  # bound of |ratio - 1|, and of the value's change if clip_value
    clip_value: bool = False  # clip the value loss; no gain in Andrychowicz et al. 2021
    vf_coef: NonNegative = 0.5  # weight of the value loss
    ent_coef: NonNegative = 0.01  # weight of the entropy bonus
    target_kl: NonNegative = 0.0  # updates end at 1.5 times this KL (Dossa et al. 2021); 0: never
    normalize_obs: bool = False  # normalise by running mean and variance
    normalize_reward: bool = False  # divide by the std of the discounted return
    hidden_sizes: tuple[int, ...] = (64, 64)  # layers of the policy and of the value network
    memory_size: int = 64  # units of the GRU after these layers, one in each network
    activation: Literal["tanh", "relu", "swish"] = "tanh"  # of the hidden layers
    layer_norm: bool = False  # LayerNorm before each activation (Lyle et al. 2023)
    torso: Literal["mlp", "simba"] = "mlp"  # simba: residual relu blocks; normalize_obs is RSNorm

    @property
    def steps_per_iteration(self) -> int:
        """Env steps per iteration."""
        return self.num_envs * self.num_steps

    @property
    def num_iterations(self) -> int:
        """Iterations in a run."""
        return self.total_timesteps // self.steps_per_iteration

    def env_steps(self, iterations: int) -> int:
        """Env steps per seed after this many iterations."""
        return iterations * self.steps_per_iteration


GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
MINATAR = Config(total_timesteps=10_000_000, num_envs=64, num_minibatches=8, learning_rate=1e-3, activation="relu")
PGX = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
GRID = Config(total_timesteps=500_000, num_envs=16, num_steps=64, num_minibatches=8, learning_rate=1e-3)
ROBOT = Config(  # as CleanRL's ppo_continuous_action, with more environments and shorter rollouts
    total_timesteps=5_000_000,
    num_envs=32,
    num_steps=64,
    num_epochs=10,
    num_minibatches=32,
    learning_rate=3e-4,
    ent_coef=0.0,
    normalize_obs=True,
    normalize_reward=True,
)
ROBOTS = ("halfcheetah", "walker2d", "ant")
MISC = replace(ROBOT, total_timesteps=1_000_000, num_envs=64, num_minibatches=16, learning_rate=1e-3)
CRAFTAX = Config(total_timesteps=100_000_000, num_envs=256, num_steps=64, num_minibatches=8, hidden_sizes=(512, 512))
PRESETS: dict[str, Config] = {
    preset.env: preset
    for preset in (
        Config("MemoryChain-bsuite", total_timesteps=50_000, num_envs=16, num_steps=64, learning_rate=2.5e-3),
        # Those of ppo.py, not yet measured with a memory.
        Config(
            "CartPole-v1",
            total_timesteps=100_000,
            num_envs=8,
            num_steps=64,
            learning_rate=2.5e-3,
            gamma=0.98,
            gae_lambda=0.8,
        ),
        Config(
            "Acrobot-v1",
            total_timesteps=500_000,
            num_envs=16,
            num_steps=64,
            learning_rate=2.5e-3,
            ent_coef=0.0,
            normalize_obs=True,
            normalize_reward=True,
            layer_norm=True,
        ),
        Config(
            "MountainCar-v0",
            total_timesteps=1_000_000,
            num_envs=16,
            num_steps=64,
            num_minibatches=8,
            learning_rate=3e-3,
            gae_lambda=0.98,
            ent_coef=0.0,
            normalize_obs=True,
            normalize_reward=True,
        ),
        Config(
            "MountainCarContinuous-v0",
            total_timesteps=200_000,
            num_envs=8,
            num_epochs=10,
            num_minibatches=8,
            learning_rate=3e-4,
            ent_coef=0.0,
            normalize_obs=True,
            normalize_reward=True,
        ),
        Config(
            "Pendulum-v1",
            total_timesteps=300_000,
            num_envs=16,
            num_steps=64,
            num_epochs=10,
            num_minibatches=16,
            learning_rate=5e-4,
            max_grad_norm=5.0,
            gamma=0.98,
            ent_coef=0.0,
            normalize_obs=True,
            normalize_reward=True,
            layer_norm=True,
        ),
        *(
            replace(GRID, env=env, total_timesteps=100_000)
            for env in ("Catch-bsuite", "DeepSea-bsuite", "FourRooms-misc")
        ),
        *(replace(MISC, env=f"{task}-misc") for task in ("PointRobot", "Reacher", "Swimmer")),
        *(replace(MINATAR, env=f"{game}-MinAtar") for game in GAMES),
        *(replace(MINATAR, env=f"pgx/minatar-{game}") for game in PGX),  # not yet measured
        replace(ROBOT, env="brax/inverted_pendulum", total_timesteps=400_000),
        replace(ROBOT, env="brax/reacher", total_timesteps=1_000_000, gamma=0.9),
        replace(ROBOT, env="brax/hopper", total_timesteps=1_000_000, gamma=0.997),  # measured with backend=spring
        *(replace(ROBOT, env=f"brax/{robot}") for robot in ROBOTS),  # not yet measured
        replace(ROBOT, env="playground/CartpoleBalance", total_timesteps=400_000),
        *(replace(ROBOT, env=f"playground/{task}") for task in ("CheetahRun", "WalkerWalk")),  # not yet measured
        *(replace(CRAFTAX, env=f"craftax/Craftax-{game}Symbolic-v1") for game in ("", "Classic-")),  # not yet measured
        replace(GRID, env="navix/Navix-Empty-5x5-v0", total_timesteps=200_000),
        replace(GRID, env="navix/Navix-DoorKey-8x8-v0", total_timesteps=5_000_000),  # not yet measured
        replace(GRID, env="xminigrid/MiniGrid-Empty-5x5", total_timesteps=200_000),
    )
}


# -- Networks --------------------------------------------------------------------------------------


class Torso(nn.Module):
    """Features of an observation of any shape; a 3x3 convolution for images [H, W, C]."""

    obs_shape: tuple[int, ...]
    hidden_sizes: tuple[int, ...]
    activation: str
    layer_norm: bool
    torso: str

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        activation = getattr(nn, self.activation)
        leading = obs.shape[: obs.ndim - len(self.obs_shape)]
        x = obs.astype(jnp.float32)  # [*leading, *obs_shape]

        if len(self.obs_shape) == 3 and min(self.obs_shape[:2]) >= 3:
            # A matrix product over patches: under vmap several times faster than nn.Conv.
            height, width = self.obs_shape[0] - 2, self.obs_shape[1] - 2
            patches = [x[..., i : i + height, j : j + width, :] for i in range(3) for j in range(3)]
            x = jnp.concatenate(patches, axis=-1)  # [*leading, height, width, 9 * C]
            x = nn.relu(nn.Dense(16, kernel_init=orthogonal(np.sqrt(2)))(x))

        x = x.reshape(*leading, -1)
        if self.torso == "simba":
            he_normal = nn.initializers.he_normal()
            x = nn.Dense(self.hidden_sizes[0], kernel_init=orthogonal(1.0))(x)
            for size in self.hidden_sizes:
                hidden = nn.relu(nn.Dense(4 * size, kernel_init=he_normal)(nn.LayerNorm()(x)))
                x = x + nn.Dense(size, kernel_init=he_normal)(hidden)
            return nn.LayerNorm()(x)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=orthogonal(np.sqrt(2)))(x)
            x = activation(nn.LayerNorm()(x) if self.layer_norm else x)
        return x  # [*leading, hidden_sizes[-1]]


class Memory(nn.Module):
    """A GRU: features of all observations of an episode up to now, which are also the memory after them."""

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, done: jax.Array | None) -> jax.Array:
        size = memory.shape[-1]
        x = nn.Dense(3 * size, kernel_init=orthogonal(1.0))(x)  # of all steps at once
        kernel = self.param("kernel", orthogonal(1.0), (size, 3 * size), jnp.float32)

        def advance(memory, inputs):
            x, done = inputs
            from_x, from_memory = jnp.split(x, 3, axis=-1), jnp.split(memory @ kernel, 3, axis=-1)
            reset, update = nn.sigmoid(from_x[0] + from_memory[0]), nn.sigmoid(from_x[1] + from_memory[1])
            candidate = jnp.tanh(from_x[2] + reset * from_memory[2])
            features = update * memory + (1.0 - update) * candidate
            return jnp.where(done[..., None], 0.0, features), features

        if done is None:
            return advance(memory, (x, jnp.zeros(x.shape[:-1], bool)))[1]  # [*leading, memory_size]
        return jax.lax.scan(advance, memory, (x, done))[1]  # [num_steps, num_rows, memory_size]


TwinMemory = nn.vmap(  # two that share nothing: params [2, ...], memory [..., 2, memory_size]
    Memory, in_axes=(-2, -2, None), out_axes=-2, axis_size=2, variable_axes={"params": 0}, split_rngs={"params": True}
)


class ActorCritic(nn.Module):
    """Policy and value: two networks without shared parameters, each with a memory.

    One step has obs [*leading, *obs_shape] and memory [*leading, 2, memory_size]. Sequences have `num_steps` before the
    shape of obs, and `done` [num_steps, num_rows], after which the memory is zero. Returns the memory after each obs.
    """

    num_outputs: int  # number of actions, or action_dim
    is_discrete: bool
    obs_shape: tuple[int, ...]
    hidden_sizes: tuple[int, ...]
    activation: str
    layer_norm: bool
    torso: str

    @nn.compact
    def __call__(
        self, obs: jax.Array, memory: jax.Array, done: jax.Array | None = None
    ) -> tuple[distrax.Distribution, jax.Array, jax.Array]:
        torso = self.obs_shape, self.hidden_sizes, self.activation, self.layer_norm, self.torso
        x = [Torso(*torso)(obs) for _ in range(2)]
        memory = TwinMemory()(jnp.stack(x, axis=-2), memory, done)

        x = nn.Dense(self.num_outputs, kernel_init=orthogonal(0.01))(memory[..., 0, :])  # [*leading, num_outputs]
        if self.is_discrete:
            policy = distrax.Categorical(logits=x)
        else:
            log_std = self.param("log_std", nn.initializers.zeros, (self.num_outputs,), jnp.float32)
            std = jnp.exp(jnp.clip(log_std, -20.0, 2.0))
            policy = distrax.MultivariateNormalDiag(x, jnp.broadcast_to(std, x.shape))

        value = nn.Dense(1, kernel_init=orthogonal(1.0))(memory[..., 1, :]).squeeze(-1)  # [*leading]
        return policy, value, memory


# -- Data ------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """One step of every environment; a rollout stacks num_steps of them."""

    obs: jax.Array  # [num_envs, *obs_shape], not normalised
    memory: jax.Array  # [num_envs, 2, memory_size], before obs
    action: jax.Array  # [num_envs] int, or [num_envs, action_dim] as sampled
    reward: jax.Array  # [num_envs]
    terminated: jax.Array  # [num_envs] bool, no successor state
    truncated: jax.Array  # [num_envs] bool, cut by a time limit
    next_obs: jax.Array  # [num_envs, *obs_shape], the true successor, also where the episode ended
    next_memory: jax.Array  # [num_envs, 2, memory_size], after obs, also where the episode ended
    log_prob: jax.Array  # [num_envs], of the action when sampled
    value: jax.Array  # [num_envs], of obs


@struct.dataclass
class Batch:
    """The rows of a rollout are its environments; a minibatch holds some of them."""

    transitions: Transition  # [num_steps, num_rows, ...]
    advantage: jax.Array  # [num_steps, num_rows], not normalised
    target: jax.Array  # [num_steps, num_rows], of the value


@struct.dataclass
class State:
    """Everything that one lane carries from iteration to iteration; a checkpoint saves it."""

    params: Any  # of ActorCritic
    opt_state: optax.OptState
    env_state: Any  # [num_envs, ...]
    obs: jax.Array  # [num_envs, *obs_shape]
    memory: jax.Array  # [num_envs, 2, memory_size], before obs
    key: jax.Array  # []
    obs_statistics: Any  # RunningStatistics if normalize_obs, else None
    reward_scaling: Any  # RewardScaling if normalize_reward, else None


class Algorithm(NamedTuple):
    """Pure functions of one lane."""

    init: Callable  # key -> State
    step: Callable  # one iteration: (State, iteration) -> (State, metrics)
    act: Callable  # (State, obs, memory, key=None) -> action for the environment, greedy without a key, and memory
    value: Callable  # (State, obs, memory) -> value
    initial_memory: Callable  # num_envs -> memory where episodes begin, [num_envs, 2, memory_size]


# -- Algorithm -------------------------------------------------------------------------------------


def gae(transitions: Transition, next_value: jax.Array, gamma: float, gae_lambda: float) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    next_value is the value of next_obs; it and transitions are [num_steps, num_envs].
    Returns advantage and target (of the value), each [num_steps, num_envs].
    """
    next_value = jnp.where(transitions.terminated, 0.0, next_value)
    delta = transitions.reward + gamma * next_value - transitions.value
    decay = jnp.where(transitions.terminated | transitions.truncated, 0.0, gamma * gae_lambda)

    def accumulate(advantage, inputs):
        delta, decay = inputs
        advantage = delta + decay * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(accumulate, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage, advantage + transitions.value


def shuffle(key: jax.Array, num_rows: int) -> jax.Array:
    """The row numbers 0 to num_rows - 1 in random order, [num_rows] uint32.

    Sorts one uint32 per row, random bits above the row number: on a CPU several times faster than
    `jax.random.permutation`. Ties keep their order, which matters only across a minibatch boundary:
    at 1 boundary in 33,000 for 512 rows, at 1 in 128 for 8,192.
    """
    row_bits = (num_rows - 1).bit_length()
    random_bits = jax.random.bits(key, (num_rows,), jnp.uint32) >> row_bits << row_bits
    return jnp.sort(random_bits | jnp.arange(num_rows, dtype=jnp.uint32)) & (2**row_bits - 1)


def make(config: Config) -> Algorithm:
    """Build the pure functions of the algorithm for one lane.

    Raises:
        ValueError: an invalid field, an unknown environment or an unsupported space.
    """
    config = validate(config)
    num_rows = config.num_envs  # of a rollout
    if num_rows % config.num_minibatches:
        raise ValueError(f"num_minibatches = {config.num_minibatches} must divide num_envs = {num_rows}")
    env = make_env(config.env)
    is_discrete = hasattr(env.action_space, "n")
    num_outputs = env.action_space.n if is_discrete else env.action_space.shape[0]
    torso = config.hidden_sizes, config.activation, config.layer_norm, config.torso
    network = ActorCritic(num_outputs, is_discrete, env.obs_shape, *torso)

    num_updates = config.num_iterations * config.num_epochs * config.num_minibatches
    annealed = optax.linear_schedule(config.learning_rate, 0.0, num_updates)
    learning_rate = annealed if config.anneal_learning_rate else config.learning_rate
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    optimizer = optax.chain(clip, optax.adam(learning_rate, eps=config.adam_eps))
    may_stop = isinstance(config.target_kl, jax.Array) or config.target_kl > 0

    def init(key):
        params_key, reset_key, key = jax.random.split(key, 3)
        params = network.init(params_key, jnp.zeros((1, *env.obs_shape)), initial_memory(1))
        obs, env_state = env.reset(jax.random.split(reset_key, config.num_envs))
        return State(
            params=params,
            opt_state=optimizer.init(params),
            env_state=env_state,
            obs=obs,
            memory=initial_memory(config.num_envs),
            key=key,
            obs_statistics=init_statistics(env.obs_shape) if config.normalize_obs else None,
            reward_scaling=init_reward_scaling(config.num_envs) if config.normalize_reward else None,
        )

    def preprocess(state, obs):
        return normalize(state.obs_statistics, obs) if config.normalize_obs else obs

    def initial_memory(num_envs):
        return jnp.zeros((num_envs, 2, config.memory_size), jnp.float32)

    def act(state, obs, memory, key=None):
        policy, _, memory = network.apply(state.params, preprocess(state, obs), memory)
        action = policy.mode() if key is None else policy.sample(seed=key)
        return action if is_discrete else scale_action(action, env.action_space), memory

    def value(state, obs, memory):
        return network.apply(state.params, preprocess(state, obs), memory)[1]

    def explore(state, keys):
        action_key, env_keys = keys
        policy, v, memory = network.apply(state.params, preprocess(state, state.obs), state.memory)
        action, log_prob = policy.sample_and_log_prob(seed=action_key)
        env_action = action if is_discrete else scale_action(action, env.action_space)
        obs, env_state, reward, terminated, truncated, info = env.step(env_keys, state.env_state, env_action)
        transition = Transition(
            obs=state.obs,
            memory=state.memory,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=info.pop("final_observation"),
            next_memory=memory,
            log_prob=log_prob,
            value=v,
        )
        memory = jnp.where((terminated | truncated)[:, None, None], 0.0, memory)
        return state.replace(env_state=env_state, obs=obs, memory=memory), (transition, info)

    def loss(params, state, batch):
        old = batch.transitions  # as collected, before the first update
        policy, v, _ = network.apply(params, preprocess(state, old.obs), old.memory[0], old.terminated | old.truncated)
        log_ratio = policy.log_prob(old.action) - old.log_prob  # [num_steps, num_rows]
        ratio = jnp.exp(log_ratio)
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        clipped_ratio = jnp.clip(ratio, 1 - config.clip_eps, 1 + config.clip_eps)
        policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()

        error = (v - batch.target) ** 2
        if config.clip_value:
            clipped_v = old.value + jnp.clip(v - old.value, -config.clip_eps, config.clip_eps)
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

    def update(state, batch):
        grads, metrics = jax.grad(loss, has_aux=True)(state.params, state, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        metrics["grad_norm"] = optax.tree.norm(grads)
        return state.replace(params=params, opt_state=opt_state), metrics

    def update_or_stop(carry, batch):
        state, goes_on = carry
        updated, metrics = update(state, batch)
        if may_stop:
            goes_on &= (config.target_kl == 0) | (metrics["approx_kl"] <= 1.5 * config.target_kl)
            updated = jax.lax.cond(goes_on, lambda: updated, lambda: state)
        return (updated, goes_on), (metrics, goes_on)

    def learn(state, transitions):
        if config.normalize_reward:
            done = transitions.terminated | transitions.truncated
            scaling, reward = scale_rewards(state.reward_scaling, transitions.reward, done, config.gamma)
            state, transitions = state.replace(reward_scaling=scaling), transitions.replace(reward=reward)
        next_value = value(state, transitions.next_obs, transitions.next_memory)  # [num_steps, num_envs]
        advantage, target = gae(transitions, next_value, config.gamma, config.gae_lambda)
        batch = Batch(transitions, advantage, target)

        key, shuffle_key = jax.random.split(state.key)
        epoch_keys = jax.random.split(shuffle_key, config.num_epochs)
        rows = jax.vmap(shuffle, in_axes=(0, None))(epoch_keys, num_rows)  # [num_epochs, num_rows]
        rows = rows.reshape(-1, num_rows // config.num_minibatches)  # one minibatch per update
        state = state.replace(key=key)
        carry = state, jnp.bool_(True) if may_stop else None
        (state, _), (metrics, is_update) = jax.lax.scan(
            lambda carry, rows: update_or_stop(carry, jax.tree.map(lambda x: x[:, rows], batch)), carry, rows
        )
        metrics = jax.tree.map(lambda x: x.mean(where=is_update), metrics)
        if may_stop:
            metrics["num_updates"] = is_update.sum(dtype=jnp.float32)
        unexplained = (batch.target - batch.transitions.value).var() / (batch.target.var() + 1e-8)
        metrics["explained_variance"] = 1 - unexplained
        if config.normalize_obs:
            statistics = update_statistics(state.obs_statistics, transitions.obs)
            state = state.replace(obs_statistics=statistics)
        return state, metrics

    def step(state, iteration):
        del iteration  # the learning rate's schedule counts updates in opt_state
        key, action_key, env_key = jax.random.split(state.key, 3)
        keys = (
            jax.random.split(action_key, config.num_steps),
            jax.random.split(env_key, (config.num_steps, config.num_envs)),
        )
        state, (transitions, info) = jax.lax.scan(explore, state.replace(key=key), keys)
        state, metrics = learn(state, transitions)
        return state, episode_metrics(info) | metrics

    return Algorithm(init, step, act, value, initial_memory)


# -- Training --------------------------------------------------------------------------------------


def make_train(config: Config) -> Callable[[jax.Array], tuple[State, dict[str, jax.Array]]]:
    """The whole run as one pure function of a key: key -> (State, metrics [num_iterations])."""
    algorithm = make(config)

    def train(key):
        return jax.lax.scan(algorithm.step, algorithm.init(key), jnp.arange(config.num_iterations))

    return train  # for many seeds: jax.jit(jax.vmap(make_train(config)))(keys)


if __name__ == "__main__":
    from common.runner.main import run

    run(__file__, Config, PRESETS, make)
