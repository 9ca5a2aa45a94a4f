"""common/initializers.py: what makes an initialisation orthogonal, and that no LAPACK call is left."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SCRIPTS, small_config
from hypothesis import given, settings
from hypothesis import strategies as st

from common.initializers import orthogonal


def matrix(kernel):
    """A kernel as float64 [fewer, more], whichever of fan_in and fan_out that is."""
    kernel = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1])
    return kernel if kernel.shape[0] <= kernel.shape[1] else kernel.T


@settings(max_examples=20, deadline=None)
@given(
    shape=st.sampled_from([(4, 64), (64, 64), (64, 2), (64, 1), (1, 1), (3, 3, 4, 16), (300, 200)]),
    scale=st.sampled_from([0.01, 1.0, np.sqrt(2)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_orthogonal_and_of_length_scale(shape, scale, seed):
    kernel = orthogonal(scale)(jax.random.key(seed), shape)
    assert kernel.shape == shape
    assert kernel.dtype == jnp.float32
    rows = matrix(kernel) / scale
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=2e-6)


def test_uniform_over_rotations():
    """Every entry of a uniform n x n matrix has mean 0 and variance 1 / n, and so has the trace, times n."""
    keys = jax.random.split(jax.random.key(0), 4000)
    kernels = np.asarray(jax.jit(jax.vmap(lambda key: orthogonal(1.0)(key, (4, 4))))(keys), np.float64)
    np.testing.assert_allclose(kernels.mean(axis=0), 0, atol=5 * 0.5 / np.sqrt(4000))
    np.testing.assert_allclose((kernels**2).mean(axis=0), 1 / 4, atol=5 * 0.25 / np.sqrt(4000))
    traces = kernels.trace(axis1=1, axis2=2)
    np.testing.assert_allclose(traces.mean(), 0, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose((traces**2).mean(), 1, atol=5 * np.sqrt(2) / np.sqrt(4000))
    np.testing.assert_allclose(np.abs(np.linalg.det(kernels)), 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.det(kernels).mean(), 0, atol=5 / np.sqrt(4000))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_no_lapack_call_in_init(script):
    """On a CPU such calls can wait for each other for ever."""
    init = importlib.import_module(script).make(small_config(script)).init
    keys = jax.random.split(jax.random.key(0), 2)
    assert "lapack" not in jax.jit(jax.vmap(init)).lower(keys).as_text().lower()


def test_the_check_for_lapack_sees_it():
    assert "lapack" in jax.jit(jnp.linalg.qr).lower(jnp.eye(3)).as_text().lower()
