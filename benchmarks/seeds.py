"""What a number of seeds can say: a few of the hundred seeds of a row, drawn again and again, beside all of them."""

from itertools import combinations
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter
from rows import Pair, has_failed, wins
from tables import FOLDER, markdown

from runner.report.plots import style
from runner.report.statistics import summarize

MANY = 100
NUMBERS = 3, 5, 10, 20  # of seeds, in the table
SHOWN = 50  # seeds at most, in the picture
DRAWS = 4_000
PICTURE = "number-of-seeds.png"
QUESTIONS = {  # and what n seeds are that answer them otherwise than all
    "published": "wrong about the published number",
    "script": "wrong about two scripts",
    "failed": "blind to seeds that fail",
}


def with_many_seeds(raws: dict[Pair, dict[str, Any]]) -> dict[Pair, dict[str, Any]]:
    """The rows with MANY seeds."""
    return {pair: raw for pair, raw in raws.items() if len(raw["final_episode_return"]) == MANY}


def wrong_answers(raws: dict[Pair, dict[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """The share of draws of n seeds that answer a question otherwise than all MANY; a tie is half an answer.

    - published: whether most seeds score higher than the published number.
    - script: which of two scripts has the higher mean on an environment, each with the same n seeds.
    - failed: whether seeds fail, of the rows in which some do.

    Seeds are drawn with replacement, as from many more than MANY. Of the first two questions only those that MANY seeds
    settle: of their own draws fewer than 2.5 % are wrong.

    Returns:
        question -> row, or "A > B" -> shares [MANY], for n from 1 on.
    """
    draws = np.random.default_rng(0).integers(MANY, size=(DRAWS, MANY))
    answers = {question: {} for question in QUESTIONS}

    def ask(question: str, name: str, x: np.ndarray) -> None:
        """Whether the mean of x, [MANY], is positive; asked of the first n of each draw."""
        wrong = (1 - np.sign(x[draws].cumsum(axis=1)) * np.sign(x.mean())).mean(axis=0) / 2
        if wrong[-1] < 0.025:
            answers[question][name] = wrong

    scores = {pair: np.array(raw["final_episode_return"]) for pair, raw in raws.items()}
    for pair, x in scores.items():
        if pair.best is not None:
            ask("published", pair.name, 2 * wins(x, pair.best) - 1)
        if (failed := has_failed(raws[pair])).any():
            answers["failed"][pair.name] = (failed[draws].cumsum(axis=1) == 0).mean(axis=0)
    for (a, x), (b, y) in combinations(scores.items(), 2):
        if a.env == b.env and not a.changes and not b.changes:
            ask("script", f"{a.script} {'>' if x.mean() > y.mean() else '<'} {b.script}, {a.env}", x - y)
    return {question: rows for question, rows in answers.items() if rows}


def number_table(answers: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """A Markdown table of `wrong_answers`: the mean over rows and the most of a row, at each of NUMBERS."""
    lines = []
    for question, rows in answers.items():
        shares = np.array(list(rows.values()))[:, np.array(NUMBERS) - 1]  # [rows, NUMBERS]
        cells = [f"{mean:.0%} ({high:.0%})" for mean, high in zip(shares.mean(axis=0), shares.max(axis=0), strict=True)]
        lines.append([QUESTIONS[question], f"{len(rows)}", *cells])
    return markdown(("n seeds are", "rows", *(f"{n} seeds" for n in NUMBERS)), lines)


def twenty_table(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of each row by its first 20 seeds, and by all."""
    statistics = {"IQM": "iqm", "worst quarter": "worst_quarter", "worst seed": "min"}
    lines = []
    for pair, raw in raws.items():
        scores = np.array(raw["final_episode_return"])
        digits = 1 if np.abs(scores).max() >= 10 else 2
        few, whole = summarize(scores[:20]), summarize(scores)
        cells = [f"{few[name]:.{digits}f}, {whole[name]:.{digits}f}" for name in statistics.values()]
        failed, name = has_failed(raw), " ".join(filter(None, [pair.env, pair.flags and f"`{pair.flags}`"]))
        lines.append([f"`{pair.file}`", name, *cells, f"{failed[:20].sum()}, {failed.sum()}"])
    return markdown(("script", "environment", *(f"{name}: 20, all" for name in (*statistics, "failed seeds"))), lines)


@rc_context({"font.size": 9})
def plot_numbers(answers: dict[str, dict[str, np.ndarray]]) -> None:
    """A panel for each question: a thin line for each row, and their mean."""
    figure = Figure(figsize=(7.8, 2.6), layout="constrained")
    panels = figure.subplots(1, len(answers), sharey=True, squeeze=False)[0]
    counts = np.arange(1, SHOWN + 1)
    for axes, (question, rows) in zip(panels, answers.items(), strict=True):
        shares = np.array(list(rows.values()))[:, :SHOWN]
        axes.plot(counts, shares.T, color="#7F7F7F", linewidth=0.7)
        axes.plot(counts, shares.mean(axis=0), color="#0072B2", linewidth=2.0)
        axes.set_title(f"{QUESTIONS[question]}\n(rows: {len(rows)}; blue: their mean)", fontsize="small")
        axes.set_xscale("log")
        axes.set_xticks([1, *NUMBERS, SHOWN], minor=False)
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        style(axes)
    figure.supxlabel("seeds", fontsize="medium")
    figure.supylabel("of all draws", fontsize="medium")
    figure.savefig(FOLDER / "results" / PICTURE, dpi=200)
