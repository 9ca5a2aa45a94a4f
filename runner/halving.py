"""Successive halving of a sweep: all settings are trained to a rung, and the best of them go on to the next one.

Jamieson & Talwalkar 2016 (arXiv:1502.07943, figure 1), with a factor as Hyperband has it (Li et al. 2018,
arXiv:1603.06560, section 3). A setting that goes on is not trained again: its seeds go on from where they are.
"""

import numpy as np

from runner.experiment import Experiment


def count_cuts(num_settings: int, factor: int) -> int:
    """Number of cuts of a sweep: as many as leave two settings, and at least one if there are `factor` settings."""
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
    return [count_places(num_settings, factor**i) for i in range(count_cuts(num_settings, factor) + 1)]


def describe_rungs(experiment: Experiment) -> str:
    """Say which rungs a halved sweep has, and which share of the env steps it takes."""
    config, num_settings = experiment.config, experiment.num_settings
    factor, total = experiment.halving_factor, config.env_steps(config.num_iterations)
    sizes, stops = plan_sizes(num_settings, factor), plan_stops(num_settings, config.num_iterations, factor)
    if len(stops) == 1:
        return f"--sweep-halve {factor} stops no setting: there are only {num_settings}"
    steps = [config.env_steps(stop) for stop in stops]
    lengths = np.diff(steps, prepend=0)
    share = np.dot(sizes, lengths) / (num_settings * total)
    rungs = ", ".join(f"{size} to {length:,}" for size, length in zip(sizes, steps, strict=True))
    return f"{len(stops)} rungs, settings to env steps: {rungs}; {share:.0%} of the env steps of the whole sweep"


def choose(scores: np.ndarray, untrained: np.ndarray, factor: int) -> np.ndarray:
    """Indices of the settings that go on, ascending: the best by the mean over seeds, one in `factor`, at least one,
    and all that tie with the last of these, so that the order of the settings decides nothing.

    The mean counts a seed that has begun to learn among others that have not, which the IQM would leave out. All go on
    while no seed of any setting scores better than it did untrained, or while every setting has a seed that diverged;
    then a setting stays behind only if its seeds have all diverged, and others' have not.

    Args:
        scores: [num_settings, num_seeds]; NaN of a seed that diverged: its setting takes no place, also not a free one.
        untrained: those of the same trials before training.
    """
    means = scores.mean(axis=1)
    best = np.sort(means[~np.isnan(means)])[::-1][: count_places(len(scores), factor)]
    if len(best) and (scores > untrained).any():
        return np.flatnonzero(means >= best[-1])
    all_diverged = np.isnan(scores).all(axis=1)
    return np.flatnonzero(~all_diverged | all_diverged.all())


def describe_cut(scores: np.ndarray, untrained: np.ndarray, factor: int) -> str:
    """Say how many settings `choose` keeps and, where these are more or fewer than the places, why."""
    num_places, num_chosen = count_places(len(scores), factor), len(choose(scores, untrained, factor))
    if not (scores > untrained).any():
        why = "no seed is better than it was untrained yet, "
    elif np.isnan(scores).any(axis=1).all():
        why = "every setting has a seed that diverged, "
    elif num_chosen > num_places:
        why = f"settings tie for the last of {num_places} places, "
    elif num_chosen < num_places:
        why = "all others have a seed that diverged, "
    else:
        why = ""
    number = f"all {num_chosen}" if num_chosen == len(scores) else f"{num_chosen} of {len(scores)} settings"
    return f"{why}{number} go on"


def count_places(num_settings: int, factor: int) -> int:
    """Number of settings that go on from a rung, if no two of them tie."""
    return max(1, num_settings // factor)
