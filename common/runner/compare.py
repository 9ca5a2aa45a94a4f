"""Compare runs: python -m common.runner.compare runs/ppo/CartPole-v1/NAME runs/dqn/CartPole-v1/NAME --bar 475"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from common.runner import tables
from common.runner.cli import fail
from common.runner.comparison import MAX_LINES, Line, best_labels, by_environment, label_lines, read_lines

# Below, 95 % bootstrap intervals are too short: those of P(A > B) of two equal normal distributions leave out 0.5 with
# 3, 5 and 8 seeds in 21, 11 and 5 % of cases.
FEW_SEEDS = 8
FORMATS = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Arguments:
    """Compare runs: learning curves in one picture, a table of final scores, and the probability that a random seed of
    one method scores higher than one of another. Runs of different environments are drawn in different panels."""

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")
    ]  # folders that training runs wrote
    labels: tuple[str, ...] = ()  # label of each run, in order; empty: the algorithm, and what tells its runs apart
    out: str = "compare.png"  # picture to write, .png, .pdf or .svg; the tables go beside it, as .md and .csv
    bar: tuple[str, ...] = ()  # also print the share of seeds that score at least this; SCORE, or ENV=SCORE for each
    # scores that count as 0 and as 1, for the aggregate over environments and the performance profile;
    # ENV=LOW:HIGH for each environment, such as CartPole-v1=0:500
    bounds: tuple[str, ...] = ()


def main() -> None:
    """The command line. Exits with status 2 and one line where the input is bad."""
    arguments = tyro.cli(Arguments, prog="python -m common.runner.compare")
    try:
        compare(arguments)
    except (ValueError, OSError) as error:
        fail(str(error))


def compare(arguments: Arguments) -> None:
    """Read the runs, print the tables and write the files. Raises ValueError or OSError where the input is bad."""
    path = Path(arguments.out)
    if path.suffix not in FORMATS:
        raise ValueError(f"--out {path} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    environments = read_environments(arguments)
    bars = read_bars(arguments.bar, list(environments))
    bounds = read_bounds(arguments.bounds, list(environments))
    shown = best_labels(environments)
    notes = make_notes(environments, shown, bounds)
    made = []
    for env, lines in environments.items():
        made += [tables.score_table(env, lines, bars.get(env)), tables.pair_table({env: lines}, shown)]
    if len(environments) > 1:
        made.append(tables.pair_table(environments, shown))
    normalized = tables.normalized_scores(environments, bounds) if bounds.keys() == environments.keys() else {}
    if normalized:
        made.append(tables.aggregate_table(normalized))
    made = [table for table in made if table]
    for table in made:
        tables.print_table(table, path.with_suffix(".csv"))
    print("\n" + "\n".join(f"note: {note}" for note in notes) if notes else "")

    from common.runner.compare_plots import plot_comparison  # half a second of imports

    path.parent.mkdir(parents=True, exist_ok=True)
    plot_comparison(path, environments, shown, {label: normalized[label] for label in shown if label in normalized})
    tables.write_markdown(path.with_suffix(".md"), made, notes)
    tables.write_csv(path.with_suffix(".csv"), made)
    print(f"written to {path}, {path.with_suffix('.md')} and {path.with_suffix('.csv')}")


# -- Input -------------------------------------------------------------------------------------------------------------


def read_environments(arguments: Arguments) -> dict[str, list[Line]]:
    """The labelled lines of each environment. Raises ValueError if a run cannot be read or labels do not fit."""
    runs = [Path(run) for run in arguments.runs]
    if not runs:
        raise ValueError("name the folders of the runs to compare")
    twice = next((run for i, run in enumerate(runs) if run.resolve() in [x.resolve() for x in runs[:i]]), None)
    if twice:
        raise ValueError(f"{twice} is given twice")
    if arguments.labels and len(arguments.labels) != len(runs):
        raise ValueError(f"--labels must have one label for each run: {len(runs)}, not {len(arguments.labels)}")
    labels = dict(zip(runs, arguments.labels, strict=False))
    return by_environment(label_lines([line for run in runs for line in read_lines(run)], labels))


def read_bars(texts: tuple[str, ...], envs: list[str]) -> dict[str, float]:
    """The bar of each environment: one SCORE for all of them, or ENV=SCORE each."""
    if len(texts) == 1 and "=" not in texts[0]:
        return dict.fromkeys(envs, _number("--bar", texts[0], texts[0]))
    return {env: _number("--bar", text, score) for env, (text, score) in _by_env("--bar", texts, envs).items()}


def read_bounds(texts: tuple[str, ...], envs: list[str]) -> dict[str, tuple[float, float]]:
    """The bounds of each environment that has some, from ENV=LOW:HIGH."""
    bounds = {}
    for env, (text, values) in _by_env("--bounds", texts, envs).items():
        low, _, high = values.partition(":")
        bounds[env] = _number("--bounds", text, low), _number("--bounds", text, high)
        if not bounds[env][0] < bounds[env][1]:
            raise ValueError(f"--bounds {text}: LOW must be less than HIGH")
    return bounds


def _by_env(option: str, texts: tuple[str, ...], envs: list[str]) -> dict[str, tuple[str, str]]:
    """ENV=VALUE -> environment -> the text and its value."""
    found = {}
    for text in texts:
        env, _, value = text.rpartition("=")
        if env not in envs:
            form = "ENV=LOW:HIGH" if option == "--bounds" else "SCORE, or ENV=SCORE"
            raise ValueError(f"{option} {text}: give {form}, with an environment of the runs ({', '.join(envs)})")
        if env in found:
            raise ValueError(f"{option} gives {env} twice")
        found[env] = text, value
    return found


def _number(option: str, text: str, number: str) -> float:
    try:
        if math.isfinite(float(number)):
            return float(number)
    except ValueError:
        pass
    raise ValueError(f"{option} {text}: {number!r} is not a number")


# -- Notes -------------------------------------------------------------------------------------------------------------


def make_notes(environments: dict[str, list[Line]], shown: list[str], bounds: dict[str, tuple]) -> list[str]:
    """What a reader of the tables must know: how methods were scored, and what is missing."""
    notes = []
    for env, lines in environments.items():
        lacking = [line.label for line in lines if not line.has_evaluation]
        if lacking:
            which = "no run was" if len(lacking) == len(lines) else f"not all runs were (not {_join(lacking)})"
            notes.append(f"{env}: {which} evaluated while training; scores are training returns over the last tenth")
        for line in lines:
            notes += [f"{env}, {line.label}: {text}" for text in _line_notes(line)]
        steps = sorted({line.num_steps for line in lines})
        if len(steps) > 1:
            notes.append(f"{env}: the runs have {steps[0]:,} to {steps[-1]:,} env steps; each is scored at its own end")
    few = sorted(
        {len(line.scores) for lines in environments.values() for line in lines if len(line.scores) < FEW_SEEDS}
    )
    if few and few != [1]:
        notes.append(
            f"intervals of fewer than {FEW_SEEDS} seeds are too short: they miss the truth more often than 5 %"
        )
    labels = list(dict.fromkeys(line.label for lines in environments.values() for line in lines))
    if len(shown) < len(labels):
        average = ", on average over environments" if len(environments) > 1 else ""
        notes.append(f"the picture and P(A > B) have the best {MAX_LINES} of {len(labels)} methods, by IQM{average}")
    partial = [x for x in labels if not all(any(y.label == x for y in lines) for lines in environments.values())]
    if partial:
        notes.append(f"not run in every environment, so not in what is taken over all of them: {_join(partial)}")
    missing = [env for env in environments if env not in bounds]
    if missing and len(environments) > 1:
        notes.append(f"no aggregate over environments: --bounds has no ENV=LOW:HIGH for {_join(missing)}")
    elif bounds:
        ranges = _join([f"{low:g} and {high:g} in {env}" for env, (low, high) in bounds.items()])
        notes.append(f"normalised scores are 0 and 1 at {ranges}")
    return notes


def _line_notes(line: Line) -> list[str]:
    notes, num_seeds = [], len(line.scores)
    if num_seeds < line.planned_seeds:
        notes.append(f"{num_seeds} of {line.planned_seeds} seeds, the run was interrupted")
    if num_seeds == 1:
        notes.append("one seed, so no interval")
    num_missing = int((line.scores != line.scores).sum())
    if num_missing:
        why = "diverged" if line.is_evaluated else "diverged, or no episode ended in the last tenth"
        rule = "mean and IQM are undefined; as a share and in P(A > B) they count as the worst"
        notes.append(f"{num_missing} of {num_seeds} seeds have no final score ({why}); {rule}")
    return notes


def _join(words: list[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


if __name__ == "__main__":
    main()
