"""common/gradients.py, and the standard deviation of PPO's policies that it keeps from getting stuck."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import rank_promotion
from hypothesis import given
from hypothesis import strategies as st

from common.gradients import clip_inward

LOW, HIGH = -20.0, 2.0
FLOATS = st.integers(-300, 300).map(lambda x: x / 10)


@given(x=FLOATS, slope=FLOATS)
def test_only_gradients_that_lead_back_pass_a_clipped_value(x, slope):
    value, gradient = jax.value_and_grad(lambda x: slope * clip_inward(x, LOW, HIGH))(x)
    np.testing.assert_allclose(value, slope * np.clip(x, LOW, HIGH), rtol=1e-5)
    descent = -slope
    leads_away = (x > HIGH and descent > 0) or (x < LOW and descent < 0)
    assert gradient == np.float32(0 if leads_away else slope)


def with_log_std(state, value):
    """The State of a run with another `log_std`."""

    def change(path, x):
        return jnp.full_like(x, value) if jax.tree_util.keystr(path).endswith("['log_std']") else x

    return state.replace(params=jax.tree_util.tree_map_with_path(change, state.params))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ppo", "ppo_rnn"])
@pytest.mark.parametrize("start", [2.5, -20.5])
def test_a_standard_deviation_beyond_its_bound_moves_back(script, start):
    """One update, with an entropy that pays (below its bound) or costs (above it: a negative weight is refused, so the
    reward pays for what a narrow policy does)."""
    module = importlib.import_module(script)
    fields = {"num_envs": 4, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1, "hidden_sizes": (4,)}
    config = module.Config("Pendulum-v1", 3200, **fields, ent_coef=1e3 if start < LOW else 0.0, learning_rate=0.1)
    with rank_promotion("allow"):
        algorithm = module.make(config)
        step = jax.jit(lambda state: algorithm.step(state, 0)[0])
        ends = [step(with_log_std(algorithm.init(jax.random.key(seed)), start)) for seed in range(4)]
    log_std = np.array([state.params.actor["params"]["log_std"][0] for state in ends])
    moved = log_std - start
    assert (moved * np.sign(LOW - start if start < LOW else HIGH - start) >= 0).all(), "none moves further away"
    assert (moved != 0).any(), "some move back"
