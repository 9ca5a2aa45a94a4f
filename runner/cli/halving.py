"""Successive halving of a sweep: all settings are trained to a rung, and the best of them go on to the next one.

Jamieson & Talwalkar 2016 (arXiv:1502.07943, figure 1), with a factor as Hyperband has it (Li et al. 2018,
arXiv:1603.06560, section 3). A setting that goes on is not trained again: its seeds go on from where they are.
"""

import numpy as np


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
    while no seed of any setting scores better than it did untrained.

    Args:
        scores: [num_settings, num_seeds]; NaN, of a seed that diverged, is the worst.
        untrained: those of the same lanes before training.
    """
    if not (scores > untrained).any():
        return np.arange(len(scores))
    means = np.nan_to_num(scores.mean(axis=1), nan=-np.inf)
    return np.sort(np.argsort(-means, kind="stable")[: max(1, len(scores) // factor)])
