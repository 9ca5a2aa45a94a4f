"""The methods of a comparison: runs and settings of sweeps with a label, and the environments they share."""

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from runner.experiment import short_texts
from runner.files import store
from runner.files.record import Record, read_record
from runner.options.fields import Options
from runner.report.statistics import Curve, evaluation_curve, final_return, learning_curve, rank, summarize

MAX_METHODS = 6  # methods in the picture and in the table of pairs
MAX_FIELDS = 2  # settings in a label; runs that differ in more are told apart by the names of their folders
STEPS = ("env_steps", "eval_env_steps")  # arrays of metrics.npz that all trials share
SWEPT = "sweep_"  # before the name of a swept field
RETURNS = ("episode_return", "num_episodes", "eval_episode_return")
TRIALS = ("seed", "is_healthy")  # one value for each trial
# Options on which final scores depend; when a run was evaluated before its end decides nothing.
SCORING = ("eval_episodes", "eval_sampled", "eval_max_steps")
OPTIONS = (*SCORING, "matmul_precision")  # which one method has in common


@dataclass(frozen=True)
class Method:
    """A method in one environment: a run, or one setting of a sweep."""

    directory: Path
    algorithm: str
    env: str
    fields: dict[str, Any]  # of the Config, with the setting of a sweep; in a labelled method its floats are texts
    swept: tuple[str, ...]  # names of the swept fields
    planned_seeds: int  # more than there are if the run was interrupted
    options: dict[str, Any]  # OPTIONS
    metrics: dict[str, np.ndarray]  # STEPS [n], RETURNS [num_seeds, n], TRIALS [num_seeds]
    label: str = ""
    is_evaluated: bool = True  # scored by its evaluation, else by its training return
    num_runs: int = 1  # runs that the seeds come from

    @property
    def has_evaluation(self) -> bool:
        """Whether the run was evaluated while it trained, or at its end, and not only before."""
        return max(self.metrics.get("eval_env_steps", ()), default=0) > 0

    @cached_property
    def scores(self) -> np.ndarray:
        """Final score of each seed, [num_seeds]: its last evaluation, or its training return over the last tenth. NaN
        if it diverged: of NaN in its parameters argmax makes a policy, which has a score."""
        if self.is_evaluated:
            scores = self.metrics["eval_episode_return"][:, -1]
        else:
            scores = final_return(self.metrics["episode_return"], self.metrics["num_episodes"])
        return np.where(self.metrics["is_healthy"], scores, np.nan)

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


def read_methods(directory: Path) -> list[Method]:
    """The settings of a run; a run without a sweep is one. Raises ValueError if it cannot be read or has no metrics."""
    record = read_record(directory)
    env, defaults = record.config.get("env"), dataclasses.asdict(Options())
    if not isinstance(env, str) or not env.isprintable():
        raise ValueError(f"{record.path} does not name the environment")
    options = {name: record.options.get(name, defaults[name]) for name in ("num_seeds", *OPTIONS)}
    planned = options.pop("num_seeds")
    if record.rungs and not (directory / store.METRICS).exists():
        raise ValueError(f"{directory} is a halved sweep that has not ended; continue it with --resume")
    arrays = _read_metrics(directory, record)
    # Iterations of each trial; a sweep may have stopped a setting early.
    ends = arrays.get("num_iterations", np.full(arrays["seed"].shape, len(arrays["env_steps"])))
    swept, trials_of = tuple(name.removeprefix(SWEPT) for name in arrays if name.startswith(SWEPT)), defaultdict(dict)
    for trial, seed in enumerate(arrays["seed"].tolist()):
        values = tuple(str(arrays[SWEPT + name][trial]) for name in swept)
        trials_of[values].setdefault(seed, trial)  # a random sweep may draw the same setting twice
    methods = []
    for values, trials in trials_of.items():
        fields = record.config | dict(zip(swept, map(float, values), strict=True))
        rows = list(trials.values())
        last = arrays["env_steps"][ends[rows[0]] - 1]
        metrics = {name: arrays[name][rows] for name in TRIALS}
        for name in {*STEPS, *RETURNS} & arrays.keys():
            x = arrays[name] if name in STEPS else arrays[name][rows]
            metrics[name] = x[..., arrays[_steps_of(name)] <= last]
        methods.append(Method(directory, record.algorithm, env, fields, swept, planned, options, metrics))
    return methods


def _read_metrics(directory: Path, record: Record) -> dict[str, np.ndarray]:
    """metrics.npz of a run; of one in parts that has not ended, the saved trials at the env steps that all have."""
    whole = directory / store.METRICS
    folders = [store.part_folder(directory, record.parts, part) for part in record.parts]
    paths = [path for folder in folders if (path := folder / store.METRICS).exists()]
    if not paths or (whole.exists() and len(paths) < len(folders)):  # parts are never older than the whole
        paths = [whole]
    saved = [_check(path, store.read_arrays(path)) for path in paths]
    return _join(saved)


def _join(saved: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The trials of several metrics.npz at the env steps that all have."""
    names = [name for name in saved[0] if all(name in part for part in saved)]
    joined = {name: reduce(np.intersect1d, [part[name] for part in saved]) for name in STEPS if name in names}
    for name in names:
        if name in RETURNS:
            steps = _steps_of(name)
            joined[name] = np.concatenate([part[name][:, np.isin(part[steps], joined[steps])] for part in saved])
        elif name in (*TRIALS, "num_iterations") or name.startswith(SWEPT):
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
    return {"is_healthy": np.ones(arrays["seed"].shape, bool)} | arrays  # a run of before this array has none


# -- Labels and environments -------------------------------------------------------------------------------------------


def label_methods(methods: list[Method], labels: dict[Path, str]) -> list[Method]:
    """Give each method its label, under which it stands in every environment.

    Args:
        labels: of each run; empty: the algorithm, with what tells its methods in one environment apart.

    Returns:
        the methods; those of one environment with one label are joined.

    Raises:
        ValueError: methods of an environment have the same label and cannot be one method.
    """
    names, methods = {}, _with_short_texts(methods)
    for algorithm in {method.algorithm for method in methods}:
        same = [method for method in methods if method.algorithm == algorithm]
        names[algorithm] = iter([_label(labels[x.directory], x, x.swept) for x in same] if labels else _name(same))
    labelled = [dataclasses.replace(method, label=next(names[method.algorithm])) for method in methods]
    pooled = defaultdict(list)
    for method in labelled:
        pooled[method.env, method.label].append(method)
    return [_pool(same) for same in pooled.values()]


def _pool(methods: list[Method]) -> Method:
    """The seeds of several runs with one label as one method. Raises ValueError if their settings differ or they share
    a seed."""
    first, *others = methods
    if not others:
        return first
    settings = [{"script": method.algorithm} | method.fields | method.options for method in methods]
    differing = sorted(name for name in set().union(*settings) if len({repr(x.get(name)) for x in settings}) > 1)
    values = [f"{name} ({', '.join(dict.fromkeys(_text(x.get(name)) for x in settings))})" for name in differing]
    seeds, counts = np.unique(np.concatenate([method.metrics["seed"] for method in methods]), return_counts=True)
    if values or counts.max() > 1:
        more = f" and {len(values) - MAX_FIELDS} more" if len(values) > MAX_FIELDS else ""
        why = f"differ in {', '.join(values[:MAX_FIELDS])}{more}" if values else f"share seed {seeds[counts.argmax()]}"
        what = f"{len(methods)} runs of {first.env} have the label {first.label!r} and {why}"
        raise ValueError(f"{what}; give each run its own with --labels")
    metrics = _join([method.metrics for method in methods])
    planned = sum(method.planned_seeds for method in methods)
    return dataclasses.replace(first, metrics=metrics, planned_seeds=planned, num_runs=len(methods))


def _with_short_texts(methods: list[Method]) -> list[Method]:
    """The methods, with texts that tell them apart instead of the numbers of fields that are floats."""
    texts = {}
    for name in {name for method in methods for name in method.fields}:
        texts[name] = short_texts(x for method in methods if isinstance(x := method.fields.get(name), float))
    fields = [{name: texts[name][x] if isinstance(x, float) else x for name, x in y.fields.items()} for y in methods]
    return [dataclasses.replace(method, fields=x) for method, x in zip(methods, fields, strict=True)]


def _name(methods: list[Method]) -> list[str]:
    """Labels of the methods of one algorithm, by the settings in which they differ within an environment, or else by
    the names of their folders."""
    swept, differing = {name for method in methods for name in method.swept}, set()
    for env in {method.env for method in methods}:
        same = [method.fields for method in methods if method.env == env]
        names = set().union(*same)
        differing |= {name for name in names if len({repr(fields.get(name)) for fields in same}) > 1}
    names = [_label(method.algorithm, method, swept | differing) for method in methods]
    is_unique = len(set(zip((method.env for method in methods), names, strict=True))) == len(methods)
    if is_unique and len(differing - swept) <= MAX_FIELDS:
        return names
    return [_label(f"{method.algorithm} {method.directory.resolve().name}", method, method.swept) for method in methods]


def _label(name: str, method: Method, shown: set[str] | tuple[str, ...]) -> str:
    return " ".join([name, *(f"{field}={_text(value)}" for field, value in method.fields.items() if field in shown)])


def _text(value: Any) -> str:
    """A setting as text that a terminal can show."""
    return str(value) if str(value).isprintable() else repr(value)


def by_environment(methods: list[Method]) -> dict[str, list[Method]]:
    """The methods of each environment, scored alike: by training returns unless all of them were evaluated."""
    environments = {}
    for env in dict.fromkeys(method.env for method in methods):
        same = [method for method in methods if method.env == env]
        is_evaluated = all(method.has_evaluation for method in same)
        environments[env] = [dataclasses.replace(method, is_evaluated=is_evaluated) for method in same]
    return environments


def best_labels(environments: dict[str, list[Method]]) -> list[str]:
    """At most MAX_METHODS labels in their order, the best by their mean rank over environments, by IQM."""
    ranks = defaultdict(list)
    for methods in environments.values():
        for place, index in enumerate(rank([method.summary for method in methods])):
            ranks[methods[index].label].append(place)
    best = sorted(ranks, key=lambda label: np.mean(ranks[label]))[:MAX_METHODS]
    labels = dict.fromkeys(method.label for methods in environments.values() for method in methods)
    return [label for label in labels if label in best]
