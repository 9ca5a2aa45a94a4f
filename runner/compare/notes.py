"""Notes under the tables of a comparison: how methods were scored, and what is missing."""

from collections import defaultdict

import numpy as np

from runner.compare.comparison import MAX_METHODS, SCORING, Method

# Below, 95 % bootstrap intervals are too short: those of P(A > B) of two equal normal distributions leave out 0.5 with
# 3, 5 and 8 seeds in 21, 11 and 5 % of cases.
FEW_SEEDS = 8
MAX_NAMES = 4  # in a list


def make_notes(environments: dict[str, list[Method]], shown: list[str], bounds: dict[str, tuple]) -> list[str]:
    """The notes of a comparison, one sentence each.

    Args:
        environments: the methods of each.
        shown: labels of the methods that are drawn.
        bounds: of the environments that have some.
    """
    notes = []
    for env, methods in environments.items():
        notes += _environment_notes(env, methods)
    every = [method for methods in environments.values() for method in methods]
    if any(1 < len(method.scores) < FEW_SEEDS for method in every):
        notes.append(
            f"intervals of fewer than {FEW_SEEDS} seeds are too short: they miss the truth more often than 5 %"
        )
    labels = list(dict.fromkeys(method.label for method in every))
    if len(shown) < len(labels):
        average = ", on average over environments" if len(environments) > 1 else ""
        notes.append(f"the picture and P(A > B) have the best {MAX_METHODS} of {len(labels)} methods, by IQM{average}")
    partial = [label for label in labels if sum(method.label == label for method in every) < len(environments)]
    if partial:
        notes.append(f"not run in every environment, so not in what is taken over all of them: {_join(partial)}")
    missing = [env for env in environments if env not in bounds]
    if missing and len(environments) > 1:
        notes.append(f"no aggregate over environments: --bounds has no ENV=LOW:HIGH for {_join(missing)}")
    elif bounds:
        ranges = ", ".join(f"{low:g} to {high:g} in {env}" for env, (low, high) in bounds.items())
        notes.append(f"normalised scores are 0 to 1 where returns are {ranges}")
    return notes


def _environment_notes(env: str, methods: list[Method]) -> list[str]:
    notes = []
    lacking = [method.label for method in methods if not method.has_evaluation]
    if lacking:
        which = f" of {_join(lacking)}" if len(lacking) < len(methods) else ""
        notes.append(f"{env}: no evaluation{which}, so all scores are training returns over the last tenth")
    for name in () if lacking else SCORING:
        labels = defaultdict(list)  # of each value
        for method in methods:
            labels[method.options[name]].append(method.label)
        if len(labels) > 1:
            values = "; ".join(f"{value} of {_join(names)}" for value, names in labels.items())
            notes.append(f"{env}: evaluations differ in {name}: {values}")
    labels = defaultdict(list)  # of each note
    for method in methods:
        for text in _method_notes(method):
            labels[text].append(method.label)
    notes += [f"{env}, {_join(names)}: {text}" for text, names in labels.items()]
    steps = sorted({method.num_steps for method in methods})
    if len(steps) > 1:
        notes.append(f"{env}: the runs have {steps[0]:,} to {steps[-1]:,} env steps; each is scored at its own end")
    return notes


def _method_notes(method: Method) -> list[str]:
    notes, num_seeds = [], len(method.scores)
    if num_seeds < method.planned_seeds:
        notes.append(f"the run was interrupted, {num_seeds} of {method.planned_seeds} seeds have been trained so far")
    if num_seeds == 1:
        notes.append("one seed, so no interval")
    if method.num_runs > 1:
        notes.append(f"the seeds of {method.num_runs} runs are pooled, at the env steps that all of these have")
    if num_diverged := num_seeds - int(method.metrics["is_healthy"].sum()):
        notes.append(
            f"{num_diverged} of {num_seeds} seeds diverged: what they score counts in no number, only curves show it"
        )
    num_missing = int(np.isnan(method.scores).sum())
    if num_missing:
        rule = "mean and IQM are undefined; in shares and P(A > B) such a seed counts as the worst"
        notes.append(f"{num_missing} of {num_seeds} seeds have no final score: {rule}")
    return notes


def _join(names: list[str]) -> str:
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    *first, last = names[:MAX_NAMES] + more
    return f"{', '.join(first)} and {last}" if first else last
