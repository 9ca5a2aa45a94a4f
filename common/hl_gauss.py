"""HL-Gauss: values as histograms, learned by cross-entropy (Farebrother et al. 2024, arXiv:2403.03950)."""

import jax
import jax.numpy as jnp

SIGMA = 0.75  # std of the Gaussian, in bins (section 3.1)


def hl_gauss(values: jax.Array, low: float, high: float, num_bins: int) -> jax.Array:
    """Probabilities [..., num_bins] of a Gaussian around each value [...], cut off at the ends of the range.

    Bins divide [low, high] evenly; values outside count as its ends. The cut draws the mean inward where an end is
    less than two bins away, by 0.7 of a bin at the end itself.
    """
    width = (high - low) / num_bins
    edges = low + width * jnp.arange(num_bins + 1, dtype=jnp.float32)
    values = jnp.clip(values, low, high)[..., None]
    z = (jnp.broadcast_to(edges, (*values.shape[:-1], num_bins + 1)) - values) / (SIGMA * width)
    cdf = jax.scipy.stats.norm.cdf(z)  # [..., num_bins + 1]
    return (cdf[..., 1:] - cdf[..., :-1]) / (cdf[..., -1:] - cdf[..., :1])


def histogram_mean(logits: jax.Array, low: float, high: float) -> jax.Array:
    """Mean of a histogram over [low, high], from its logits [..., num_bins] -> [...]."""
    num_bins = logits.shape[-1]
    centers = low + (high - low) * (jnp.arange(num_bins, dtype=jnp.float32) + 0.5) / num_bins
    return jax.nn.softmax(logits) @ centers
