"""Compare runs: python -m runner.compare runs/ppo/CartPole-v1/NAME runs/dqn/CartPole-v1/NAME --bar 475"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from runner.compare import tables
from runner.compare.comparison import Method, best_labels, by_environment, label_methods, read_methods
from runner.compare.notes import make_notes
from runner.errors import exit_on_errors, fail, one_line

FORMATS = (".png", ".pdf", ".svg")
MIN_WIDTH, MAX_WIDTH = 3, 100  # inches


@dataclass(frozen=True)
class Arguments:
    """Compare runs: learning curves in one picture, a table of final scores, and the probability that a random seed of
    one method scores higher than one of another. Runs of different environments are drawn in different panels."""

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")
    ]  # folders that training runs wrote
    labels: tuple[str, ...] = ()  # label of each run, in order; empty: the algorithm, and what tells its runs apart
    out: str = "compare.png"  # picture to write, .png, .pdf or .svg; the tables go beside it, as .md and .csv
    width: float = 0.0  # width of the picture in inches, such as 5.5 for a paper; 0: one that a screen shows
    bar: tuple[str, ...] = ()  # also print the share of seeds that score at least this; SCORE, or ENV=SCORE for each
    # scores that count as 0 and as 1, for the aggregate over environments and the performance profile;
    # ENV=LOW:HIGH for each environment, such as CartPole-v1=0:500
    bounds: tuple[str, ...] = ()


@exit_on_errors()
def main() -> None:
    """The command line. Exits with status 2 and one line where the input is bad, with 1 and one line where matplotlib
    cannot draw the picture, and with 128 + SIGINT after Ctrl-C."""
    arguments = tyro.cli(Arguments, prog="python -m runner.compare")
    try:
        compare(arguments)
    except OSError as error:
        raise ValueError(f"cannot write {arguments.out}: {error.strerror}; choose another --out") from error


def compare(arguments: Arguments) -> None:
    """Read the runs, print the tables and write the files.

    Raises:
        ValueError: the input is bad.
        OSError: the files cannot be written.
    """
    path = Path(arguments.out)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"--out {path} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not (arguments.width == 0 or MIN_WIDTH <= arguments.width <= MAX_WIDTH):
        raise ValueError(f"--width must be 0 or from {MIN_WIDTH} to {MAX_WIDTH} inches, not {arguments.width:g}")
    environments = read_environments(arguments)
    bars = read_bars(arguments.bar, list(environments))
    bounds = read_bounds(arguments.bounds, list(environments))
    shown = best_labels(environments)
    normalized = tables.normalized_scores(environments, bounds) if bounds.keys() == environments.keys() else {}
    pairs = tables.pair_table(environments, shown)
    made, notes = make_tables(environments, bars, shown, normalized, pairs), make_notes(environments, shown, bounds)
    for table in made:
        tables.print_table(table, path.with_suffix(".csv"))
    print("\n".join(["", *(f"note: {note}" for note in notes)]), flush=True)

    path.parent.mkdir(parents=True, exist_ok=True)
    tables.write_markdown(path.with_suffix(".md"), made, notes)
    tables.write_csv(path.with_suffix(".csv"), made)
    drawn = {label: normalized[label] for label in shown if label in normalized}
    try:
        from runner.compare.plots import plot_comparison  # half a second of imports

        plot_comparison(path, environments, shown, drawn, pairs.values if pairs else [], arguments.width)
    except OSError:
        raise
    except Exception as error:  # the settings of the user's matplotlib may cause any
        fail(f"{path} is not drawn: {one_line(error)}", 1)
    print(f"written to {path}, {path.with_suffix('.md')} and {path.with_suffix('.csv')}")


def make_tables(
    environments: dict[str, list[Method]],
    bars: dict[str, float],
    shown: list[str],
    normalized: dict[str, list[np.ndarray]],
    pairs: tables.Table | None,
) -> list[tables.Table]:
    """Scores and pairs of each environment, then what is taken over all environments: `pairs` and aggregates."""
    made = []
    for env, methods in environments.items():
        made.append(tables.score_table(env, methods, bars.get(env)))
        if len(environments) > 1:
            made.append(tables.pair_table({env: methods}, shown))
    made.append(pairs)
    if normalized:
        made.append(tables.aggregate_table(normalized))
    return [table for table in made if table]


# -- Input -------------------------------------------------------------------------------------------------------------


def read_environments(arguments: Arguments) -> dict[str, list[Method]]:
    """The labelled methods of each environment. Raises ValueError if a run cannot be read or labels do not fit."""
    runs = [Path(run) for run in arguments.runs]
    if not runs:
        raise ValueError("name the folders of the runs to compare, before the options")
    places = {}
    for run in runs:
        if places.setdefault(os.path.realpath(run), run) is not run:
            raise ValueError(f"{run} is given twice")
    if arguments.labels and len(arguments.labels) != len(runs):
        raise ValueError(f"--labels must have one label for each run: {len(runs)}, not {len(arguments.labels)}")
    if not all(label.strip() and label.isprintable() for label in arguments.labels):
        raise ValueError("--labels must have no label that is empty or cannot be printed")
    labels = dict(zip(runs, arguments.labels, strict=False))
    return by_environment(label_methods([method for run in runs for method in read_methods(run)], labels))


def read_bars(texts: tuple[str, ...], envs: list[str]) -> dict[str, float]:
    """The bar of each environment: one SCORE for all of them, or ENV=SCORE each."""
    if len(texts) == 1 and "=" not in texts[0]:
        return dict.fromkeys(envs, _number("--bar", texts[0], texts[0]))
    return {env: _number("--bar", text, score) for env, (text, score) in _by_env("--bar", texts, envs).items()}


def read_bounds(texts: tuple[str, ...], envs: list[str]) -> dict[str, tuple[float, float]]:
    """The bounds of each environment that has some, from ENV=LOW:HIGH."""
    bounds = {}
    for env, (text, values) in _by_env("--bounds", texts, envs).items():
        low, colon, high = values.partition(":")
        if not colon:
            raise ValueError(f"--bounds {text}: give {env}=LOW:HIGH")
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


if __name__ == "__main__":
    main()
