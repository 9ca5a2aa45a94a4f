"""The tables of a comparison: final scores, probabilities of improvement and aggregates over environments."""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from runner.compare.comparison import Method
from runner.files.store import replacing, write_table
from runner.report.statistics import (
    aggregate_iqm,
    bootstrap_interval,
    probability_of_improvement,
    rank,
    worst_quarter,
)

MAX_ROWS = 20  # rows of a table on the terminal; the files have all of them
TEXT = ("method", "A", "B")  # columns of text; numbers stand on the right
ALL = "all"  # the environment of aggregates, in the CSV


class Value(NamedTuple):
    """A row of the CSV: one number with its interval."""

    environment: str
    method: str
    other: str  # the second method of a pair
    score: str  # evaluation, training or normalised
    seeds: int | str
    env_steps: int | str
    statistic: str
    value: float
    ci_low: float
    ci_high: float


class Table(NamedTuple):
    """A table as text, and its numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    values: list[Value]


def score_table(env: str, methods: list[Method], bar: float | None) -> Table:
    """Final scores of the methods of an environment, the best IQM first."""
    is_evaluated = methods[0].is_evaluated
    what = f"last {evaluation_of(methods)}" if is_evaluated else "last tenth of training"
    kind = "evaluation" if is_evaluated else "training"
    columns = ["method", "seeds", "env steps", "mean", "IQM", "95 % CI of the IQM", "worst quarter", "its 95 % CI"]
    columns += ["min"] if bar is None else ["min", f"share >= {bar:g}"]
    largest = np.nanmax([1.0, *(np.abs(method.scores).max() for method in methods)])
    digits = 1 if largest >= 100 else 2 if largest >= 10 else 3
    rows, values = [], []
    for method in (methods[index] for index in rank([method.summary for method in methods])):
        x, seeds = method.summary, len(method.scores)
        row = [method.label, str(seeds), f"{method.num_steps:,}"]
        row += [_number(x["mean"], digits), _number(x["iqm"], digits)]
        low, high = map(float, bootstrap_interval([method.scores], worst_quarter))
        row += [_interval(x["ci_low"], x["ci_high"], digits), _number(x["worst_quarter"], digits)]
        row += [_interval(low, high, digits), _number(x["min"], digits)]
        found = [("mean", x["mean"], np.nan, np.nan), ("iqm", x["iqm"], x["ci_low"], x["ci_high"])]
        found += [("worst quarter", x["worst_quarter"], low, high), ("min", x["min"], np.nan, np.nan)]
        if bar is not None:
            share = float(np.mean(method.scores >= bar))
            row.append(f"{share:.0%}")
            found.append((f"share >= {bar:g}", share, np.nan, np.nan))
        rows.append(row)
        values += [Value(env, method.label, "", kind, seeds, method.num_steps, *numbers) for numbers in found]
    return Table(f"{env}: final episode return, {what}", columns, rows, values)


def evaluation_of(methods: list[Method]) -> str:
    """`greedy evaluation`, `sampled evaluation`, or `evaluation` if there are both."""
    kinds = {"sampled evaluation" if method.options["eval_sampled"] else "greedy evaluation" for method in methods}
    return kinds.pop() if len(kinds) == 1 else "evaluation"


def pair_table(environments: dict[str, list[Method]], shown: list[str]) -> Table | None:
    """P(A > B) of each two of the shown methods that were run in every one of the environments; the mean over them."""
    (env, *others), rows, values = environments, [], []
    where = f"mean over the {len(environments)} environments" if others else env
    for pair in itertools.combinations(shown, 2):
        scores = [
            [method.scores for label in pair for method in methods if method.label == label]
            for methods in environments.values()
        ]
        if any(len(both) < 2 for both in scores):
            continue
        probability, low, high = probability_of_improvement(scores)
        if probability < 0.5:  # the better one first
            pair, probability, low, high = pair[::-1], 1 - probability, 1 - high, 1 - low
        rows.append([*pair, f"{probability:.3f}", _interval(low, high, 3)])
        name = "probability of improvement"
        values.append(Value(ALL if others else env, *pair, "", "", "", name, probability, low, high))
    title = f"{where}: P(A > B), the probability that a random seed of A scores higher than one of B (ties: half)"
    return Table(title, ["A", "B", "P(A > B)", "95 % CI"], rows, values) if rows else None


def normalized_scores(
    environments: dict[str, list[Method]], bounds: dict[str, tuple[float, float]]
) -> dict[str, list[np.ndarray]]:
    """Scores of each method that was run in every environment, 0 at the lower bound and 1 at the upper one.

    Returns:
        label -> for each environment [num_seeds].
    """
    normalized = {}
    for env, methods in environments.items():
        low, high = bounds[env]
        for method in methods:
            normalized.setdefault(method.label, []).append((method.scores - low) / (high - low))
    return {label: scores for label, scores in normalized.items() if len(scores) == len(environments)}


def aggregate_table(normalized: dict[str, list[np.ndarray]]) -> Table:
    """The IQM over the normalised scores of all environments, which weigh the same, the best first."""
    rows, values = [], []
    aggregates = {label: aggregate_iqm(scores) for label, scores in normalized.items()}
    for label in sorted(aggregates, key=lambda label: np.nan_to_num(-aggregates[label][0], nan=np.inf)):
        (score, low, high), scores = aggregates[label], normalized[label]
        count = sum(map(len, scores))
        rows.append([label, str(count), _number(score, 3), _interval(low, high, 3)])
        values.append(Value(ALL, label, "", "normalised", count, "", "iqm", score, low, high))
    title = "normalised scores of all seeds in all environments, which weigh the same"
    return Table(title, ["method", "scores", "IQM", "95 % CI of the IQM"], rows, values)


def _number(x: float, digits: int) -> str:
    return f"{x:,.{digits}f}" if np.isfinite(x) else "-"


def _interval(low: float, high: float, digits: int) -> str:
    return f"{_number(low, digits)} to {_number(high, digits)}" if np.isfinite(low) else "-"


# -- Writing -----------------------------------------------------------------------------------------------------------


def print_table(table: Table, csv_path: Path) -> None:
    """Print at most MAX_ROWS rows."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows[:MAX_ROWS], strict=True)]
    print(f"\n{table.title}")
    for row in [table.columns, *table.rows[:MAX_ROWS]]:
        cells = [
            f"{cell:<{width}}" if name in TEXT else f"{cell:>{width}}"
            for name, cell, width in zip(table.columns, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
    if len(table.rows) > MAX_ROWS:
        print(f"and {len(table.rows) - MAX_ROWS} more in {csv_path}")


def write_markdown(path: Path, tables: list[Table], notes: list[str]) -> None:
    """Write the tables and the notes as Markdown."""
    lines = []
    for table in tables:
        rules = [":--" if name in TEXT else "--:" for name in table.columns]
        rows = [table.columns, rules, *([cell.replace("|", "\\|") for cell in row] for row in table.rows)]
        lines += [f"**{table.title}**", "", *(f"| {' | '.join(row)} |" for row in rows), ""]
    with replacing(path) as temporary:
        temporary.write_text("\n".join([*lines, *(f"- {note}" for note in notes)]).rstrip() + "\n")


def write_csv(path: Path, tables: list[Table]) -> None:
    """Write the numbers of all tables as CSV, one number with its interval in each row."""
    values = itertools.chain.from_iterable(table.values for table in tables)
    rows = ([*value[:-3], *("" if np.isnan(x) else f"{x:.6g}" for x in value[-3:])] for value in values)
    write_table(path, Value._fields, rows)
