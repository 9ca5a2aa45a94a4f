"""DQN, SAC and TD3 learn small tasks whose answers are known on paper; see probes.py."""

import importlib
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

probes.register()
GAMMA = 0.9
VALUES = probes.known_values(GAMMA)
NUM_SEEDS = 3
LEARNING_RATES = {
    "dqn": {"learning_rate": 0.01, "anneal_learning_rate": True, "target_interval": 16},
    "sac": {"actor_learning_rate": 0.01, "critic_learning_rate": 0.01},
    "td3": {"actor_learning_rate": 0.01, "critic_learning_rate": 0.01, "exploration_noise": 0.3},
}
FIXED_ALPHA = {"alpha": 1e-3, "alpha_learning_rate": 0.0}  # so small that SAC's values are those of the rewards
ALPHAS = (1e-3, 0.3, 1.0)  # trained together
SCRIPTS = ["dqn", "sac", "td3"]


pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]


@cache
def trained_with(script, env, settings=((),), **changes):
    """Algorithm, final State and last metrics of a few seeds for each of several settings ((name, value), ...) of float
    fields, all of them trained at once."""
    module = importlib.import_module(script)
    fields = {
        "env": env if script == "dqn" or env == "Probe-Targets" else f"{env}-Continuous",
        "total_timesteps": 25_600,
        "num_envs": 8,
        "train_interval": 8,
        "gradient_steps": 2,
        "steps_per_iteration": 1_520,
        "learning_starts": 640,
        "buffer_size": 20_000,
        "batch_size": 64,
        "gamma": GAMMA,
        "hidden_sizes": (32,),
        "tau": 0.05 if script != "dqn" else 1.0,
        **LEARNING_RATES[script],
        **(FIXED_ALPHA if script == "sac" else {}),
    }
    config = module.Config(**(fields | changes))
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    train = lambda swept, key: module.make_train(replace(config, **swept))(key)
    train = jax.vmap(jax.vmap(train, in_axes=(None, 0)), in_axes=(0, None), axis_size=len(settings))
    swept = {name: jnp.float32([dict(setting)[name] for setting in settings]) for name in dict(settings[0])}
    state, metrics = jax.jit(train, compiler_options=probes.OPTIMIZED)(swept, keys)  # [num_settings, num_seeds, ...]
    last = jax.tree.map(lambda x: np.asarray(x)[..., -1], metrics)
    trial = lambda tree, i: jax.tree.map(lambda x: x[i], tree)
    return [(module.make(config), trial(state, i), trial(last, i)) for i in range(len(settings))]


def values_of(script, setting=0, **changes):
    """Learned value of every room, [num_seeds, num_rooms]; of SAC at one of the temperatures ALPHAS."""
    if script == "sac":
        changes["settings"] = tuple((("alpha", alpha),) for alpha in ALPHAS)
    algorithm, state, _ = trained_with(script, "Probe-Rooms", **changes)[setting]
    return np.asarray(jax.vmap(algorithm.value, in_axes=(0, None))(state, probes.OBSERVATIONS))


@pytest.mark.parametrize("script", SCRIPTS)
def test_values(script):
    """Constant, dependent on the observation, discounted where it comes one step later; and, for DQN, of the action
    that pays: only its sign counts, so a continuous one gets no gradient. The mean of the seeds, each of which is still
    on the move: their learning rate is high and not annealed."""
    known = slice(probes.PAYING.stop if script == "dqn" else probes.PAYING.start)
    np.testing.assert_allclose(values_of(script)[:, known].mean(axis=0), VALUES[known], atol=0.05)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_time_limit_is_not_an_end(script):
    """Reward 1 on every step and episodes that only a limit cuts: the value is that of going on for ever. The negative
    control: the same limit as an end, or as both."""
    values, ending = values_of(script), probes.ENDING
    np.testing.assert_allclose(values[:, probes.GOING_ON], 1 / (1 - GAMMA), rtol=0.05)
    np.testing.assert_allclose(values[:, ending], [VALUES[ending]] * NUM_SEEDS, rtol=0.1)
    assert (VALUES[ending] < 0.5 / (1 - GAMMA)).all()


def test_values_of_three_steps():
    """n_step = 3. Of the five places in an episode that ends, two have the whole window and a bootstrap behind it, the
    others 3, 2 and 1 rewards. One step would have another fixed point."""
    returns = [sum(GAMMA**k for k in range(n)) for n in (3, 3, 3, 2, 1)]
    fixed_point = np.mean(returns) / (1 - 2 / probes.LIMIT * GAMMA**3)
    assert (fixed_point < 0.9 * VALUES[probes.ENDING]).all()
    values, ending = values_of("dqn", n_step=3), probes.ENDING
    np.testing.assert_allclose(values[:, : probes.GOING_ON], [VALUES[: probes.GOING_ON]] * NUM_SEEDS, atol=0.05)
    np.testing.assert_allclose(values[:, probes.GOING_ON], 1 / (1 - GAMMA), rtol=0.05)
    np.testing.assert_allclose(values[:, ending].mean(axis=0), fixed_point, rtol=0.05)  # that of an end is noisy


def test_the_action_that_pays_is_chosen():
    algorithm, state, _ = trained_with("dqn", "Probe-Rooms")[0]
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, probes.OBSERVATIONS)
    np.testing.assert_array_equal(actions[:, probes.PAYING], [probes.ACTIONS] * NUM_SEEDS)


LEARNED_ALPHA = {"alpha": 0.2, "alpha_learning_rate": 0.01, "target_entropy": -1.0}


def trained_on_targets():
    """SAC with a fixed temperature and with a learned one, trained together."""
    settings = FIXED_ALPHA | {"target_entropy": -1.0}, LEARNED_ALPHA
    settings = tuple(tuple(setting.items()) for setting in settings)
    return trained_with("sac", "Probe-Targets", settings, activation="swish")


def test_continuous_actions_find_their_targets():
    """In environment units, in a box that is asymmetric and differs per dimension, a target for each observation."""
    algorithm, state, _ = trained_on_targets()[0]
    actions = jax.vmap(algorithm.act, in_axes=(0, None))(state, jnp.eye(2))  # [num_seeds, 2 observations, 2]
    half_width = (np.array(probes.Targets.high) - np.array(probes.Targets.low)) / 2
    np.testing.assert_array_less(np.abs(actions - np.array(probes.Targets.targets)) / half_width, 0.1)


@pytest.mark.parametrize("setting", [1, 2])
def test_the_soft_value_counts_the_entropy_of_all_later_actions(setting):
    """The best policy is uniform in [-1, 1] where all actions pay the same, with entropy log 2. None follows an end."""
    values, bonus = values_of("sac", setting), ALPHAS[setting] * np.log(2)
    np.testing.assert_allclose(values[:, probes.GOING_ON], (1 + GAMMA * bonus) / (1 - GAMMA), rtol=0.05)
    np.testing.assert_allclose(values[:, probes.LATER], GAMMA * (1 + bonus), atol=0.1)
    np.testing.assert_allclose(values[:, 0].mean(), 1, atol=0.05)


def test_the_temperature_brings_the_entropy_to_its_target():
    """Rewards -d^2: the best policy is a Gaussian of variance alpha / 2, whose entropy then tells alpha."""
    _, _, metrics = trained_on_targets()[1]
    np.testing.assert_allclose(metrics["entropy"], -2.0, atol=0.2)  # -1 for each of the two dimensions
    np.testing.assert_allclose(metrics["alpha"], np.exp(-2.0) / (np.pi * np.e), rtol=0.3)
