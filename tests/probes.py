"""Small environments whose answers are known on paper, registered with gymnax as "Probe-...", after Andy Jones.

Rooms     tables: what a room pays for each of two actions, what follows, and how an episode ends.
Targets   the reward is highest at one action, which depends on the observation.
Recorder  random observations, rewards and ends; its state remembers what happened, so a test can replay a rollout.
"""

from dataclasses import dataclass
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

import common.environment
from common.environment import Environment, EnvState

UNIT_BOX = spaces.Box(-1.0, 1.0, (1,))


@struct.dataclass
class Params(environment.EnvParams):
    """A limit longer than any episode here: the probes end their episodes themselves."""

    max_steps_in_episode: int = 1000


class Probe(environment.Environment):
    """The common part of the probes."""

    action: Any = spaces.Discrete(2)

    @property
    def default_params(self):
        return Params()

    def is_truncated(self, state, params):
        return state.truncated

    def action_space(self, params=None):
        return self.action

    def observation_space(self, params=None):
        return spaces.Box(-jnp.inf, jnp.inf, self.obs_shape)


# -- Rooms -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Room:
    """The observation is the number of the room, one-hot."""

    reward: tuple[float, float] = (1.0, 1.0)  # of each action
    following: int | None = None  # the room after this one; None: the same
    limit: int = 1  # the step of the episode that is the last one
    flags: str = "terminated"  # how it ends: "terminated", "truncated" or "both"
    start: bool = True  # whether episodes begin here


@struct.dataclass
class RoomState:
    room: jax.Array
    time: jax.Array
    truncated: jax.Array


class Rooms(Probe):
    """Every episode begins in a random one of the rooms with `start`. With a continuous action only its sign counts."""

    def __init__(self, rooms: list[Room], continuous: bool = False, dtype: Any = jnp.float32):
        self.rooms, self.dtype = rooms, dtype
        self.action = UNIT_BOX if continuous else spaces.Discrete(2)
        self.obs_shape = (len(rooms),)
        self.starts = [i for i, room in enumerate(rooms) if room.start]

    def observe_room(self, room):
        """Observation of a room, or of several."""
        return jax.nn.one_hot(room, len(self.rooms), dtype=self.dtype)

    def reset_env(self, key, params):
        start = jax.random.randint(key, (), 0, len(self.starts), jnp.int32)
        room = jnp.array(self.starts, jnp.int32)[start]
        return self.observe_room(room), RoomState(room, jnp.int32(0), jnp.bool_(False))

    def step_env(self, key, state, action, params):
        action = (jnp.reshape(action, ()) > 0).astype(jnp.int32)
        following = [i if room.following is None else room.following for i, room in enumerate(self.rooms)]
        reward = jnp.array([room.reward for room in self.rooms], jnp.float32)[state.room, action]
        last = state.time + 1 >= jnp.array([room.limit for room in self.rooms], jnp.int32)[state.room]
        terminated = last & jnp.array([room.flags != "truncated" for room in self.rooms])[state.room]
        truncated = last & jnp.array([room.flags != "terminated" for room in self.rooms])[state.room]
        state = RoomState(jnp.array(following, jnp.int32)[state.room], state.time + 1, truncated)
        return self.observe_room(state.room), state, reward, terminated, {}


# The value of a room under the discount gamma stands beside it.
LIMIT = 5
ROOMS = [
    Room(),  # 1: a constant reward, one step
    Room(reward=(2.0, 2.0)),  # 2: depends on the observation
    Room(reward=(-1.0, -1.0)),  # -1
    Room(reward=(0.0, 0.0), following=4, limit=2),  # gamma: the reward comes one step later
    Room(limit=2, start=False),  # 1: after room 3
    Room(reward=(0.0, 1.0)),  # 1: action 1 pays
    Room(reward=(1.0, 0.0)),  # 1: action 0 pays
    Room(reward=(-1.0, 0.0)),  # 0: action 1 costs less
    Room(limit=LIMIT, flags="truncated"),  # 1 / (1 - gamma): a time limit is not an end
    Room(limit=LIMIT, flags="terminated"),  # less than half of that
    Room(limit=LIMIT, flags="both"),  # the same
]
LATER, PAYING, GOING_ON, ENDING = 3, slice(5, 8), 8, slice(9, 11)
ACTIONS = [1, 0, 1]  # those that pay, in the rooms PAYING
OBSERVATIONS = jnp.eye(len(ROOMS))


def known_values(gamma: float) -> np.ndarray:
    """The value of each room under the action that pays. The rooms ENDING do not show the time: their value is the
    fixed point of one-step targets, one in five of which is an end."""
    fixed_point = 1 / (1 - gamma * (1 - 1 / LIMIT))
    return np.array([1, 2, -1, gamma, 1, 1, 1, 0, 1 / (1 - gamma), fixed_point, fixed_point])


HUNDREDS = [Room(reward=(100.0, 100.0), limit=20, flags="truncated")]  # every episode returns 2000


# -- Targets -----------------------------------------------------------------------------------------------------------


@struct.dataclass
class TargetState:
    number: jax.Array
    truncated: jax.Array


class Targets(Probe):
    """One step; the reward is minus the squared distance to one of two targets, in half-widths of the box."""

    low, high = (-1.0, 0.0), (3.0, 0.5)
    targets = ((2.0, 0.1), (0.0, 0.3))
    obs_shape = (2,)

    def __init__(self):
        self.action = spaces.Box(jnp.array(self.low), jnp.array(self.high), (2,))

    def reset_env(self, key, params):
        number = jax.random.randint(key, (), 0, 2, jnp.int32)
        return jax.nn.one_hot(number, 2), TargetState(number, jnp.bool_(False))

    def step_env(self, key, state, action, params):
        half_width = (jnp.array(self.high) - jnp.array(self.low)) / 2
        distance = (action - jnp.array(self.targets)[state.number]) / half_width
        return jax.nn.one_hot(state.number, 2), state, -(distance**2).sum(), jnp.bool_(True), {}


# -- Recorder ----------------------------------------------------------------------------------------------------------


@struct.dataclass
class Record:
    """Row i of the arrays is step i since the beginning, across episodes."""

    count: jax.Array  # [] steps since the beginning
    obs: jax.Array  # [capacity + 1, *obs_shape]; row i is what step i started from
    action: jax.Array  # [capacity, ...] as the environment received it
    reward: jax.Array  # [capacity]
    terminated: jax.Array  # [capacity]
    truncated: jax.Array  # [capacity]
    next_obs: jax.Array  # [capacity, *obs_shape], the true one


@struct.dataclass
class RecordedState(EnvState):
    """A state with all that has happened, which no episode's end clears."""

    record: Record  # [num_envs, ...]


class RecordingEnvironment(Environment):
    """Remembers what its environments said to the script, a fixed number of steps."""

    def reset(self, keys):
        obs, env_state = super().reset(keys)
        capacity, action = self.suite.env.capacity, self.action_space

        def begin(obs):
            return Record(
                count=jnp.int32(0),
                obs=jnp.zeros((capacity + 1, *obs.shape), jnp.float32).at[0].set(obs),
                action=jnp.zeros((capacity, *action.shape), action.dtype),
                reward=jnp.zeros(capacity, jnp.float32),
                terminated=jnp.zeros(capacity, bool),
                truncated=jnp.zeros(capacity, bool),
                next_obs=jnp.zeros((capacity, *obs.shape), jnp.float32),
            )

        return obs, RecordedState(**vars(env_state), record=jax.vmap(begin)(obs))

    def step(self, keys, env_state, action):
        obs, env_state, reward, terminated, truncated, info = super().step(keys, env_state, action)

        def remember(record, obs, **step):
            rows = {name: getattr(record, name).at[record.count].set(x) for name, x in step.items()}
            return record.replace(count=record.count + 1, obs=record.obs.at[record.count + 1].set(obs), **rows)

        step = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
        record = jax.vmap(remember)(env_state.record, obs, **step, next_obs=info["final_observation"])
        return obs, env_state.replace(record=record), reward, terminated, truncated, info


@struct.dataclass
class RecorderState:
    count: jax.Array  # [] steps since the start of the episode
    truncated: jax.Array


class Recorder(Probe):
    """Ends of both kinds (and both at once) at random."""

    obs_shape = (3,)

    def __init__(self, action: Any, capacity: int, ends: bool = True):
        self.action, self.capacity, self.ends = action, capacity, ends

    def observe_at(self, count, key):
        """A random observation, neither centred nor of unit variance."""
        return 2.0 * jax.random.normal(key, (3,), jnp.float32) + 1.0

    def reset_env(self, key, params):
        return self.observe_at(0, key), RecorderState(jnp.int32(0), jnp.bool_(False))

    def step_env(self, key, state, action, params):
        end_key, reward_key, obs_key = jax.random.split(key, 3)
        terminated, truncated = jax.random.uniform(end_key, (2,)) < (0.25 if self.ends else 0.0)
        reward = 3.0 * jax.random.normal(reward_key, (), jnp.float32) + jnp.sum(action).astype(jnp.float32) + 1.0
        state = RecorderState(state.count + 1, truncated)
        return self.observe_at(state.count, obs_key), state, reward, terminated, {}


class Clock(Recorder):
    """The observation is the number of the step modulo `capacity`, one-hot: each row of a rollout has its own."""

    def __init__(self, capacity: int):
        super().__init__(spaces.Discrete(2), 10 * capacity, ends=False)
        self.obs_shape = (capacity,)

    def observe_at(self, count, key):
        return jax.nn.one_hot(count % self.obs_shape[0], self.obs_shape[0], dtype=jnp.float32)


def recorded(env_state: RecordedState) -> Record:
    """The record inside the environment state of a script."""
    return env_state.record


# Of programs that run for seconds: a little optimization pays; conftest.py has turned it off.
OPTIMIZED = {"xla_backend_optimization_level": 1}
NUM_SEEDS = 3


def trained(module: Any, config: Any) -> tuple:
    """The algorithm of a script, and final State and metrics [NUM_SEEDS, num_iterations] of a few seeds."""
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    state, metrics = jax.jit(jax.vmap(module.make_train(config)), compiler_options=OPTIMIZED)(keys)
    return module.make(config), state, jax.tree.map(np.asarray, metrics)


# -- Names -------------------------------------------------------------------------------------------------------------

TWO_DIMENSIONS = spaces.Box(jnp.array([-1.0, 0.0]), jnp.array([3.0, 0.5]), (2,))
FACTORIES = {
    "Probe-Rooms": lambda: Rooms(ROOMS),
    "Probe-Rooms-Continuous": lambda: Rooms(ROOMS, continuous=True),
    "Probe-Hundreds": lambda: Rooms(HUNDREDS),
    "Probe-Hundreds-Continuous": lambda: Rooms(HUNDREDS, continuous=True),
    "Probe-Bool": lambda: Rooms(ROOMS, dtype=bool),
    "Probe-Bool-Continuous": lambda: Rooms(ROOMS, continuous=True, dtype=bool),
    "Probe-Targets": Targets,
    "Probe-Recorder": lambda: Recorder(spaces.Discrete(3), capacity=64),
    "Probe-Recorder-Continuous": lambda: Recorder(TWO_DIMENSIONS, capacity=64),
    "Probe-Recorder-Pair": lambda: Recorder(UNIT_BOX, capacity=2, ends=False),
    "Probe-Clock": lambda: Clock(16),
}


def register() -> None:
    """Make the probes known to gymnax, and `make_env` record those that are recorders; once more does nothing."""

    def make(suite, **limits):
        is_recorder = isinstance(getattr(suite, "env", None), Recorder)
        return (RecordingEnvironment if is_recorder else Environment)(suite, **limits)

    common.environment.Environment = make
    for name, factory in FACTORIES.items():
        if name not in gymnax.registered_envs:
            gymnax.register(name, factory)
