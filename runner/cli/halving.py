"""Successive halving of a sweep: all settings are trained to a rung, and the best of them go on to the next one.

Jamieson & Talwalkar 2016 (arXiv:1502.07943, figure 1), with a factor as Hyperband has it (Li et al. 2018,
arXiv:1603.06560, section 3). A setting that goes on is not trained again: its seeds go on from where they are.
"""

import numpy as np

CERTAINTY = 2.0  # standard errors above the untrained policy from which a setting has learned something


def count_cuts(num_settings: int, factor: int) -> int:
    """How often a sweep is cut: while two settings are left behind the cut, and once if there are `factor` settings."""
    cuts = 0
    while num_settings // factor ** (cuts + 1) >= 2:
        cuts += 1
    return max(cuts, int(num_settings >= factor))


def plan_stops(num_settings: int, num_iterations: int, factor: int) -> list[int]:
    """Iterations at which the rungs end, the last one with the run: 1/9, 1/3 and all of them with a factor of 3.

    Raises:
        ValueError: a rung would have no iteration of its own.
    """
    cuts = count_cuts(num_settings, factor)
    stops = [-(-num_iterations // factor**i) for i in range(cuts, -1, -1)]
    if len(set(stops)) < len(stops):
        raise ValueError(
            f"sweep_halve = {factor} has {len(stops)} rungs for {num_settings} settings, and the run only "
            f"{num_iterations} iterations; raise --total-timesteps"
        )
    return stops


def plan_sizes(num_settings: int, factor: int) -> list[int]:
    """Settings in each rung, if every rung but the last is cut."""
    return [max(1, num_settings // factor**i) for i in range(count_cuts(num_settings, factor) + 1)]


def choose(scores: np.ndarray, untrained: np.ndarray, factor: int) -> np.ndarray:
    """Indices of the settings that go on, ascending: the best of their means over seeds, one in `factor`, at least one.

    The mean counts a seed that has begun to learn among others that have not, which the IQM would leave out. All go on
    where no setting is better than the untrained policy.

    Args:
        scores: [num_settings, num_seeds]; NaN, of a seed that diverged, is the worst.
        untrained: those of the same lanes before training.
    """
    means = np.nan_to_num(scores.mean(axis=1), nan=-np.inf)
    margin = CERTAINTY * untrained.std() / np.sqrt(untrained.shape[1])
    if means.max() <= untrained.mean() + margin:
        return np.arange(len(scores))
    return np.sort(np.argsort(-means, kind="stable")[: max(1, len(scores) // factor)])
