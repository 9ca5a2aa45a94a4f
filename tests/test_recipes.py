"""docs/recipes.md: each diff fits the scripts that it names, and with it they compute what the page says."""

import importlib.util
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from helpers import ROOT, small_config
from reference import dense, layer_norm, to_float64
from scipy import stats
from test_traps import change_of

import common.random

pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]

probes.register()
PAGE = (ROOT / "docs" / "recipes.md").read_text()
_, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
RECIPES = {
    section.partition("\n")[0]: [change_of(x) for x in re.findall(r"^```diff\n(.*?)^```", section, re.S | re.M)]
    for section in SECTIONS
}
SIMBA, DUELING, HUBER, HL_GAUSS, TARGET_KL = RECIPES
FITS = [(recipe, path) for recipe, changes in RECIPES.items() for path in changes[0][0].split()]


@pytest.fixture
def cook(tmp_path, monkeypatch):
    """`cook(recipe, script)`: the module of a copy of the script with the recipe."""
    monkeypatch.syspath_prepend(ROOT)

    def make(recipe, script):
        text = Path(importlib.import_module(script).__file__).read_text()
        for _, changed, plain in RECIPES[recipe]:
            assert text.count(plain) == 1, plain
            text = text.replace(plain, changed)
        path = tmp_path / f"{script}_with_recipe.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)  # dataclasses look it up there
        spec.loader.exec_module(module)
        return module

    return make


def config_of(module, script, **changes):
    """The short configuration of a script, as one of the copy."""
    return module.Config(**vars(small_config(script, 2)) | changes)


@pytest.mark.parametrize(("recipe", "path"), FITS)
def test_the_recipe_fits(recipe, path, cook):
    script = Path(path).stem
    module = cook(recipe, script)
    train = module.make_train(config_of(module, script, hidden_sizes=(8, 8)))
    jax.eval_shape(train, jax.eval_shape(jax.random.key, 0))


@pytest.mark.parametrize("script", ["ppo", "sac"])
def test_simba_trains_with_a_critic_of_another_width(script, cook):
    module = cook(SIMBA, script)
    config = config_of(module, script, hidden_sizes=(8, 8), value_hidden_sizes=(6, 6))
    state, _ = jax.jit(module.make_train(config))(jax.random.key(0))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


def simba(torso, x):
    """Section 4 of the paper, x [..., n]."""
    x = dense(torso["Dense_0"], x)
    for i in range(2):
        hidden = dense(torso[f"Dense_{2 * i + 1}"], layer_norm(torso[f"LayerNorm_{i}"], x))
        x = x + dense(torso[f"Dense_{2 * i + 2}"], np.maximum(hidden, 0))
    return layer_norm(torso["LayerNorm_2"], x)


def shaken(params):
    """No scale is 1 and no bias 0."""
    return jax.tree.map(lambda x: x + 0.3 * np.sin(1.0 + jnp.arange(x.size)).reshape(x.shape), params)


def test_simba_is_the_embedding_the_blocks_and_the_norm(cook):
    module = cook(SIMBA, "ppo")
    torso = module.Torso((3,), hidden_sizes=(6, 6), activation="tanh", layer_norm=False)
    obs = jax.random.normal(jax.random.key(0), (7, 3))
    params = shaken(torso.init(jax.random.key(1), obs))
    layers = to_float64(params["params"])
    assert [layers[f"Dense_{i}"]["bias"].size for i in range(5)] == [6, 24, 6, 24, 6]
    np.testing.assert_allclose(torso.apply(params, obs), simba(layers, np.asarray(obs)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("script", ["dqn", "pqn"])
def test_a_dueling_network_is_a_value_and_advantages(script, cook):
    module = cook(DUELING, script)
    network = module.QNetwork(3, lambda: lambda x: x)
    obs = jax.random.normal(jax.random.key(0), (7, 4))
    params = shaken(network.init(jax.random.key(1), obs))
    layers, x = to_float64(params["params"]), np.asarray(obs, np.float64)
    advantage, value = dense(layers["Dense_0"], x), dense(layers["Dense_1"], x)
    expected = value + advantage - advantage.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(network.apply(params, obs), expected, rtol=1e-5, atol=1e-5)


def test_huber_squares_small_errors_alone(cook):
    """Without discount the target is the reward, 1 * scale, and Q nearly 0: one error for all rows."""

    def loss(module, scale):
        changes = {"env": "CartPole-v1", "gamma": 0.0, "reward_scale": scale, "learning_rate": 0.0}
        algorithm = module.make(config_of(module, "dqn", **changes))
        state = algorithm.init(jax.random.key(0))
        state = state.replace(params=jax.tree.map(lambda x: 0.1 * x, state.params))
        return algorithm.step(state, 0)[1]["q_loss"]

    modules, scales = (importlib.import_module("dqn"), cook(HUBER, "dqn")), np.float32([0.5, 1000.0])
    squared, huber = (jax.jit(jax.vmap(partial(loss, module)))(scales) for module in modules)
    assert (squared < 0.5).tolist() == [True, False]
    np.testing.assert_allclose(huber, [squared[0], np.sqrt(2 * squared[1]) - 0.5], rtol=1e-3)


def test_hl_gauss_learns_a_gaussian_around_the_mean(cook):
    """Without discount the target of CartPole is 1. A network that says so has the entropy of the histogram as loss."""
    module = cook(HL_GAUSS, "categorical_dqn")
    changes = {"gamma": 0.0, "learning_rate": 0.0, "value_min": 0.0, "value_max": 4.0, "num_bins": 17}
    algorithm = module.make(config_of(module, "categorical_dqn", **changes))
    state = algorithm.init(jax.random.key(0))
    edges = np.linspace(-0.125, 4.125, 18)
    probs = np.diff(stats.norm.cdf(edges, 1.0, 0.75 * 0.25))
    probs /= probs.sum()
    params = jax.tree.map(jnp.zeros_like, state.params)
    params["params"]["Dense_0"]["bias"] = jnp.tile(jnp.log(jnp.maximum(probs, 1e-30)), 2)
    metrics = jax.jit(algorithm.step)(state.replace(params=params), 0)[1]
    np.testing.assert_allclose(metrics["q_loss"], stats.entropy(probs), rtol=1e-4)
    np.testing.assert_allclose(metrics["q_mean"], 1.0, atol=1e-3)
    assert metrics["clipped_targets"] == 0


def test_a_target_kl_ends_the_updates_of_an_iteration(cook):
    """Nothing moves, and all run; huge steps, and the second minibatch ends them; a huge target changes nothing."""
    module, config = cook(TARGET_KL, "ppo"), {"num_envs": 3, "num_steps": 16, "hidden_sizes": (8,)}
    config = module.Config("Probe-Recorder", 96, **config, num_epochs=3, num_minibatches=2)

    def train(learning_rate, target_kl):
        algorithm = module.make(replace(config, learning_rate=learning_rate, target_kl=target_kl))
        state, metrics = algorithm.step(algorithm.init(jax.random.key(0)), 0)
        count = optax.tree_utils.tree_get(state.opt_state, "count", filtering=lambda path, _: "Adam" in str(path))
        return count, metrics

    count, metrics = jax.jit(jax.vmap(train))(np.float32([0, 1, 1]), np.float32([1e-3, 1e-3, 1e9]))
    assert count.tolist() == metrics["num_updates"].tolist() == [6, 1, 6]
    assert np.isfinite(metrics["grad_norm"]).all()


@pytest.mark.parametrize("script", ["ppo", "ppo_rnn"])
def test_no_update_follows_the_stop(script, cook, monkeypatch):
    """A trial that stops in its first epoch ends as it would without the other epochs, though later minibatches may be
    below the target again. Rows come in order, so that the first epoch is the same."""
    module = cook(TARGET_KL, script)
    monkeypatch.setattr(common.random, "shuffle", lambda key, num_rows: jnp.arange(num_rows))
    fields = {"num_envs": 4, "num_steps": 6, "num_minibatches": 4, "hidden_sizes": (4,), "normalize_reward": True}
    config = module.Config("Probe-Recorder", 24, **fields, learning_rate=0.03, target_kl=0.01)
    config = replace(config, anneal_learning_rate=False)
    start = jax.jit(jax.vmap(module.make(config).init))(jax.random.split(jax.random.key(0), 64))
    ends = []
    for num_epochs in (1, 4):
        algorithm = module.make(replace(config, num_epochs=num_epochs))
        state, metrics = jax.jit(jax.vmap(algorithm.step, (0, None)))(start, 0)
        ends.append((np.asarray(metrics["num_updates"]), state.params))
    (short, short_params), (long, long_params) = ends
    stopped = short < config.num_minibatches
    assert stopped.sum() >= 8
    assert (long[~stopped] > config.num_minibatches).any()
    np.testing.assert_array_equal(long[stopped], short[stopped])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[stopped], y[stopped]), short_params, long_params)
