"""Observations of which the critic sees more than the policy: what each network reads, learns and normalises."""

import importlib
from functools import cache
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from helpers import rank_promotion

from common.environment import Environment
from common.suites import Suite
from runner.export.policy import make_policy

pytestmark = pytest.mark.slow

PPO = {"total_timesteps": 64 * 60, "num_envs": 8, "num_steps": 8, "num_minibatches": 2, "learning_rate": 3e-3}
REPLAY = {
    "total_timesteps": 3000,
    "num_envs": 4,
    "train_interval": 4,
    "gradient_steps": 2,
    "steps_per_iteration": 100,
    "learning_starts": 100,
    "buffer_size": 1000,
    "batch_size": 32,
    "critic_learning_rate": 3e-3,
}
RANGE = {"value_min": -1.0, "value_max": 4.0, "num_bins": 51, "learning_rate": 3e-3}
CONFIGS = {
    "ppo": PPO,
    "ppo_rnn": PPO | {"memory_size": 4},
    "reppo": PPO | RANGE,
    "sac": REPLAY,
    "td3": REPLAY,
}
SECRETS = jnp.array([[0.0, 5.0], [1.0, 5.0]])  # what the critic sees: what the step pays, and a constant


class Secret(Suite):
    """Episodes of one step, which pays 0 or 1 whatever is done; only the critic sees how much."""

    action_space, max_episode_steps, reset_period = spaces.Box(-1.0, 1.0, (1,)), None, 0

    def reset(self, key):
        pays = jax.random.bernoulli(key).astype(jnp.float32)
        return self.see(pays), pays

    def step(self, key, state, action):
        return self.see(state), state, state, jnp.bool_(True), {}

    def see(self, pays):
        return {"actor": jnp.ones(1), "critic": jnp.stack([pays, 5.0])}


class Plain(Secret):
    """Nobody sees it."""

    def see(self, pays):
        return jnp.ones(1)


@pytest.fixture(autouse=True)
def promotion():
    with rank_promotion("allow"):
        yield


@cache
def trained(script, suite):
    """Algorithm, state and metrics of a run whose rewards are tripled and whose critic is narrower than its actor."""
    module = importlib.import_module(script)
    fields = {"normalize_obs": True, "reward_scale": 3.0, "hidden_sizes": (32,), "value_hidden_sizes": (16,)}
    with mock.patch.object(module, "make_env", return_value=Environment(suite())):
        config = module.Config(env="Secret", **fields, **CONFIGS[script])
        return module.make(config), *jax.jit(module.make_train(config))(jax.random.key(0))


def memory_of(algorithm):
    """The argument of a recurrent policy, for two observations."""
    return [algorithm.initial_memory(2)] if hasattr(algorithm, "initial_memory") else []


@pytest.mark.parametrize("script", CONFIGS)
def test_the_critic_learns_what_it_alone_sees(script):
    algorithm, state, metrics = trained(script, Secret)
    obs = {"actor": jnp.ones((2, 1)), "critic": SECRETS}
    v, *_ = jax.tree.leaves(algorithm.value(state, obs, *memory_of(algorithm)))
    np.testing.assert_allclose(v, [0.0, 3.0], atol=0.3)
    np.testing.assert_allclose(np.nanmean(metrics["episode_return"]), 0.5, atol=0.1)  # not scaled


def test_a_critic_that_sees_no_more_learns_the_mean():
    """The control of the test above."""
    algorithm, state, _ = trained("ppo", Plain)
    np.testing.assert_allclose(algorithm.value(state, jnp.ones((2, 1))), 1.5, atol=0.5)


@pytest.mark.parametrize("script", CONFIGS)
def test_the_policy_acts_without_what_the_critic_sees(script):
    algorithm, state, _ = trained(script, Secret)
    memory, actor = memory_of(algorithm), {"actor": jnp.ones((2, 1))}
    for key in (None, jax.random.key(3)):
        found = algorithm.act(state, actor, *memory, key=key)
        expected = algorithm.act(state, actor | {"critic": SECRETS}, *memory, key=key)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("script", CONFIGS)
def test_an_exported_policy_does_not_ask_for_what_the_critic_sees(script):
    algorithm, state, _ = trained(script, Secret)
    policy = make_policy(algorithm, state, Environment(Secret()))
    assert policy.inputs.keys() == {"actor", *policy.memory}
    memory = memory_of(algorithm)
    expected = algorithm.act(state, {"actor": jnp.ones((2, 1))}, *memory)
    jax.tree.map(np.testing.assert_array_equal, policy.act(jnp.ones((2, 1)), *memory), jax.tree.leaves(expected))


WIDTHS = {"ppo": (1, 2), "ppo_rnn": (1, 2), "reppo": (1, 3), "sac": (1, 3), "td3": (1, 3)}


@pytest.mark.parametrize(("script", "num_inputs"), WIDTHS.items())
def test_networks_are_as_wide_as_what_they_see(script, num_inputs):
    """The critics of SAC, TD3 and REPPO also see the action."""
    _, state, _ = trained(script, Secret)

    kernels = [x["params"]["Torso_0"]["Dense_0"]["kernel"] for x in (state.params.actor, state.params.critic)]
    assert [x.shape[-2:] for x in kernels] == [(num_inputs[0], 32), (num_inputs[1], 16)]


def test_both_parts_are_normalised_each_by_its_statistics():
    _, state, _ = trained("ppo", Secret)
    mean = state.obs_statistics.mean
    np.testing.assert_allclose(mean["actor"], 1.0)
    np.testing.assert_allclose(mean["critic"], [0.5, 5.0], atol=0.05)
    assert int(state.obs_statistics.count) == 64 * 60


def test_the_final_observation_has_both_parts():
    env = Environment(Secret())
    assert env.obs_shape == {"actor": (1,), "critic": (2,)}
    obs, env_state = env.reset(jax.random.split(jax.random.key(0), 16))
    after, _, reward, *_, info = env.step(jax.random.split(jax.random.key(1), 16), env_state, jnp.zeros((16, 1)))
    np.testing.assert_array_equal(info["final_observation"]["critic"], obs["critic"])
    np.testing.assert_array_equal(reward, obs["critic"][:, 0])
    assert (np.asarray(after["critic"]) != obs["critic"]).any(), "of the next episode"
