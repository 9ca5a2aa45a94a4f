"""runner/devices/evaluation.py: whole episodes, each environment giving exactly one."""

import functools
import importlib
import itertools

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from helpers import small_config

from common.environment import make_env
from runner.devices.evaluation import STEPS_PER_CHECK, episode_limit, evaluate, greedy_policy, sampled_policy

LIMIT = 5
MAX_STEPS = 10_000  # of an evaluation, where the environment names no limit
CONSTANT_LENGTHS = {"Short": 2, "Truncated": 9, "Both": LIMIT}


@struct.dataclass
class LengthsState(environment.EnvState):
    length: jax.Array  # steps until the episode terminates
    target: jax.Array  # the action that is paid for


@struct.dataclass
class NoLimit:
    """Parameters that name no time limit."""


class Lengths(environment.Environment):
    """The observation is (length, target). Each step with the target as action is paid `length`.

    The right actions therefore return length * min(length, LIMIT), a square, which no two episodes can add up to.
    """

    def __init__(self, lengths, limit=LIMIT, named_limit=LIMIT):
        self.lengths, self.limit, self.named_limit = jnp.array(lengths, jnp.int32), limit, named_limit

    @property
    def default_params(self):
        return NoLimit() if self.named_limit is None else environment.EnvParams(max_steps_in_episode=self.named_limit)

    def is_truncated(self, state, params):
        return state.time >= self.limit

    def observed(self, state):
        return jnp.stack([state.length, state.target]).astype(jnp.float32)

    def reset_env(self, key, params):
        number = jax.random.bits(key)
        length = self.lengths[number // 3 % len(self.lengths)]
        state = LengthsState(jnp.int32(0), length, (number % 3).astype(jnp.int32))
        return self.observed(state), state

    def step_env(self, key, state, action, params):
        reward = jnp.where(action == state.target, state.length, 0).astype(jnp.float32)
        target = (jax.random.bits(key) % 3).astype(jnp.int32)
        state = LengthsState(state.time + 1, state.length, target)
        return self.observed(state), state, reward, state.time >= state.length, {}

    def action_space(self, params=None):
        return spaces.Discrete(3)

    def observation_space(self, params=None):
        return spaces.Box(0, 10, (2,))


class ShortOrLong(Lengths):
    """Half of the episodes end after one step and score 0, the others end after two and score 1."""

    def __init__(self):
        super().__init__([1, 2])

    def step_env(self, key, state, action, params):
        obs, state, _, terminated, info = super().step_env(key, state, action, params)
        return obs, state, (terminated & (state.length == 2)).astype(jnp.float32), terminated, info


FACTORIES = {
    "Probe-Short-Or-Long": ShortOrLong,
    "Probe-Lengths": lambda: Lengths([1, 2, 3, 9]),
    "Probe-Lengths-Without-Limit": lambda: Lengths([1, 2, 7], limit=100, named_limit=None),
    "Probe-Lengths-Before-Limit": lambda: Lengths([1, 9], named_limit=100),
    "Probe-Lengths-Endless": lambda: Lengths([2 * MAX_STEPS], limit=2 * MAX_STEPS, named_limit=None),
    **{f"Probe-Lengths-{name}": functools.partial(Lengths, [length]) for name, length in CONSTANT_LENGTHS.items()},
}
for name, factory in FACTORIES.items():
    if name not in gymnax.registered_envs:
        gymnax.register(name, factory)


def right_action(obs):
    return obs[:, 1].astype(jnp.int32)


def wrong_action(obs):
    return (right_action(obs) + 1) % 3


def one_action(obs):
    return jnp.zeros(len(obs), jnp.int32)


@functools.cache
def evaluator(name, act, num_episodes):
    env = make_env(name)
    limit = episode_limit(env, MAX_STEPS)
    return jax.jit(lambda key: evaluate(env, lambda obs, _: (act(obs), ()), (), key, num_episodes, limit))


def episodes_of(name, act=right_action, num_episodes=2000, seed=0):
    episodes = evaluator(name, act, num_episodes)(jax.random.key(seed))
    return np.asarray(episodes["episode_return"]), np.asarray(episodes["episode_length"])


def test_each_environment_plays_one_whole_episode():
    returns, lengths = episodes_of("Probe-Lengths")
    assert returns.shape == lengths.shape == (2000,)
    assert returns.dtype == np.float32
    assert lengths.dtype == np.int32
    expected = {1: 1.0, 2: 4.0, 3: 9.0, LIMIT: 9.0 * LIMIT}
    assert set(lengths) == set(expected)
    np.testing.assert_array_equal(returns, [expected[length] for length in lengths])


def test_short_episodes_do_not_count_more_often():
    """The four lengths are equally likely. Of the first 2000 episodes to finish about half would have length 1."""
    _, lengths = episodes_of("Probe-Lengths")
    for length in (1, 2, 3, LIMIT):
        assert np.mean(lengths == length) == pytest.approx(0.25, abs=0.05)


def test_the_mean_is_not_that_of_episodes_that_finish_first():
    """Short and long episodes are equally likely, so the mean is 0.5.

    The negative control counts what finishes within two steps: 1/2 + 1/4 short episodes and 1/2 long ones for each
    environment, a mean of 0.4.
    """
    returns, _ = episodes_of("Probe-Short-Or-Long")
    assert returns.mean() == pytest.approx(0.5, abs=0.04)
    assert first_to_finish("Probe-Short-Or-Long", num_envs=2000, num_steps=2) == pytest.approx(0.4, abs=0.04)


def first_to_finish(name, num_envs, num_steps):
    """Mean return of the episodes that end in the first steps of environments that begin anew."""
    env, (reset_key, *keys) = make_env(name), jax.random.split(jax.random.key(0), num_steps + 1)
    obs, state = jax.jit(env.reset)(jax.random.split(reset_key, num_envs))
    step, returns = jax.jit(env.step), []
    for key in keys:
        obs, state, reward, terminated, truncated, _ = step(jax.random.split(key, num_envs), state, right_action(obs))
        returns.append(np.asarray(reward)[np.asarray(terminated | truncated)])
    return np.concatenate(returns).mean()


@pytest.mark.parametrize("name", CONSTANT_LENGTHS)
def test_an_episode_ends_by_termination_its_limit_or_both(name):
    length = CONSTANT_LENGTHS[name]
    returns, lengths = episodes_of(f"Probe-Lengths-{name}", num_episodes=3)
    np.testing.assert_array_equal(lengths, [min(length, LIMIT)] * 3)
    np.testing.assert_array_equal(returns, [length * min(length, LIMIT)] * 3)


def test_an_environment_need_not_name_a_limit():
    returns, lengths = episodes_of("Probe-Lengths-Without-Limit")
    assert set(lengths) == {1, 2, 7}
    np.testing.assert_array_equal(returns, lengths**2)


def test_an_episode_may_be_truncated_before_the_limit():
    returns, lengths = episodes_of("Probe-Lengths-Before-Limit")
    assert set(lengths) == {1, LIMIT}
    np.testing.assert_array_equal(returns, np.where(lengths == 1, 1, 9 * LIMIT))


def test_an_evaluation_that_never_ends_is_cut():
    episodes = evaluator("Probe-Lengths-Endless", right_action, 1)(jax.random.key(0))
    np.testing.assert_array_equal(episodes["episode_length"], [MAX_STEPS])
    assert episodes["is_cut"].tolist() == [True]
    assert not evaluator("Probe-Lengths", right_action, 2000)(jax.random.key(0))["is_cut"].any()


@pytest.mark.parametrize("limit", [1, 2, STEPS_PER_CHECK - 1, STEPS_PER_CHECK, STEPS_PER_CHECK + 1, 37])
def test_no_step_beyond_the_limit_counts(limit):
    """The limit need not be a multiple of the steps between two checks. No episode ends by itself before it."""
    env, acts = make_env("Probe-Lengths-Endless"), lambda obs, _: (right_action(obs), ())
    episodes = jax.jit(lambda key: evaluate(env, acts, (), key, 3, limit))(jax.random.key(0))
    np.testing.assert_array_equal(episodes["episode_length"], [limit] * 3)
    np.testing.assert_array_equal(episodes["episode_return"], [2 * MAX_STEPS * limit] * 3)
    assert episodes["is_cut"].all()


def test_an_episode_that_would_end_just_beyond_the_limit_is_cut():
    env, acts = make_env("Probe-Lengths-Short"), lambda obs, _: (right_action(obs), ())
    episodes = jax.jit(lambda key: evaluate(env, acts, (), key, 2, 1))(jax.random.key(0))
    assert episodes["is_cut"].tolist() == [True, True]
    np.testing.assert_array_equal(episodes["episode_length"], [1, 1])


def test_the_loop_asks_once_in_some_steps_for_the_end():
    """Both episodes end after two steps. The policy acts in all steps before the next check, and in no other."""
    calls = []

    def act(obs, _):
        jax.debug.callback(lambda: calls.append(1))
        return right_action(obs), ()

    key = jax.random.key(0)
    jax.block_until_ready(jax.jit(lambda key: evaluate(make_env("Probe-Lengths-Short"), act, (), key, 2, 100))(key))
    jax.effects_barrier()
    assert len(calls) == STEPS_PER_CHECK > 2


def test_each_step_has_randomness_of_its_own():
    """Any number of the five steps' targets may be 0. With one key for all steps the last four would be the same."""
    returns, _ = episodes_of("Probe-Lengths-Truncated", one_action)
    assert set(returns / 9) >= {0, 1, 2, 3, 4}


def test_one_environment_is_enough():
    returns, lengths = episodes_of("Probe-Lengths", num_episodes=1)
    assert (float(returns[0]), int(lengths[0])) in {(1.0, 1), (4.0, 2), (9.0, 3), (9.0 * LIMIT, LIMIT)}


def test_the_policy_acts_on_the_current_observation():
    """The target changes in every step, so only its current observation tells the action that is paid for."""

    assert episodes_of("Probe-Lengths", wrong_action)[0].max() == 0.0
    returns, _ = episodes_of("Probe-Lengths", one_action)
    best, _ = episodes_of("Probe-Lengths")
    assert 0.25 < returns.mean() / best.mean() < 0.42  # a third of the targets


def test_episodes_are_independent_and_belong_to_the_key():
    _, lengths = episodes_of("Probe-Lengths")
    _, again = episodes_of("Probe-Lengths")
    _, other = episodes_of("Probe-Lengths", seed=1)
    np.testing.assert_array_equal(lengths, again)
    assert len(set(lengths)) == 4
    assert (lengths != other).any()


def test_evaluation_does_not_depend_on_the_number_of_trials():
    """Each trial has its own policy. Trials whose episodes are over wait for the others without counting anything."""
    env = make_env("Probe-Lengths")

    def trial(key, shift):
        return evaluate(env, lambda obs, _: ((right_action(obs) + shift) % 3, ()), (), key, 2, LIMIT)

    keys, shifts = jax.random.split(jax.random.key(0), 8), jnp.arange(8, dtype=jnp.int32) // 6
    together = jax.jit(jax.vmap(trial))(keys, shifts)
    alone = [jax.jit(trial)(key, shift) for key, shift in zip(keys, shifts, strict=True)]
    assert len({int(x["episode_length"].max()) for x in alone}) > 1
    for name, x in together.items():
        np.testing.assert_array_equal(x, [single[name] for single in alone])


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_the_policy_without_a_key_is_greedy(name):
    """Its action is the one most often sampled or, of a continuous policy, the median of the samples."""
    import ppo

    algorithm = ppo.make(ppo.Config(env=name, num_envs=1, num_steps=4, num_minibatches=1, hidden_sizes=(8,)))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    state = state.replace(params=jax.tree.map(lambda x: 30.0 * x, state.params))  # far from uniform
    obs = jax.random.normal(jax.random.key(1), (5, *state.obs.shape[1:]))
    greedy = jax.jit(algorithm.act)(state, obs)
    sample = jax.jit(jax.vmap(algorithm.act, in_axes=(None, None, 0)))
    sampled = np.asarray(sample(state, obs, jax.random.split(jax.random.key(2), 2000)))  # [2000, 5, ...]
    assert (sampled != sampled[0]).any()
    if jnp.issubdtype(greedy.dtype, jnp.integer):
        np.testing.assert_array_equal(greedy, [np.bincount(x).argmax() for x in sampled.T])
    else:
        np.testing.assert_allclose(greedy, np.median(sampled, axis=0), atol=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ppo", "ppo_rnn", "reppo"])
def test_an_evaluation_samples_nothing(script):
    """Environments that observe the same get the same action, and the same again, though samples differ."""
    config = small_config(script)
    algorithm = importlib.import_module(script).make(config)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    act, memory = greedy_policy(algorithm, state, 64)
    obs = jnp.repeat(state.obs[:1], 64, axis=0)
    actions = [np.asarray(act(obs, memory)[0]) for _ in range(2)]
    assert (actions[0] == actions[0][0]).all()
    np.testing.assert_array_equal(*actions)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ppo", "ppo_rnn", "reppo"])
def test_an_evaluation_of_sampled_actions_draws_each_anew(script):
    """Actions are those of `act` with a key: others in each environment and step, the same for the same key."""
    config = small_config(script)
    algorithm = importlib.import_module(script).make(config)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    obs, actions, ends = jnp.repeat(state.obs[:1], 256, axis=0), [], []
    with jax.numpy_rank_promotion("allow"):  # distrax needs it
        for seed in (1, 1, 2):
            act, memory = sampled_policy(algorithm, state, 256, jax.random.key(seed))
            for _ in range(2):
                action, memory = act(obs, memory)
                actions.append(np.asarray(action))
            ends.append(jax.tree.leaves(memory[0]))
    first, second, first_again, second_again, *_ = actions
    assert len(np.unique(first)) > 1
    np.testing.assert_array_equal((first, second), (first_again, second_again))
    assert not any(np.array_equal(*pair) for pair in itertools.combinations([first, second, *actions[4:]], 2))
    assert all(x.any() for x in ends[0]), "a memory goes on from step to step"
