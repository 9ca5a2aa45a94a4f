"""common/loops.py: what the scripts' loops share, and that short ones are unrolled on a GPU."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ENVS, SCRIPTS, small_config

from common.loops import gpu_unroll, scan_mean

pytestmark = pytest.mark.slow


def body(carry, x):
    """Tries structures and shapes that differ."""
    carry = {"sum": carry["sum"] + x["a"], "key": jax.random.fold_in(carry["key"], x["b"])}
    outputs = {"b": jnp.float32(x["b"]) ** 2, "a": {"c": carry["sum"].mean(), "noise": jax.random.normal(carry["key"])}}
    return carry, outputs


@pytest.mark.parametrize("num_rounds", [1, 5])
def test_scan_mean_is_scan_and_the_mean_of_its_outputs(num_rounds):
    start = {"sum": jnp.zeros(3), "key": jax.random.key(0)}
    xs = {"a": jnp.arange(3.0 * num_rounds).reshape(num_rounds, 3), "b": jnp.arange(num_rounds)}
    expected_carry, stacked = jax.lax.scan(body, start, xs)
    for steps in (1, 4):
        carry, mean = scan_mean(body, start, xs, unroll=steps)
        np.testing.assert_array_equal(carry["sum"], expected_carry["sum"])
        np.testing.assert_array_equal(*(jax.random.key_data(x["key"]) for x in (carry, expected_carry)))
        assert jax.tree.structure(mean) == jax.tree.structure(stacked)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y.mean(), rtol=1e-6), mean, stacked)


def test_an_output_that_is_not_a_number_shows_in_the_mean():
    _, mean = scan_mean(lambda carry, x: (carry, {"x": x}), (), jnp.array([1.0, jnp.nan, 3.0]))
    assert np.isnan(mean["x"])


@pytest.mark.parametrize("script", SCRIPTS)
def test_short_loops_of_an_iteration_are_unrolled_on_a_gpu(script, monkeypatch):
    assert gpu_unroll(4) == 1
    changes = {"num_steps": 4} if script == "ppo" else {}
    config = small_config(script, 2, env=ENVS[script][0], **changes)
    num_loops = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        algorithm = importlib.import_module(script).make(config)
        state = jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0))
        num_loops.append(jax.jit(algorithm.step).lower(state, 0).as_text().count("stablehlo.while"))
    assert gpu_unroll(4) == 4
    assert num_loops[1] < num_loops[0], "a loop whose rounds are all unrolled is none"


def test_an_output_that_is_no_number_is_named():
    with pytest.raises(ValueError, match=r"per_agent must be a number \[\], not \[3\]"):
        scan_mean(lambda carry, x: (carry, {"loss": x, "per_agent": jnp.ones(3)}), 0.0, jnp.ones(4))
