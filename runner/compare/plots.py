"""The picture of a comparison: learning curves of each environment, performance profiles and P(A > B)."""

import textwrap
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from runner.compare.comparison import Method
from runner.compare.tables import ALL, Value, evaluation_of
from runner.files.store import replacing
from runner.report.plots import COLORS, MARKER_SIZE, marked, plain, style
from runner.report.statistics import performance_profile

NUM_TAUS = 101
# Inches: the picture if no width is given, a panel, a line of text, a character, and the sample beside a label.
WIDTH, MIN_PANEL, HEIGHT, LINE, CHARACTER, SAMPLE = 5.2, 2.2, 2.6, 0.16, 0.068, 0.6
# Text that is as large in every picture, fonts that journals take, and text of an .svg that stays text.
LOOK = {"font.size": 8, "axes.titlesize": "medium", "xtick.labelsize": 7, "ytick.labelsize": 7}
LOOK |= {"pdf.fonttype": 42, "svg.fonttype": "none"}


@rc_context(LOOK)
def plot_comparison(
    path: Path,
    environments: dict[str, list[Method]],
    shown: list[str],
    normalized: dict[str, list[np.ndarray]],
    pairs: list[Value],
    width: float = 0.0,
) -> None:
    """Write a panel of learning curves for each environment, and one of performance profiles and of P(A > B) if there
    are some.

    Args:
        shown: labels of the methods to draw.
        normalized: label -> normalised scores, for each environment [num_seeds]; empty: no performance profiles.
        pairs: P(A > B) of each two of these methods; empty: none.
        width: inches; 0: WIDTH.

    Raises OSError if `path` cannot be written.
    """
    width = width or WIDTH
    draws = [partial(_plot_curves, env=env, methods=methods, shown=shown) for env, methods in environments.items()]
    if normalized:
        draws.append(partial(_plot_profiles, normalized=normalized, shown=shown))
    num_columns = 2 if len(draws) > 1 and width >= 2 * MIN_PANEL else 1
    num_rows = -(-len(draws) // num_columns)

    texts = [wrap(label, width - SAMPLE) for label in shown]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    num_labels = max(1, min(len(shown), int(width / (longest * CHARACTER + SAMPLE))))  # in a row of the legend
    rows = [wrap(f"{pair.method} > {pair.other}", 0.45 * width, " > ") for pair in pairs]
    heights = [HEIGHT * num_rows + LINE * (1 + sum(text.count("\n") + 1 for text in texts) / num_labels)]
    heights += [0.7 + sum(LINE * (text.count("\n") + 1.5) for text in rows)] if pairs else []

    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    # Two figures: all panels of one have the same margins, and the labels of pairs are long.
    above, *below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for index, draw in enumerate(draws):
        draw(above.add_subplot(num_rows, num_columns, index + 1), room=width / num_columns)
    handles = {line.get_label(): line for axes in above.axes for line in axes.lines}
    drawn = {label: text for label, text in zip(shown, texts, strict=True) if label in handles}
    options = {"loc": "outside lower center", "frameon": False, "ncols": num_labels, "handlelength": 3.2}
    above.legend([handles[label] for label in drawn], list(drawn.values()), **options)
    if pairs:
        _plot_pairs(below[0].add_subplot(), pairs, rows)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=200, format=path.suffix[1:])


def wrap(text: str, room: float, first: str = "") -> str:
    """Break a text into lines of `room` inches, at `first` before other spaces."""
    width = int(room / CHARACTER)
    parts = text.replace(first, f"\n{first.lstrip()}", 1).split("\n") if first and len(text) > width else [text]
    return plain("\n".join(textwrap.fill(part, width) for part in parts))


def _plot_curves(axes: Axes, env: str, methods: list[Method], shown: list[str], room: float) -> None:
    drawn = [method for method in methods if method.label in shown and np.isfinite(method.curve().iqm).any()]
    for method in drawn:
        curve = method.curve()
        is_shown = np.isfinite(curve.iqm)
        columns = (x[is_shown] for x in (curve.env_steps, curve.iqm, curve.ci_low, curve.ci_high))
        _plot_line(axes, shown.index(method.label), method.label, *columns)
    if not drawn:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center")
    score = evaluation_of(methods) if methods[0].is_evaluated else "training"
    best = f", the best {len(drawn)} of {len(methods)}" if len(drawn) < len(methods) else ""
    axes.set_title(wrap(env + best, room))
    axes.set_xlabel("environment steps per seed")
    axes.set_ylabel(f"episode return ({score}),\nIQM over seeds with 95 % CI")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.locator_params(axis="x", nbins=6)
    axes.margins(x=0.0)
    axes.set_xlim(left=0)
    style(axes)


def _plot_profiles(axes: Axes, normalized: dict[str, list[np.ndarray]], shown: list[str], room: float) -> None:
    every = np.concatenate([[0.0, 1.0], *(scores for samples in normalized.values() for scores in samples)])
    taus = np.linspace(np.nanmin(every), np.nanmax(every), NUM_TAUS)
    for label, samples in normalized.items():
        _plot_line(axes, shown.index(label), label, taus, *performance_profile(samples, taus))
    axes.set_title(wrap("performance profiles", room))
    axes.set_xlabel(r"normalised score $\tau$")
    axes.set_ylabel("share of scores above $\\tau$,\nwith 95 % CI")
    axes.set_ylim(-0.03, 1.03)
    style(axes)


def _plot_pairs(axes: Axes, pairs: list[Value], texts: list[str]) -> None:
    """P(A > B) of each pair, the first one on top."""
    values, low, high = np.array([(pair.value, pair.ci_low, pair.ci_high) for pair in pairs]).T
    places = np.arange(len(pairs))
    axes.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
    axes.hlines(places, low, high, color=COLORS[0], linewidth=4, alpha=0.3)
    axes.plot(values, places, color=COLORS[0], linestyle="", marker="o", markersize=MARKER_SIZE)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_yticks(places, texts)
    axes.tick_params(axis="y", length=0)
    axes.set_title("P(A > B)" + ", mean over environments" * (pairs[0].environment == ALL))
    axes.set_xlabel("probability, with 95 % CI")
    style(axes)


def _plot_line(
    axes: Axes, index: int, label: str, x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray
) -> None:
    axes.plot(x, y, label=label, linewidth=1.5, **marked(index, len(x)))
    axes.fill_between(x, low, high, color=COLORS[index], alpha=0.18, linewidth=0)
