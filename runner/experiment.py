"""The trials and parts of a run and its progress: the data types that the other modules share."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from runner.options.fields import Options

EVAL_STEPS, EVAL_METRICS = "eval_env_steps", ("eval_episode_return", "eval_episode_length")
MAX_NAMES = 20  # trials in a list


@dataclass(frozen=True)
class Experiment:
    """The trials of a run: every seed of every setting.

    Trial i is seed i % num_seeds of setting i // num_seeds; only this class knows this order.
    """

    script: str  # path of the script
    make: Callable  # Config -> Algorithm
    config: Any
    options: Options
    settings: dict[str, np.ndarray]  # swept field -> float32 [num_settings]; empty without a sweep

    @property
    def algorithm(self) -> str:
        """Name of the script."""
        return Path(self.script).stem

    @property
    def env(self) -> Any:
        """The Environment."""
        from common.environment import make_env  # and with it flax, for which a comparison does not wait

        return make_env(self.config.env)

    @property
    def policy(self) -> str:
        """How evaluations choose actions."""
        return "sampled" if self.options.eval_sampled else "greedy"

    @property
    def num_settings(self) -> int:
        """Number of settings; 1 without a sweep."""
        return len(next(iter(self.settings.values()), [None]))

    @property
    def num_trials(self) -> int:
        """Number of trials in the whole run."""
        return self.num_settings * self.options.num_seeds

    @property
    def trial_seeds(self) -> np.ndarray:
        """Seed of each trial, uint32 [num_trials]."""
        seeds = np.arange(self.options.seed, self.options.seed + self.options.num_seeds)
        return np.tile(seeds, self.num_settings).astype(np.uint32)

    @property
    def trial_settings(self) -> dict[str, np.ndarray]:
        """Setting of each trial, swept field -> float32 [num_trials]."""
        return {name: np.repeat(values, self.options.num_seeds) for name, values in self.settings.items()}

    @property
    def is_halved(self) -> bool:
        """Whether some settings of a sweep may be stopped early."""
        return self.options.sweep_halve != "off"

    @property
    def halving_factor(self) -> int:
        """The factor of --sweep-halve: one in this many settings goes on after each rung."""
        return int(self.options.sweep_halve)

    def select(self, settings: Sequence[int]) -> "Experiment":
        """The experiment of some of the settings, in this order."""
        return dataclasses.replace(self, settings={name: x[list(settings)] for name, x in self.settings.items()})

    def trials_at(self, settings: Sequence[int]) -> np.ndarray:
        """The trials of some settings, in this order."""
        return self.by_setting(np.arange(self.num_trials))[list(settings)].ravel()

    def trials_of(self, part: "Part") -> dict[str, np.ndarray]:
        """Seed and swept fields of the trials of a part, as metrics.npz has them."""
        settings = {f"sweep_{name}": x for name, x in self.trial_settings.items()}
        trials = {"seed": self.trial_seeds} | settings
        return {name: x[part.start : part.stop] for name, x in trials.items()}

    def trial(self, seed_index: int, setting_index: int) -> int:
        """The trial of a seed and a setting, both counted from 0. Raises ValueError if there is none."""
        counts = {"seeds": (seed_index, self.options.num_seeds), "settings": (setting_index, self.num_settings)}
        for what, (index, count) in counts.items():
            if not 0 <= index < count:
                raise ValueError(f"the run has {what} 0 to {count - 1}, not {index}")
        return setting_index * self.options.num_seeds + seed_index

    def by_setting(self, x: np.ndarray) -> np.ndarray:
        """Values of the trials, [num_trials, ...] -> [num_settings, num_seeds, ...]."""
        return x.reshape(self.num_settings, self.options.num_seeds, *x.shape[1:])

    def setting(self, index: int) -> dict[str, float]:
        """One setting, as the shortest decimals that round to the same float32."""
        return {name: float(str(values[index])) for name, values in self.settings.items()}

    def name_setting(self, index: int) -> str:
        """`learning_rate=0.001 gamma=0.99`, with no more digits than tell the settings apart; empty without a sweep."""
        return " ".join(f"{name}={self._short_texts[name][value]}" for name, value in self.setting(index).items())

    @cached_property
    def _short_texts(self) -> dict[str, dict[float, str]]:
        """Swept field -> value -> its text."""
        return {name: short_texts(float(str(value)) for value in values) for name, values in self.settings.items()}

    def name_trial(self, trial: int) -> str:
        """`seed 3`, in a sweep with its setting."""
        setting = self.name_setting(trial // self.options.num_seeds)
        return f"seed {self.trial_seeds[trial]}" + (f" at {setting}" if setting else "")

    def name_trials(self, trials: np.ndarray) -> str:
        """`seed 3, seed 5`; after MAX_NAMES trials only how many more."""
        names = [self.name_trial(trial) for trial in trials[:MAX_NAMES]]
        return ", ".join(names) + (f" and {len(trials) - MAX_NAMES} more" if len(trials) > MAX_NAMES else "")

    def make_trial(self, settings: dict[str, jax.Array]) -> Any:
        """The Algorithm of one trial; settings: swept field -> []."""
        return self.make(dataclasses.replace(self.config, **settings))

    def env_steps(self, num_iterations: int) -> np.ndarray:
        """Env steps of one trial at the end of each of the first iterations, int64 [num_iterations]."""
        return self.config.env_steps(np.arange(1, num_iterations + 1))


class Part(NamedTuple):
    """Trials start to stop - 1, which one process trains at once."""

    start: int
    stop: int

    @property
    def num_trials(self) -> int:
        """Number of trials."""
        return self.stop - self.start


def split_trials(num_trials: int, num_processes: int, trials_per_batch: int) -> list[Part]:
    """Parts of at most `trials_per_batch` trials in order, the same number for each process."""
    num_parts = num_processes * -(-num_trials // (num_processes * trials_per_batch))
    bounds = [-(-num_trials * i // num_parts) for i in range(num_parts + 1)]
    return [Part(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]


class Rung(NamedTuple):
    """Settings that are trained until an iteration. A sweep that is halved has several rungs, any other run one."""

    settings: tuple[int, ...]
    stop: int
    parts: list[Part]  # of the trials, counted within the rung; empty: not known yet


class Progress(NamedTuple):
    """Progress of a part."""

    iteration: int
    state: Any  # of its trials, with padding
    metrics: dict[str, np.ndarray]  # [num_trials, iteration]; empty at the start
    evaluations: dict[str, np.ndarray]  # eval_env_steps [n], the others [num_trials, n]; empty before the first one


class Result(NamedTuple):
    """The results of a part, or of all trials, for the report."""

    metrics: dict[str, np.ndarray]  # [num_trials, num_iterations]
    evaluations: dict[str, np.ndarray]  # while training and at the end, as in Progress
    scores: dict[str, np.ndarray]  # [num_trials]: is_healthy (parameters are finite), scores of the evaluation
    num_iterations: np.ndarray  # [num_trials], that a trial was trained; behind them metrics are NaN, or 0 if integers


def join_results(results: list[Result]) -> Result:
    """Join parts that follow each other. A score or an evaluation that a part lacks is left out."""
    stops = np.cumsum([len(x.num_iterations) for x in results])
    env_steps = reduce(np.intersect1d, map(_evaluated, results))
    return _join(results, np.split(np.arange(stops[-1]), stops[:-1]), env_steps)


def join_rungs(experiment: Experiment, rungs: list[Rung], results: list[Result]) -> Result:
    """Join the rungs of a sweep that was halved: each trial has the results of the last rung that trained it."""
    left = [rung.settings != following.settings for rung, following in itertools.pairwise(rungs)]  # by some setting
    rungs, results = ([x for x, is_left in zip(y, [*left, True], strict=True) if is_left] for y in (rungs, results))
    return _join(results, [experiment.trials_at(rung.settings) for rung in rungs], _evaluated(results[-1]))


def _evaluated(result: Result) -> np.ndarray:
    return result.evaluations.get(EVAL_STEPS, np.empty(0, int))


def _join(results: list[Result], trials: list[np.ndarray], env_steps: np.ndarray) -> Result:
    """Write the results of these trials over each other, with the evaluations at `env_steps`. What a trial
    lacks is NaN, or 0 if it is an integer; names that one of the results lacks are left out."""
    num_trials = 1 + max(int(x.max()) for x in trials)

    def join(trees, columns, shown):  # arrays [trials of the result, columns of the result]
        joined = {}
        for name, last in trees[-1].items():
            if all(name in tree for tree in trees):
                empty = np.nan if np.issubdtype(last.dtype, np.floating) else 0
                joined[name] = np.full((num_trials, len(shown)), empty, last.dtype)
                for rows, tree, places in zip(trials, trees, columns, strict=True):
                    kept = np.isin(places, shown)
                    joined[name][np.ix_(rows, np.searchsorted(shown, places[kept]))] = tree[name][:, kept]
        return joined

    def join_numbers(trees):
        joined = join([{name: x[:, None] for name, x in tree.items()} for tree in trees], [one] * len(trees), one)
        return {name: x[:, 0] for name, x in joined.items()}

    one, lengths = np.zeros(1, int), [int(x.num_iterations.max()) for x in results]
    metrics = join([x.metrics for x in results], list(map(np.arange, lengths)), np.arange(lengths[-1]))
    curves = [{name: y for name, y in x.evaluations.items() if name != EVAL_STEPS} for x in results]
    joined = join(curves, list(map(_evaluated, results)), env_steps)
    evaluations = {EVAL_STEPS: env_steps} | joined if joined and len(env_steps) else {}
    num_iterations = join_numbers([{"": x.num_iterations} for x in results])[""]
    return Result(metrics, evaluations, join_numbers([x.scores for x in results]), num_iterations)


def append_evaluation(
    evaluations: dict[str, np.ndarray], env_steps: int, scores: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Add the scores [num_trials] of an evaluation at this env step, in place of an earlier one at the same step."""
    before = until(evaluations, env_steps - 1)
    new = {EVAL_STEPS: np.array([env_steps])} | {name: scores[name][:, None] for name in EVAL_METRICS}
    return {name: np.concatenate([before[name], x], axis=-1) if before else x for name, x in new.items()}


def until(evaluations: dict[str, np.ndarray], env_steps: int) -> dict[str, np.ndarray]:
    """The evaluations up to this env step."""
    return {name: x[..., evaluations[EVAL_STEPS] <= env_steps] for name, x in evaluations.items()}


def append_metrics(metrics: dict[str, np.ndarray], records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Join [num_trials, n] and [num_trials, m] of each metric; `metrics` may be empty."""
    return {name: np.concatenate([metrics[name], x], axis=1) if metrics else x for name, x in records.items()}


def short_texts(values: Iterable[float]) -> dict[float, str]:
    """Each value as text: 4 significant digits, or as many more as it takes to tell all of them apart."""
    unique = set(values)
    for digits in range(4, 18):  # with 17 no two floats look equal
        texts = {value: str(float(f"{value:.{digits}g}")) for value in unique}
        if len(set(texts.values())) == len(unique):
            break
    return texts
