"""The methods of a comparison: runs and settings of sweeps with a label, and the environments they share."""

import dataclasses
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from runner.cli.sweep import short_texts
from runner.experiment import Part
from runner.files import store
from runner.files.record import read_record
from runner.report.statistics import Curve, evaluation_curve, final_return, learning_curve, rank, summarize

MAX_LINES = 6  # methods in the picture and in the table of pairs
MAX_FIELDS = 2  # settings in a label; runs that differ in more are told apart by the names of their folders
STEPS = ("env_steps", "eval_env_steps")  # arrays of metrics.npz that all lanes share
RETURNS = ("episode_return", "num_episodes", "eval_episode_return")


@dataclass(frozen=True)
class Line:
    """A method in one environment: a run, or one setting of a sweep."""

    directory: Path
    algorithm: str
    env: str
    fields: dict[str, Any]  # of the Config, with the setting of a sweep; in a labelled line its floats are texts
    swept: tuple[str, ...]  # names of the swept fields
    planned_seeds: int  # more than there are if the run was interrupted
    is_sampled: bool  # its evaluations: they sampled their actions, else they were greedy
    metrics: dict[str, np.ndarray]  # STEPS [n], RETURNS [num_seeds, n]
    label: str = ""
    is_evaluated: bool = True  # scored by its evaluation, else by its training return

    @property
    def has_evaluation(self) -> bool:
        """Whether the run was evaluated while it trained, or at its end, and not only before."""
        return max(self.metrics.get("eval_env_steps", ()), default=0) > 0

    @cached_property
    def scores(self) -> np.ndarray:
        """Final score of each seed, [num_seeds]: its last evaluation, or its training return over the last tenth."""
        if self.is_evaluated:
            return self.metrics["eval_episode_return"][:, -1]
        return final_return(self.metrics["episode_return"], self.metrics["num_episodes"])

    @cached_property
    def summary(self) -> dict[str, float]:
        """Statistics of the final scores over seeds."""
        return summarize(self.scores)

    @property
    def num_steps(self) -> int:
        """Env steps at which the final scores are taken."""
        return int(self.metrics["eval_env_steps" if self.is_evaluated else "env_steps"][-1])

    def curve(self) -> Curve:
        """The learning curve over seeds."""
        if not self.is_evaluated:
            return learning_curve(*(self.metrics[name] for name in ("env_steps", "episode_return", "num_episodes")))
        return evaluation_curve(self.metrics["eval_env_steps"], self.metrics["eval_episode_return"])


# -- Reading -----------------------------------------------------------------------------------------------------------


def read_lines(directory: Path) -> list[Line]:
    """The settings of a run; a run without a sweep is one. Raises ValueError if it cannot be read or has no metrics."""
    record = read_record(directory)
    env = record.config.get("env")
    if not isinstance(env, str):
        raise ValueError(f"{record.path} does not name the environment")
    if record.rungs and not (directory / store.METRICS).exists():
        raise ValueError(f"{directory} is a halved sweep that has not ended; continue it with --resume")
    arrays = _read_metrics(directory, record.parts)
    swept = tuple(name.removeprefix("sweep_") for name in arrays if name.startswith("sweep_"))
    lanes_of = defaultdict(dict)  # setting -> seed -> lane; a random sweep may draw the same setting twice
    for lane, seed in enumerate(arrays["seed"].tolist()):
        lanes_of[tuple(str(arrays[f"sweep_{name}"][lane]) for name in swept)].setdefault(seed, lane)
    lines, planned, is_sampled = [], record.options.get("num_seeds", 0), record.options.get("eval_sampled", False)
    for values, lanes in lanes_of.items():
        fields = record.config | dict(zip(swept, map(float, values), strict=True))
        metrics = {name: arrays[name] for name in STEPS if name in arrays}
        metrics |= {name: arrays[name][list(lanes.values())] for name in RETURNS if name in arrays}
        if "num_iterations" in arrays:
            metrics = _until(metrics, int(arrays["num_iterations"][next(iter(lanes.values()))]))
        lines.append(Line(directory, record.algorithm, env, fields, swept, planned, is_sampled, metrics))
    return lines


def _until(metrics: dict[str, np.ndarray], num_iterations: int) -> dict[str, np.ndarray]:
    """The metrics of a setting that a sweep stopped after so many iterations."""
    last = metrics["env_steps"][num_iterations - 1]
    return {name: x[..., metrics[_steps_of(name)] <= last] for name, x in metrics.items()}


def _read_metrics(directory: Path, parts: list[Part]) -> dict[str, np.ndarray]:
    """metrics.npz of a run; of one in parts that has not ended, the saved lanes at the env steps that all have."""
    whole = directory / store.METRICS
    folders = [store.part_folder(directory, parts, part) for part in parts]
    paths = [path for folder in folders if (path := folder / store.METRICS).exists()]
    if not paths or (whole.exists() and len(paths) < len(folders)):  # parts are never older than the whole
        paths = [whole]
    saved = [_check(path, store.read_arrays(path)) for path in paths]
    names = [name for name in saved[0] if all(name in part for part in saved)]
    joined = {name: reduce(np.intersect1d, [part[name] for part in saved]) for name in STEPS if name in names}
    for name in names:
        if name in RETURNS:
            steps = _steps_of(name)
            joined[name] = np.concatenate([part[name][:, np.isin(part[steps], joined[steps])] for part in saved])
        elif name in ("seed", "num_iterations") or name.startswith("sweep_"):
            joined[name] = np.concatenate([part[name] for part in saved])
    return joined


def _steps_of(name: str) -> str:
    """The array of STEPS that belongs to one of RETURNS."""
    return "eval_env_steps" if name.startswith("eval_") else "env_steps"


def _check(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Raise ValueError unless the arrays that a comparison reads fit together."""
    names = [*STEPS, *RETURNS] if "eval_env_steps" in arrays else ["env_steps", "episode_return", "num_episodes"]
    missing = {"seed", *names} - arrays.keys()
    if missing:
        raise ValueError(f"{path} is damaged: it has no {' and no '.join(sorted(missing))}")
    for name in names:
        steps = arrays[_steps_of(name)].shape
        if arrays[name].shape != (steps if name in STEPS else arrays["seed"].shape + steps) or len(steps) != 1:
            raise ValueError(f"{path} is damaged: {name} has the wrong shape {arrays[name].shape}")
    if arrays["episode_return"].size == 0:
        raise ValueError(f"{path} is empty: the run ended before its first iteration")
    return arrays


# -- Labels and environments -------------------------------------------------------------------------------------------


def label_lines(lines: list[Line], labels: dict[Path, str]) -> list[Line]:
    """Give each line its label. Lines with one label in different environments are one method.

    Args:
        labels: of each run; empty: the algorithm, and what tells it apart where an environment has several lines of it.

    Raises:
        ValueError: two lines of an environment have the same label.
    """
    names, lines = {}, _with_short_texts(lines)
    for algorithm in {line.algorithm for line in lines}:
        same = [line for line in lines if line.algorithm == algorithm]
        names[algorithm] = iter([_label(labels[x.directory], x, x.swept) for x in same] if labels else _name(same))
    labelled = [dataclasses.replace(line, label=next(names[line.algorithm])) for line in lines]
    (env, label), count = Counter((line.env, line.label) for line in labelled).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{count} runs of {env} have the label {label!r}; give each run its own with --labels")
    return labelled


def _with_short_texts(lines: list[Line]) -> list[Line]:
    """The lines, with texts that tell them apart instead of the numbers of fields that are floats."""
    texts = {}
    for name in {name for line in lines for name in line.fields}:
        texts[name] = short_texts(x for line in lines if isinstance(x := line.fields.get(name), float))
    fields = [{name: texts[name][x] if isinstance(x, float) else x for name, x in y.fields.items()} for y in lines]
    return [dataclasses.replace(line, fields=x) for line, x in zip(lines, fields, strict=True)]


def _name(lines: list[Line]) -> list[str]:
    """Labels of the lines of one algorithm, by the settings in which they differ within an environment, or else by the
    names of their folders."""
    swept, differing = {name for line in lines for name in line.swept}, set()
    for env in {line.env for line in lines}:
        same = [line.fields for line in lines if line.env == env]
        names = set().union(*same)
        differing |= {name for name in names if len({repr(fields.get(name)) for fields in same}) > 1}
    names = [_label(line.algorithm, line, swept | differing) for line in lines]
    is_unique = len(set(zip((line.env for line in lines), names, strict=True))) == len(lines)
    if is_unique and len(differing - swept) <= MAX_FIELDS:
        return names
    return [_label(f"{line.algorithm} {line.directory.resolve().name}", line, line.swept) for line in lines]


def _label(name: str, line: Line, shown: set[str] | tuple[str, ...]) -> str:
    return " ".join([name, *(f"{field}={value}" for field, value in line.fields.items() if field in shown)])


def by_environment(lines: list[Line]) -> dict[str, list[Line]]:
    """The lines of each environment, scored alike: by training returns unless all of them were evaluated."""
    environments = {}
    for env in dict.fromkeys(line.env for line in lines):
        same = [line for line in lines if line.env == env]
        is_evaluated = all(line.has_evaluation for line in same)
        environments[env] = [dataclasses.replace(line, is_evaluated=is_evaluated) for line in same]
    return environments


def best_labels(environments: dict[str, list[Line]]) -> list[str]:
    """At most MAX_LINES labels in their order: those whose rank by IQM, on average over environments, is the best."""
    ranks = defaultdict(list)
    for lines in environments.values():
        for place, index in enumerate(rank([line.summary for line in lines])):
            ranks[lines[index].label].append(place)
    best = sorted(ranks, key=lambda label: np.mean(ranks[label]))[:MAX_LINES]
    labels = dict.fromkeys(line.label for lines in environments.values() for line in lines)
    return [label for label in labels if label in best]
