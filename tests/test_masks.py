"""Legal actions: of suites that tell them, no script chooses another, bootstraps from it or counts it as entropy."""

import importlib
from functools import cache
from unittest import mock

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sac_discrete
from gymnax.environments import spaces
from helpers import rank_promotion, step_and_record

from common.environment import Environment, make_env
from common.spaces import choose_legal, draw_choices, forbid_illegal
from common.suites import Suite
from runner.devices.evaluation import evaluate, greedy_policy
from runner.render import play_episode

pytestmark = pytest.mark.slow

LIMIT = 20
MASKS = ~np.eye(3, dtype=bool)  # [phase, action]
OBS = {"actor": jnp.eye(3), "legal": jnp.asarray(MASKS)}  # of each phase
PPO = {"num_envs": 2, "num_steps": 32, "num_epochs": 2, "num_minibatches": 2, "learning_rate": 1e-3}
REPLAY = {
    "num_envs": 2,
    "steps_per_iteration": 100,
    "learning_starts": 100,
    "buffer_size": 1000,
    "batch_size": 32,
    "train_interval": 2,
    "gradient_steps": 2,
    "gamma": 0.5,
    "n_step": 2,
}
DQN = {"total_timesteps": 3000, "learning_rate": 3e-3, "target_interval": 10, "epsilon_end": 0.5}
CONFIGS = {
    "ppo": PPO | {"total_timesteps": 64 * 20},
    "ppo_rnn": PPO | {"total_timesteps": 64 * 20, "memory_size": 4},
    "pqn": PPO | {"total_timesteps": 64 * 60, "learning_rate": 1e-2, "gamma": 0.5, "epsilon_end": 0.5},
    "dqn": REPLAY | DQN,
    "categorical_dqn": REPLAY | DQN | {"value_min": -6.0, "value_max": 0.0, "num_bins": 13},
    "sac_discrete": REPLAY
    | {"total_timesteps": 3000, "critic_learning_rate": 3e-3, "tau": 0.1, "alpha": 1e-4, "alpha_learning_rate": 0.0},
}


class Phases(Suite):
    """One of three actions is illegal, each in turn. A step pays -1, an illegal one -100 and is counted."""

    action_space, max_episode_steps, reset_period = spaces.Discrete(3), LIMIT, 0

    def reset(self, key):
        phase = jax.random.randint(key, (), 0, 3)
        return self.see(phase), (phase, jnp.float32(0))

    def step(self, key, state, action):
        phase, count = state
        is_illegal = action == phase
        phase, count = (phase + 1) % 3, count + is_illegal
        reward = jnp.where(is_illegal, -100.0, -1.0)
        return self.see(phase), (phase, count), reward, jnp.bool_(False), {"num_illegal": count}

    def see(self, phase):
        return {"actor": jax.nn.one_hot(phase, 3), "legal": jnp.arange(3) != phase}


class Silent(Phases):
    """It does not tell which actions are legal."""

    def see(self, phase):
        return jax.nn.one_hot(phase, 3)


@pytest.fixture(autouse=True)
def promotion():
    with rank_promotion("allow"):
        yield


@cache
def trained(script, suite):
    """Algorithm, state and metrics of a run in a suite of this file."""
    module = importlib.import_module(script)
    with mock.patch.object(module, "make_env", return_value=Environment(suite())):
        config = module.Config(env="Phases", hidden_sizes=(32,), **CONFIGS[script])
        state, metrics = jax.jit(module.make_train(config))(jax.random.key(0))
        return module.make(config), state, metrics


@pytest.mark.parametrize("script", CONFIGS)
def test_no_illegal_action_is_chosen(script):
    algorithm, state, metrics = trained(script, Phases)
    assert np.nanmax(metrics["num_illegal"]) == 0
    np.testing.assert_allclose(metrics["episode_return"][~np.isnan(metrics["episode_return"])], -LIMIT)
    env = Environment(Phases())
    act, memory = greedy_policy(algorithm, state, 16)
    episodes = jax.jit(lambda key: evaluate(env, act, memory, key, 16, LIMIT))(jax.random.key(1))
    np.testing.assert_array_equal(episodes["episode_return"], -LIMIT)
    _, returns = play_episode(env, *greedy_policy(algorithm, state, 1), jax.random.key(2), LIMIT)
    np.testing.assert_array_equal(returns, -1.0 - np.arange(LIMIT))
    memory = [x[:3] for x in jax.tree.leaves(memory)]
    for seed in range(20):  # sampled
        action = jax.tree.leaves(algorithm.act(state, OBS, *memory, key=jax.random.key(seed)))[0]
        assert MASKS[np.arange(3), action].all()


@pytest.mark.parametrize("script", ["ppo", "dqn", "pqn"])
def test_where_no_action_is_called_illegal_any_is_sampled(script):
    algorithm, state, _ = trained(script, Phases)
    obs = {"actor": OBS["actor"]}
    actions = np.array([algorithm.act(state, obs, key=jax.random.key(seed)) % 3 for seed in range(50)])
    np.testing.assert_array_equal(np.unique(actions), range(3))


def test_illegal_actions_are_chosen_if_the_suite_does_not_tell():
    """The control of `test_no_illegal_action_is_chosen`."""
    _, _, metrics = trained("ppo", Silent)
    assert np.nanmax(metrics["num_illegal"]) > 0


@pytest.mark.parametrize("script", ["dqn", "categorical_dqn", "sac_discrete", "pqn"])
def test_no_value_is_that_of_an_illegal_action(script):
    """-1 a step, gamma .5: every state is worth -2. Illegal actions stay near 0, and by them it would be worth -1."""
    algorithm, state, _ = trained(script, Phases)
    values = algorithm.value(state, OBS)
    np.testing.assert_allclose(values, -2.0, atol=0.1)
    if script == "dqn":
        values = algorithm.value(state, {"actor": OBS["actor"]})
        assert values.max() > -1.5, "if all were legal it would be that of an illegal action"


@pytest.mark.parametrize("script", ["ppo", "ppo_rnn", "sac_discrete"])
def test_the_entropy_is_that_of_legal_actions(script):
    """At the start the policy is nearly uniform over two of three actions, and it never has a third."""
    _, _, metrics = trained(script, Phases)
    np.testing.assert_allclose(metrics["entropy"][0], np.log(2), atol=0.02)
    assert metrics["entropy"].max() <= np.log(2) + 1e-6


class Opening(Phases):
    """An episode is one step; behind it all actions are legal."""

    def step(self, key, state, action):
        obs, state, reward, _, info = super().step(key, state, action)
        return obs | {"legal": jnp.ones(3, bool)}, state, reward, jnp.bool_(True), info


def test_the_target_entropy_counts_the_actions_that_were_legal():
    """Above 0.9 log 2 alpha falls; with the actions of the next observation the policy would be below 0.9 log 3."""
    changes = {"total_timesteps": 500, "alpha": 1.0, "alpha_learning_rate": 1e-3, "target_entropy": 0.9, "n_step": 1}
    with mock.patch.object(sac_discrete, "make_env", return_value=Environment(Opening())):
        config = sac_discrete.Config(env="Opening", hidden_sizes=(32,), **CONFIGS["sac_discrete"] | changes)
        _, metrics = jax.jit(sac_discrete.make_train(config))(jax.random.key(0))
    assert metrics["alpha"][-1] < metrics["alpha"][0] < 1.0


@pytest.mark.parametrize("script", ["ppo", "ppo_rnn"])
def test_every_first_ratio_is_one_with_illegal_actions_too(script):
    module = importlib.import_module(script)
    with mock.patch.object(module, "make_env", return_value=Environment(Phases())):
        config = module.Config(env="Phases", hidden_sizes=(32,), **CONFIGS[script] | {"learning_rate": 0.0})
        algorithm = module.make(config)
        _, metrics = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0)), 0)
    np.testing.assert_allclose([metrics["approx_kl"], metrics["clip_fraction"]], 0.0, atol=1e-6)


class Dear(Phases):
    """The one of two legal actions that is illegal in the next state costs more."""

    def step(self, key, state, action):
        *outcome, info = super().step(key, state, action)
        outcome[2] -= 2.0 * (action == (state[0] + 1) % 3)
        return *outcome, info


@pytest.mark.parametrize("script", ["dqn", "sac_discrete"])
def test_the_best_of_the_actions_that_are_legal_now_is_learned(script):
    algorithm, state, _ = trained(script, Dear)
    action = algorithm.act(state, OBS)
    np.testing.assert_array_equal(action, [2, 0, 1])


def test_a_forbidden_logit_has_probability_and_gradient_zero():
    logits, mask = jnp.array([0.3, 5.0, -0.2]), jnp.array([True, False, True])
    policy = distrax.Categorical(logits=forbid_illegal(logits, {"legal": mask}))
    legal = distrax.Categorical(logits=logits[mask])
    np.testing.assert_allclose(policy.probs[mask], legal.probs, rtol=1e-6)
    assert policy.probs[1] == 0
    np.testing.assert_allclose(policy.entropy(), legal.entropy(), rtol=1e-6)

    def loss(logits):
        policy = distrax.Categorical(logits=forbid_illegal(logits, {"legal": mask}))
        return policy.log_prob(2) + policy.entropy()

    gradient = jax.grad(loss)(logits)
    assert gradient[1] == 0
    assert np.isfinite(gradient).all()
    assert (gradient[mask] != 0).all()


def test_numbers_choose_every_legal_action_equally_often():
    masks = np.array([[True, False, True, True], [False, False, True, False], [True, True, True, True]])
    for mask in masks:
        chosen = choose_legal(jnp.arange(12), {"legal": jnp.broadcast_to(mask, (12, 4))})
        counts = np.bincount(chosen, minlength=4)
        np.testing.assert_array_equal(counts, np.where(mask, 12 // mask.sum(), 0))
    np.testing.assert_array_equal(choose_legal(jnp.arange(5), jnp.zeros((5, 2))), np.arange(5))


def test_what_is_legal_is_that_of_the_final_observation_too():
    suite = Phases()
    env = Environment(suite, max_episode_steps=1)
    obs, env_state = env.reset(jax.random.split(jax.random.key(0), 8))
    phase = np.asarray(env_state.state[0])
    np.testing.assert_array_equal(obs["legal"], MASKS[phase])
    obs, after, *_, info = env.step(jax.random.split(jax.random.key(1), 8), env_state, jnp.asarray(phase))
    np.testing.assert_array_equal(info["final_observation"]["legal"], MASKS[(phase + 1) % 3])
    assert (np.asarray(after.state[0]) != (phase + 1) % 3).any()
    np.testing.assert_array_equal(obs["legal"], MASKS[np.asarray(after.state[0])])


@pytest.mark.parametrize("script", ["ppo", "dqn"])
def test_what_is_legal_is_not_normalised(script):
    module = importlib.import_module(script)
    with mock.patch.object(module, "make_env", return_value=Environment(Phases())):
        config = module.Config(env="Phases", hidden_sizes=(32,), normalize_obs=True, **CONFIGS[script])
        algorithm = module.make(config)
        state, metrics = jax.jit(algorithm.step)(algorithm.init(jax.random.key(0)), 0)
    assert metrics["num_illegal"] == 0
    np.testing.assert_allclose(state.obs_statistics.mean["actor"], 1 / 3, atol=0.1)
    assert state.obs_statistics.mean.keys() == {"actor"}


def test_2048_is_played_with_legal_moves_alone():
    """10,000 of them: an episode ends when there is none left, never earlier, and no reward is negative."""
    pytest.importorskip("pgx")
    env, num_envs = make_env("pgx/2048"), 20
    start = env.reset(jax.random.split(jax.random.key(0), num_envs))

    def step(carry, key):
        obs, env_state = carry
        action = choose_legal(draw_choices(key, (num_envs,), env), obs)
        is_legal = jnp.take_along_axis(obs["legal"], action[:, None], axis=1)[:, 0]
        outcome = step_and_record(env, jax.random.split(key, num_envs), env_state, action)
        obs, env_state, reward, terminated, _, info = outcome
        return (obs, env_state), (is_legal, reward, terminated, info["episode_length"])

    _, records = jax.jit(lambda: jax.lax.scan(step, start, jax.random.split(jax.random.key(1), 500)))()
    is_legal, reward, terminated, length = map(np.asarray, records)
    assert is_legal.all()
    assert (reward >= 0).all()
    assert length[terminated].mean() > 80, "a random player of 2048 makes about 120 moves"
