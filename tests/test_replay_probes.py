"""DQN, SAC and TD3 learn small tasks whose answers are known on paper; see probes.py."""

import importlib
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

probes.register()
GAMMA = 0.9
NUM_SEEDS = 3
LEARNING_RATES = {
    "dqn": {"learning_rate": 0.01, "anneal_learning_rate": True, "target_interval": 16},
    "sac": {"actor_learning_rate": 0.01, "critic_learning_rate": 0.01},
    "td3": {"actor_learning_rate": 0.01, "critic_learning_rate": 0.01, "exploration_noise": 0.3},
}
FIXED_ALPHA = {"alpha": 1e-3, "alpha_learning_rate": 0.0}  # so small that SAC's values are those of the rewards
SCRIPTS = ["dqn", "sac", "td3"]


@pytest.fixture(scope="module", autouse=True)
def rank_promotion():
    with jax.numpy_rank_promotion("allow"):  # distrax needs it; test_scripts.py has a test of this mode
        yield


@cache
def trained(script, env, **changes):
    """Algorithm, final State and last metrics of a few seeds."""
    module = importlib.import_module(script)
    fields = {
        "env": env if script == "dqn" or env in ("Probe-Targets", "Probe-Smoothing") else f"{env}-Continuous",
        "total_timesteps": 12_800,
        "num_envs": 8,
        "train_interval": 8,
        "gradient_steps": 2,
        "steps_per_iteration": 1_520,
        "learning_starts": 640,
        "buffer_size": 20_000,
        "batch_size": 64,
        "gamma": GAMMA,
        "hidden_sizes": (16,),
        "tau": 0.05 if script != "dqn" else 1.0,
        **LEARNING_RATES[script],
        **(FIXED_ALPHA if script == "sac" else {}),
    }
    config = module.Config(**(fields | changes))
    state, metrics = jax.jit(jax.vmap(module.make_train(config)))(jax.random.split(jax.random.key(0), NUM_SEEDS))
    return module.make(config), state, jax.tree.map(lambda x: np.asarray(x)[:, -1], metrics)


def values_of(script, rooms, **changes):
    """Learned value of every room, [num_seeds, num_rooms]."""
    algorithm, state, _ = trained(script, f"Probe-{rooms}", **changes)
    obs = jnp.eye(len(probes.ROOMS[rooms]))
    return np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, obs))


@pytest.mark.parametrize("script", SCRIPTS)
def test_values(script):
    """Constant, dependent on the observation, and one step later: discounted."""
    np.testing.assert_allclose(values_of(script, "Values"), [[1, 2, -1, GAMMA, 1]] * NUM_SEEDS, atol=0.05)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_time_limit_is_not_an_end(script):
    """Reward 1 on every step and episodes that only a limit cuts: the value is that of going on for ever."""
    np.testing.assert_allclose(values_of(script, "Limits")[:, 0], 1 / (1 - GAMMA), rtol=0.05)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("room", [1, 2], ids=["terminated", "both"])
def test_an_end_is_an_end(script, room):
    """The negative control: the same limit as an end, or as both. The room does not show the time: every fifth
    transition ends, and the value is that of the one-step fixed point."""
    fixed_point = 1 / (1 - GAMMA * (1 - 1 / probes.LIMIT))
    np.testing.assert_allclose(values_of(script, "Limits")[:, room], fixed_point, rtol=0.1)
    assert fixed_point < 0.5 / (1 - GAMMA)


@pytest.mark.parametrize("flags", [{"double": False}, {"dueling": True}, {"loss": "huber", "tau": 0.1}], ids=str)
def test_dqn_with_other_flags(flags):
    np.testing.assert_allclose(values_of("dqn", "Values", **flags), [[1, 2, -1, GAMMA, 1]] * NUM_SEEDS, atol=0.05)


@pytest.mark.parametrize("changes", [{}, {"normalize_obs": True}], ids=["raw", "normalised"])
def test_the_action_that_pays_is_chosen(changes):
    algorithm, state, _ = trained("dqn", "Probe-Policies", **changes)
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, jnp.eye(3))
    np.testing.assert_array_equal(actions, [[1, 0, 1]] * NUM_SEEDS)


@pytest.mark.parametrize("changes", [{}, {"normalize_obs": True}], ids=["raw", "normalised"])
@pytest.mark.parametrize("script", ["sac", "td3"])
def test_continuous_actions_find_their_targets(script, changes):
    """In environment units, in a box that is asymmetric and differs per dimension, a target for each observation."""
    smooth = {"hidden_sizes": (32,), "activation": "swish"}
    algorithm, state, _ = trained(script, "Probe-Targets", **smooth, **changes)
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, jnp.eye(2))  # [num_seeds, 2 observations, 2]
    half_width = (np.array(probes.Targets.high) - np.array(probes.Targets.low)) / 2
    np.testing.assert_array_less(np.abs(actions - np.array(probes.Targets.targets)) / half_width, 0.1)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_the_soft_value_counts_the_entropy_of_all_later_actions(alpha):
    """Reward 1 for ever, whatever is done: the best policy is uniform in [-1, 1], with entropy log 2."""
    values = values_of("sac", "Limits", alpha=alpha)
    np.testing.assert_allclose(values[:, 0], (1 + GAMMA * alpha * np.log(2)) / (1 - GAMMA), rtol=0.05)


def test_no_entropy_follows_an_end():
    values = values_of("sac", "Values", alpha=1.0)
    np.testing.assert_allclose(values[:, 0], 1, atol=0.05)
    np.testing.assert_allclose(values[:, 3], GAMMA * (1 + np.log(2)), atol=0.1)


def test_the_temperature_brings_the_entropy_to_its_target():
    """Rewards -d^2: the best policy is a Gaussian of variance alpha / 2, whose entropy then tells alpha."""
    _, _, metrics = trained("sac", "Probe-Targets", alpha=0.2, alpha_learning_rate=0.01, target_entropy=-1.0)
    np.testing.assert_allclose(metrics["entropy"], -2.0, atol=0.2)  # -1 for each of the two dimensions
    np.testing.assert_allclose(metrics["alpha"], np.exp(-2.0) / (np.pi * np.e), rtol=0.3)


@pytest.mark.parametrize(("target_noise", "target_noise_clip"), [(0.0, 0.5), (0.5, 0.4), (0.2, 2.0)])
def test_target_smoothing_is_seen_in_the_value(target_noise, target_noise_clip):
    """The second of two steps pays minus the squared action: smoothed, its value is minus the variance of the noise."""
    smoothing = {"target_noise": target_noise, "target_noise_clip": target_noise_clip}
    precise = {"critic_learning_rate": 0.003, "gradient_steps": 4, "hidden_sizes": (32,), "activation": "swish"}
    algorithm, state, _ = trained("td3", "Probe-Smoothing", **smoothing, **precise)
    noise = np.random.default_rng(0).normal(size=100_000) * target_noise
    expected = -GAMMA * np.mean(np.clip(noise, -target_noise_clip, target_noise_clip) ** 2)
    values = jax.vmap(algorithm.value, in_axes=(0, None))(state, jnp.eye(2)[0])
    np.testing.assert_allclose(values, expected, atol=0.02)
