"""common/hl_gauss.py: histograms of known Gaussians, their means, the ends of the range, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from common.hl_gauss import SIGMA, histogram_mean, hl_gauss

LOW, HIGH, NUM_BINS = -10.0, 30.0, 80  # a bin is 0.5 wide


@settings(max_examples=30, deadline=None)
@given(st.floats(LOW, HIGH))
def test_bins_hold_what_the_gaussian_has_there(value):
    edges = np.linspace(LOW, HIGH, NUM_BINS + 1)
    cdf = stats.norm.cdf(edges, np.float32(value), SIGMA * 0.5)
    expected = np.diff(cdf) / (cdf[-1] - cdf[0])
    np.testing.assert_allclose(hl_gauss(jnp.float32(value), LOW, HIGH, NUM_BINS), expected, atol=2e-5)


def test_the_mean_of_a_histogram_is_the_value():
    values = jnp.linspace(LOW + 2, HIGH - 2, 1_000)
    probabilities = hl_gauss(values, LOW, HIGH, NUM_BINS)
    assert probabilities.shape == (1_000, NUM_BINS)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, rtol=1e-5)
    logits = jnp.log(probabilities + 1e-30)
    np.testing.assert_allclose(histogram_mean(logits, LOW, HIGH), values, atol=5e-3)


@pytest.mark.parametrize(("value", "end"), [(HIGH + 100, -1), (HIGH, -1), (LOW - 100, 0), (LOW, 0)])
def test_values_outside_count_as_the_ends(value, end):
    """At an end the Gaussian is cut in half: most is in the last bin, and the mean is less than a bin away."""
    probabilities = np.asarray(hl_gauss(jnp.float32(value), LOW, HIGH, NUM_BINS))
    assert probabilities.argmax() == end % NUM_BINS
    np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-5)
    mean = histogram_mean(jnp.log(probabilities + 1e-30), LOW, HIGH)
    assert 0 < abs(mean - (HIGH if end else LOW)) < 0.5


def test_a_histogram_is_learned_by_cross_entropy():
    """The gradient of the logits is the difference of the probabilities; the range may be a tracer."""
    target = hl_gauss(jnp.float32(3.2), LOW, HIGH, NUM_BINS)

    @jax.jit
    def gradient(logits, low, high):
        loss = lambda logits: -(hl_gauss(jnp.float32(3.2), low, high, NUM_BINS) * jax.nn.log_softmax(logits)).sum()
        return jax.grad(loss)(logits)

    logits = jax.random.normal(jax.random.key(0), (NUM_BINS,))
    np.testing.assert_allclose(gradient(logits, LOW, HIGH), jax.nn.softmax(logits) - target, atol=1e-6)
    assert np.isfinite(jax.grad(lambda logits: histogram_mean(logits, LOW, HIGH))(logits)).all()
