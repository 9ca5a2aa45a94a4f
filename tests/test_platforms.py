"""The programs of every script can be lowered for CPU, GPU and TPU: nothing that only a CPU has slips in."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SCRIPTS, small_config

from runner.devices.placement import make_placement, make_segment, strip_weak_types

pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]

PLATFORMS = ("cpu", "cuda", "tpu")


def exported(program, *arguments):
    return jax.export.export(program, platforms=PLATFORMS)(*arguments)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_whole_run_is_lowered_for_every_platform(script):
    train = jax.vmap(importlib.import_module(script).make_train(small_config(script)))
    assert exported(jax.jit(train), jax.vmap(jax.random.key)(np.arange(2))).platforms == PLATFORMS


@pytest.mark.parametrize(("script", "devices_per_trial"), [("ppo", 1), ("ppo", 2)])
def test_a_segment_is_lowered_for_every_platform(script, devices_per_trial):
    if devices_per_trial > jax.local_device_count():
        pytest.skip("needs two devices")
    config = small_config(script)
    algorithm, placement = importlib.import_module(script).make(config), make_placement(2, 2, devices_per_trial, 2)
    state = jax.eval_shape(lambda key: strip_weak_types(algorithm.init(key)), jax.eval_shape(jax.random.key, 0))
    state = placement.abstract(state)
    program = make_segment(lambda settings: algorithm, placement, state, capacity=4)
    assert exported(program, {}, state, np.int32(0), np.int32(4)).platforms == PLATFORMS


def test_code_of_one_platform_is_noticed():
    """The negative control: a call into a library that export does not know."""
    with pytest.raises(ValueError, match="of_one_platform"):
        exported(jax.jit(lambda x: jax.ffi.ffi_call("of_one_platform", x)(x)), jnp.ones(3))
