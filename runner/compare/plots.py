"""The picture of a comparison: learning curves of each environment, and performance profiles."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import EngFormatter

from runner.compare.comparison import Line
from runner.folder.files import replacing
from runner.tell.plots import style
from runner.tell.statistics import performance_profile

# Of Okabe and Ito's palette; neighbours also differ in lightness, and all in line style and marker.
COLORS = ("#0072B2", "#E69F00", "#000000", "#CC79A7", "#009E73", "#D55E00")
STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "X")
NUM_MARKERS, MARKER_SIZE = 6, 4.0  # on a line, in points
NUM_TAUS = 101
LEGEND = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False, "borderpad": 0.0, "borderaxespad": 0.3}
FONT_SIZE = 8.0  # points
MAX_COLUMNS, MAX_CHARACTERS = 2, 22  # of panels, and of a label in a line
# Inches: a panel, and the room around it. Margins are not left to a layout engine, which does not know of the labels.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, CONNECTOR, EDGE = 2.7, 2.1, 0.85, 0.5, 0.35, 0.35, 0.15
LINE_HEIGHT = 1.35 * FONT_SIZE / 72


def plot_comparison(
    path: Path, environments: dict[str, list[Line]], shown: list[str], normalized: dict[str, list[np.ndarray]]
) -> None:
    """Write a panel of learning curves for each environment, and one of performance profiles if there are some.

    Args:
        shown: labels of the methods to draw.
        normalized: label -> normalised scores, for each environment [num_seeds]; empty: no performance profiles.

    Raises OSError if `path` cannot be written.
    """
    texts = {label: textwrap.fill(label.replace("$", r"\$"), MAX_CHARACTERS) for label in shown}
    cell = LEFT + WIDTH + CONNECTOR + max(map(_text_width, texts.values())) + EDGE
    height = max(HEIGHT, sum(map(_text_height, texts.values())))
    num_panels = len(environments) + bool(normalized)
    num_columns = min(num_panels, MAX_COLUMNS)
    num_rows = -(-num_panels // num_columns)
    row_height = BOTTOM + height + TOP
    size = np.array([num_columns * cell, num_rows * row_height])
    figure = Figure(figsize=tuple(size))
    panels = []
    for index in range(num_panels):
        row, column = divmod(index, num_columns)
        corner = column * cell + LEFT, (num_rows - 1 - row) * row_height + BOTTOM
        panels.append(figure.add_axes((*(corner / size), *((WIDTH, height) / size))))
    for axes, (env, lines) in zip(panels, environments.items(), strict=False):
        _plot_curves(axes, env, lines, texts)
    if normalized:
        _plot_profiles(panels[-1], normalized, texts)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=200, format=path.suffix[1:])


def _plot_curves(axes: Axes, env: str, lines: list[Line], texts: dict[str, str]) -> None:
    ends = {}
    for line in lines:
        if line.label in texts:
            curve = line.curve()
            is_shown = np.isfinite(curve.iqm)
            columns = (x[is_shown] for x in (curve.env_steps, curve.iqm, curve.ci_low, curve.ci_high))
            ends |= _plot_line(axes, list(texts).index(line.label), texts[line.label], *columns)
    score = "greedy evaluation" if lines[0].is_evaluated else "training"
    best = f", the best {len(ends)} of {len(lines)}" if len(ends) < len(lines) else ""
    axes.set_title(env + best, fontsize=FONT_SIZE + 1)
    axes.set_xlabel("environment steps per seed", fontsize=FONT_SIZE)
    axes.set_ylabel(f"episode return ({score}),\nIQM over seeds with 95 % CI", fontsize=FONT_SIZE)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.locator_params(axis="x", nbins=6)
    axes.margins(x=0.0)
    axes.set_xlim(left=0)
    _finish(axes)
    _label_ends(axes, ends)


def _plot_profiles(axes: Axes, normalized: dict[str, list[np.ndarray]], texts: dict[str, str]) -> None:
    every = np.concatenate([[0.0, 1.0], *(scores for samples in normalized.values() for scores in samples)])
    taus = np.linspace(np.nanmin(every), np.nanmax(every), NUM_TAUS)
    for label, samples in normalized.items():
        _plot_line(axes, list(texts).index(label), texts[label], taus, *performance_profile(samples, taus))
    axes.set_title("performance profiles", fontsize=FONT_SIZE + 1)
    axes.set_xlabel(r"normalised score $\tau$", fontsize=FONT_SIZE)
    axes.set_ylabel("share of scores above $\\tau$,\nwith 95 % CI", fontsize=FONT_SIZE)
    axes.set_ylim(-0.03, 1.03)
    _finish(axes)
    # All profiles end at 0: there is nothing to tell labels at the ends apart.
    axes.legend(**LEGEND, fontsize=FONT_SIZE, handlelength=2.6, handletextpad=0.4)


def _finish(axes: Axes) -> None:
    axes.tick_params(labelsize=FONT_SIZE - 1)
    style(axes)


def _plot_line(
    axes: Axes, index: int, text: str, x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray
) -> dict[str, tuple[int, float, float]]:
    """Draw a line with its band. Returns text -> index and the line's last point; empty if the line is."""
    if len(x) == 0:
        return {}
    step = max(1, len(x) // NUM_MARKERS)
    options = {"color": COLORS[index], "linestyle": STYLES[index], "linewidth": 1.5}
    markers = {"marker": MARKERS[index], "markersize": MARKER_SIZE, "markevery": (index * step // len(COLORS), step)}
    axes.plot(x, y, label=text, **options, **markers)
    axes.fill_between(x, low, high, color=COLORS[index], alpha=0.18, linewidth=0)
    return {text: (index, float(x[-1]), float(y[-1]))}


def _label_ends(axes: Axes, ends: dict[str, tuple[int, float, float]]) -> None:
    """Write each label to the right of the panel at the height of its line's end, moved apart where they would overlap,
    and connect the two."""
    if not ends:
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", fontsize=FONT_SIZE)
        return
    low, high = axes.set_ylim(axes.get_ylim())
    left, right = axes.set_xlim(axes.get_xlim())
    texts = sorted(ends, key=lambda text: ends[text][2])
    places = np.array([((x - left) / (right - left), (y - low) / (high - low)) for _, x, y in map(ends.get, texts)])
    panel = axes.get_window_extent().size / axes.figure.dpi
    heights = np.array(list(map(_text_height, texts))) / panel[1]
    x = 1 + CONNECTOR / panel[0]
    options = {"transform": axes.transAxes, "clip_on": False}
    for text, place, y in zip(texts, places, spread(places[:, 1], heights), strict=True):
        color, marker = COLORS[ends[text][0]], MARKERS[ends[text][0]]
        marker_x = 1 + 0.75 * (x - 1)
        axes.plot([place[0], marker_x], [place[1], y], color=color, linewidth=0.7, linestyle=(0, (1, 3)), **options)
        axes.plot(marker_x, y, color=color, marker=marker, markersize=MARKER_SIZE, **options)
        axes.text(x, y, text, va="center", fontsize=FONT_SIZE, **options)


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
    """Of the longest line, in inches."""
    return max(TextPath((0, 0), line, size=FONT_SIZE).get_extents().width for line in text.split("\n")) / 72


def _text_height(text: str) -> float:
    """Inches."""
    return (text.count("\n") + 1) * LINE_HEIGHT
