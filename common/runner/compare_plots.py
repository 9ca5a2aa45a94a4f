"""The picture of a comparison: learning curves of each environment, and performance profiles."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import EngFormatter

from common.runner.comparison import Line
from common.runner.folder import replacing
from common.runner.plots import _style
from common.runner.statistics import performance_profile

# Of Okabe and Ito's palette; neighbours also differ in lightness, and all in line style and marker.
COLORS = ("#0072B2", "#E69F00", "#000000", "#CC79A7", "#009E73", "#D55E00")
STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "X")
NUM_MARKERS = 6  # on a line
NUM_TAUS = 101
# Inches: a panel without its labels, and the room around it. Fixed margins leave room for labels of known width.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, CONNECTOR, EDGE = 3.3, 2.5, 0.75, 0.55, 0.4, 0.35, 0.1
FONT_SIZE = 9.0  # points
LINE_HEIGHT = 1.35 * FONT_SIZE / 72  # inches
MAX_COLUMNS, MAX_CHARACTERS = 3, 26


def plot_comparison(
    path: Path, environments: dict[str, list[Line]], shown: list[str], normalized: dict[str, list[np.ndarray]]
) -> None:
    """Write a panel of learning curves for each environment, and one of performance profiles if there are some.

    Args:
        shown: labels of the methods to draw.
        normalized: label -> normalised scores, for each environment [num_seeds]; empty: no performance profiles.

    Raises OSError if `path` cannot be written.
    """
    texts = {label: textwrap.fill(label, MAX_CHARACTERS) for label in shown}
    margin = CONNECTOR + max(_text_width(text) for text in texts.values()) + EDGE
    num_panels = len(environments) + bool(normalized)
    num_columns = min(num_panels, MAX_COLUMNS)
    num_rows = -(-num_panels // num_columns)
    size = np.array([num_columns * (LEFT + WIDTH + margin), num_rows * (BOTTOM + HEIGHT + TOP)])
    figure = Figure(figsize=tuple(size))
    panels = []
    for index in range(num_panels):
        row, column = divmod(index, num_columns)
        corner = column * (LEFT + WIDTH + margin) + LEFT, (num_rows - 1 - row) * (BOTTOM + HEIGHT + TOP) + BOTTOM
        panels.append(figure.add_axes((*(corner / size), *((WIDTH, HEIGHT) / size))))
    for axes, (env, lines) in zip(panels, environments.items(), strict=False):
        _plot_curves(axes, env, lines, texts)
    if normalized:
        _plot_profiles(panels[-1], normalized, texts)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:])


def _plot_curves(axes: Axes, env: str, lines: list[Line], texts: dict[str, str]) -> None:
    ends = {}
    for line in lines:
        if line.label in texts:
            curve = line.curve()
            is_shown = np.isfinite(curve.iqm)
            columns = (x[is_shown] for x in (curve.env_steps, curve.iqm, curve.ci_low, curve.ci_high))
            ends |= _plot_line(axes, list(texts).index(line.label), texts[line.label], *columns)
    score = "greedy evaluation" if lines[0].is_evaluated else "training"
    axes.set_title(env, fontsize=FONT_SIZE + 1)
    axes.set_xlabel("environment steps per seed", fontsize=FONT_SIZE)
    axes.set_ylabel(f"episode return ({score})", fontsize=FONT_SIZE)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _finish(axes)
    _label_ends(axes, ends)


def _plot_profiles(axes: Axes, normalized: dict[str, list[np.ndarray]], texts: dict[str, str]) -> None:
    every = np.concatenate([scores for samples in normalized.values() for scores in samples])
    every = every[np.isfinite(every)]
    taus = np.linspace(min(0.0, *every), max(1.0, *every), NUM_TAUS)
    for label, samples in normalized.items():
        _plot_line(axes, list(texts).index(label), texts[label], taus, *performance_profile(samples, taus))
    axes.set_title("performance profiles", fontsize=FONT_SIZE + 1)
    axes.set_xlabel(r"normalised score $\tau$", fontsize=FONT_SIZE)
    axes.set_ylabel(r"share of scores above $\tau$", fontsize=FONT_SIZE)
    axes.set_ylim(-0.03, 1.03)
    _finish(axes)
    # All profiles end at 0: there is nothing to tell labels at the ends apart.
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=FONT_SIZE, handlelength=2.6)


def _finish(axes: Axes) -> None:
    axes.tick_params(labelsize=FONT_SIZE - 1)
    _style(axes)


def _plot_line(
    axes: Axes, index: int, text: str, x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray
) -> dict[str, tuple[int, float, float]]:
    """Draw a line with its band. Returns text -> index and the line's last point; empty if the line is."""
    if len(x) == 0:
        return {}
    step = max(1, len(x) // NUM_MARKERS)
    options = {"color": COLORS[index], "linestyle": STYLES[index], "linewidth": 1.6}
    markers = {"marker": MARKERS[index], "markersize": 4.5, "markevery": (index * step // len(COLORS), step)}
    axes.plot(x, y, label=text, **options, **markers)
    axes.fill_between(x, low, high, color=COLORS[index], alpha=0.18, linewidth=0)
    return {text: (index, float(x[-1]), float(y[-1]))}


def _label_ends(axes: Axes, ends: dict[str, tuple[int, float, float]]) -> None:
    """Write each label to the right of the panel at the height of its line's end, moved apart where they would overlap,
    and connect the two."""
    if not ends:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", fontsize=FONT_SIZE)
        return
    axes.margins(x=0.0)
    low, high = axes.set_ylim(axes.get_ylim())
    left, right = axes.set_xlim(axes.get_xlim())
    texts = sorted(ends, key=lambda text: ends[text][2])
    heights = np.array([(text.count("\n") + 1) * LINE_HEIGHT / HEIGHT for text in texts])
    wanted = np.array([(ends[text][2] - low) / (high - low) for text in texts])
    for text, height in zip(texts, spread(wanted, heights), strict=True):
        index, *end = ends[text]
        end = (end[0] - left) / (right - left), (end[1] - low) / (high - low)
        place = 1 + 0.8 * CONNECTOR / WIDTH, height
        axes.plot(
            *zip(end, place, strict=True), transform=axes.transAxes, clip_on=False, color=COLORS[index], linewidth=0.7
        )
        axes.plot(
            *place, transform=axes.transAxes, clip_on=False, color=COLORS[index], marker=MARKERS[index], markersize=4.5
        )
        axes.text(1 + CONNECTOR / WIDTH + 0.01, height, text, transform=axes.transAxes, va="center", fontsize=FONT_SIZE)


def spread(wanted: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Centres of labels of these heights that do not overlap, as near to the wanted ones as least squares can.

    Args:
        wanted: in ascending order, [n], in a range of 0 to 1 in which the labels stay if they fit.
        heights: [n].
    """
    from scipy.optimize import isotonic_regression

    offsets = np.append(0.0, np.cumsum((heights[1:] + heights[:-1]) / 2))  # of labels that touch each other
    lowest, highest = heights[0] / 2, 1 - heights[-1] / 2 - offsets[-1]
    return np.clip(isotonic_regression(wanted - offsets).x, lowest, max(lowest, highest)) + offsets


def _text_width(text: str) -> float:
    """Inches."""
    return max(TextPath((0, 0), line, size=FONT_SIZE).get_extents().width for line in text.split("\n")) / 72
