"""Statistics over seeds (Agarwal et al. 2021, arXiv:2108.13264) and learning curves."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 2000
MANY_SEEDS = 100  # above, scipy's bootstrap takes seconds for a learning curve


def iqm(x: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the middle half along an axis; the outer quarters, rounded down to whole items, are left out.

    NaN if an item is NaN.
    """
    x = np.sort(np.moveaxis(x, axis, 0), axis=0)  # NaN comes last
    cut = len(x) // 4
    return np.where(np.isnan(x[-1]), np.nan, x[cut : len(x) - cut].mean(axis=0))


def worst_quarter(x: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the lowest quarter along an axis, rounded up to whole items; NaN if an item is NaN.

    The conditional value at risk across runs of Chan et al. 2020 (arXiv:1912.05663, section 4), at 25 %.
    """
    x = np.sort(np.moveaxis(x, axis, 0), axis=0)  # NaN comes last
    return np.where(np.isnan(x[-1]), np.nan, x[: -(-len(x) // 4)].mean(axis=0))


def bootstrap_interval(samples: list[np.ndarray], statistic: Callable) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile interval of a statistic of several samples, resampled each on its own (stratified).

    Args:
        samples: [..., num_seeds] each.
        statistic: called as statistic(*samples, axis=-1).

    Returns:
        low, high [...]; NaN if a sample has a single seed.
    """
    if min(x.shape[-1] for x in samples) < 2:
        return (np.full(samples[0].shape[:-1], np.nan),) * 2
    from scipy import stats  # imported here: it takes half a second

    batch = max(1, 10**7 // sum(x.size for x in samples))  # resamples at a time: bounds the memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the scores of a diverged seed may be NaN
        options = {"n_resamples": NUM_RESAMPLES, "method": "percentile", "batch": batch, "rng": 0}
        interval = stats.bootstrap(samples, statistic, axis=-1, vectorized=True, **options).confidence_interval
    return interval.low, interval.high


def confidence_interval(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap interval of the IQM over seeds. x [num_seeds, ...] -> low, high [...]; NaN for a
    single seed.

    The percentile method also holds where all seeds agree (the BCa method gives NaN there). The resamples are drawn
    from a fixed seed, so the same data give the same interval.
    """
    return _interval_of_many(x) if len(x) > MANY_SEEDS else bootstrap_interval([np.moveaxis(x, 0, -1)], iqm)


def _interval_of_many(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`confidence_interval` from resamples of ranks, which all columns share: each column is sorted only once."""
    rng, num_seeds, cut = np.random.default_rng(0), len(x), len(x) // 4
    x = np.where(np.isnan(x).any(axis=0), np.nan, np.sort(x, axis=0))
    draws = (np.sort(rng.integers(num_seeds, size=num_seeds, dtype=np.int32)) for _ in range(NUM_RESAMPLES))
    low, high = np.quantile([x[ranks[cut : num_seeds - cut]].mean(axis=0) for ranks in draws], (0.025, 0.975), axis=0)
    return low, high


def summarize(x: np.ndarray) -> dict[str, float]:
    """One score per seed, [num_seeds], -> mean, iqm, ci_low and ci_high of the iqm, worst_quarter, min, max."""
    low, high = confidence_interval(x)
    return {
        "mean": float(np.mean(x)),
        "iqm": float(iqm(x)),
        "ci_low": float(low),
        "ci_high": float(high),
        "worst_quarter": float(worst_quarter(x)),
        "min": float(np.min(x)),
        "max": float(np.max(x)),
    }


def rank(summaries: list[dict[str, float]], statistic: str = "iqm") -> list[int]:
    """Indices of summaries, the best first by this statistic; ties are broken by the mean. NaN is the worst."""
    scores = [[np.nan_to_num(summary[name], nan=-np.inf) for name in (statistic, "mean")] for summary in summaries]
    return sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)


def final_return(episode_return: np.ndarray, num_episodes: np.ndarray) -> np.ndarray:
    """Mean training return of each trial over the episodes of the last tenth of a run, NaN if none ended there.

    Args:
        episode_return: [num_trials, num_iterations], NaN where no episode ended.
        num_episodes: [num_trials, num_iterations].
    """
    last = max(1, episode_return.shape[1] // 10)
    returns, counts = episode_return[:, -last:], num_episodes[:, -last:]
    totals = np.where(counts > 0, returns * counts, 0.0).sum(axis=1)
    return np.where(counts.sum(axis=1) > 0, totals / np.maximum(counts.sum(axis=1), 1), np.nan)


@dataclass(frozen=True)
class Curve:
    """A learning curve."""

    env_steps: np.ndarray  # [num_points]
    returns: np.ndarray  # [num_seeds, num_points], of single seeds
    mean: np.ndarray  # [num_points]
    iqm: np.ndarray  # [num_points]
    ci_low: np.ndarray  # [num_points]
    ci_high: np.ndarray  # [num_points]


def evaluation_curve(env_steps: np.ndarray, returns: np.ndarray) -> Curve:
    """The curve of evaluations; env_steps [num_evaluations], returns [num_seeds, num_evaluations]."""
    return Curve(env_steps, returns, returns.mean(axis=0), iqm(returns), *confidence_interval(returns))


def learning_curve(
    env_steps: np.ndarray, episode_return: np.ndarray, num_episodes: np.ndarray, num_points: int = 100
) -> Curve:
    """The curve of the training return: the statistics over seeds in at most `num_points` bins of iterations.

    A bin holds the mean return of all episodes that ended in it; a seed without any keeps its last value. The curve
    starts where every seed has ended an episode; a seed that never ends one is left out.

    Args:
        env_steps: [num_iterations], env steps of one seed at the end of the iteration.
        episode_return: [num_seeds, num_iterations], NaN where no episode ended.
        num_episodes: [num_seeds, num_iterations].
    """
    edges = np.linspace(0, len(env_steps), min(num_points, len(env_steps)) + 1).astype(int)[:-1]
    ends = np.append(edges[1:], len(env_steps)) - 1
    counts = np.add.reduceat(num_episodes.astype(float), edges, axis=1)
    totals = np.add.reduceat(np.where(num_episodes > 0, episode_return * num_episodes, 0.0), edges, axis=1)
    returns = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)  # [num_seeds, num_bins]
    has_ended = np.any(counts > 0, axis=1)
    returns, counts = returns[has_ended], counts[has_ended]

    last = np.maximum.accumulate(np.where(counts > 0, np.arange(returns.shape[1]), -1), axis=1)
    first = int(np.max(np.argmax(last >= 0, axis=1), initial=0)) if len(returns) else returns.shape[1]
    returns = np.take_along_axis(returns, np.maximum(last, 0), axis=1)[:, first:]
    if returns.size == 0:
        nothing = np.empty(0)
        return Curve(nothing, returns[:, :0], nothing, nothing, nothing, nothing)
    return Curve(env_steps[ends][first:], returns, returns.mean(axis=0), iqm(returns), *confidence_interval(returns))


def probability_of_improvement(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    """P(A > B): the probability that a random seed of A scores higher than one of B, with its 95 % interval.

    The mean over environments of Mann-Whitney's U / (n m), in which ties count half (Agarwal et al. 2021, section 4.3).
    The bootstrap is stratified and of the percentile method. A seed without a score (NaN) counts as the worst.

    Args:
        pairs: the scores [num_seeds] of A and of B in each environment.
    """
    rng, values, resampled = np.random.default_rng(0), [], []
    for pair in pairs:
        a, b = (np.where(np.isnan(x), -np.inf, x) for x in pair)
        wins = np.where(a[:, None] == b, 0.5, a[:, None] > b)  # [n, m]
        # How often each seed is drawn in each resample, [NUM_RESAMPLES, n] and [NUM_RESAMPLES, m].
        counts = [rng.multinomial(len(x), np.full(len(x), 1 / len(x)), NUM_RESAMPLES) for x in (a, b)]
        values.append(wins.mean())
        resampled.append((counts[0] @ wins * counts[1]).sum(axis=1) / wins.size)
    has_interval = all(len(x) > 1 for pair in pairs for x in pair)
    low, high = np.quantile(np.mean(resampled, axis=0), (0.025, 0.975)) if has_interval else (np.nan, np.nan)
    return float(np.mean(values)), float(low), float(high)


def aggregate_iqm(samples: list[np.ndarray]) -> tuple[float, float, float]:
    """IQM over the normalised scores of several environments, weighted equally, with its 95 % interval.

    It is the `iqm` of all scores with those of each environment repeated, until all environments have equally many. NaN
    if a score is NaN.

    Args:
        samples: [num_seeds] for each environment.
    """
    size = math.lcm(*(len(x) for x in samples))
    weights = np.concatenate([np.full(len(x), float(size // len(x))) for x in samples])  # how often each is repeated
    total = len(samples) * size
    cut = total // 4

    def weighted_iqm(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        x = np.concatenate(samples, axis)
        order = np.argsort(x, axis)  # NaN comes last
        x, weight = np.take_along_axis(x, order, axis), weights[order]
        ends = weight.cumsum(axis)
        kept = np.clip(ends, cut, total - cut) - np.clip(ends - weight, cut, total - cut)
        is_kept = (kept > 0) | np.isnan(x)  # what is left out may be infinite
        return (np.where(is_kept, x, 0.0) * kept).sum(axis) / kept.sum(axis)

    low, high = bootstrap_interval(samples, weighted_iqm)
    return float(weighted_iqm(*samples)), float(low), float(high)


def performance_profile(samples: list[np.ndarray], taus: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share of seeds whose normalised score is above tau, the mean over environments, and its 95 % interval at each
    tau.

    Args:
        samples: [num_seeds] for each environment; NaN is above nothing.
        taus: [num_taus].

    Returns:
        share, low, high [num_taus].
    """
    is_above = [(x > taus[:, None]).astype(float) for x in samples]
    return mean_share(*is_above), *bootstrap_interval(is_above, mean_share)


def mean_share(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean over environments of a share of seeds; `samples`: 1 or 0, or 0.5 for a tie, of each seed."""
    return np.mean([x.mean(axis) for x in samples], axis=0)
