"""The picture of a comparison: learning curves of each environment, performance profiles and P(A > B)."""

from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from runner.cli.parse import fail
from runner.compare.comparison import Line
from runner.compare.labels import FONT_SIZE, spread, text_height, text_width, wrap
from runner.compare.tables import ALL, Value, evaluation_of
from runner.files.store import replacing
from runner.report.plots import COLORS, MARKER_SIZE, MARKERS, marked, plain, style
from runner.report.statistics import performance_profile

NUM_TAUS = 101
LEGEND = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False, "borderpad": 0.0, "borderaxespad": 0.3}
BESIDE = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "annotation_clip": False}
MAX_COLUMNS, MAX_CHARACTERS = 2, 24  # of panels, and of a label in a line
# Inches: a panel, and the room around it. Margins are not left to a layout engine, which does not know of the labels.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, CONNECTOR, EDGE = 2.7, 2.1, 0.85, 0.5, 0.35, 0.35, 0.15
MIN_WIDTH = 2.2  # of the panel of P(A > B), which has labels on both sides
MIN_PANEL = 1.5  # of any panel of a picture of a given width
# Fonts that journals take, and text of an .svg that stays text.
FONTS = {"pdf.fonttype": 42, "svg.fonttype": "none"}


def plot_comparison(
    path: Path,
    environments: dict[str, list[Line]],
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
        width: inches; 0: what the panels take. Exits where labels leave too little of it.

    Raises OSError if `path` cannot be written.
    """
    texts = {label: wrap(label, MAX_CHARACTERS) for label in shown}
    beside = LEFT + CONNECTOR + max(map(text_width, texts.values())) + EDGE
    height = max(HEIGHT, sum(map(text_height, texts.values())))
    draws = [partial(_plot_curves, env=env, lines=lines, texts=texts) for env, lines in environments.items()]
    if normalized:
        draws.append(partial(_plot_profiles, normalized=normalized, texts=texts))

    # P(A > B) takes the next cell of the grid or, where its labels are long, a row of its own.
    sides = {label: wrap(label, MAX_CHARACTERS if width else 2 * MAX_CHARACTERS) for label in shown}
    margin = max(map(text_width, sides.values())) + 2 * EDGE
    needed = 2 * margin + (MIN_PANEL if width else MIN_WIDTH) if pairs else 0.0
    least = max(beside + MIN_PANEL, needed)
    if 0 < width < least:
        fail(
            f"--width {width:g} leaves no room beside the labels; give at least {least + 0.05:.1f}, or shorter --labels"
        )
    for num_columns in range(MAX_COLUMNS, 0, -1):
        cell = width / num_columns if width else beside + WIDTH
        is_cell = 0 < needed <= cell
        if num_columns <= len(draws) + is_cell and cell - beside >= MIN_PANEL:
            break
    width = width or max(num_columns * cell, needed)

    def corner(index: int) -> tuple[float, float]:
        row, column = divmod(index, num_columns)
        return column * cell, row * (TOP + height + BOTTOM) + TOP

    boxes = [
        (x + LEFT, y, cell - beside, height) for x, y in map(corner, range(len(draws)))
    ]  # inches from above on the left
    if pairs:
        x, y = corner(len(draws) if is_cell else -(-len(draws) // num_columns) * num_columns)
        rows = sum(1.2 * max(text_height(sides[pair.method]), text_height(sides[pair.other])) for pair in pairs)
        boxes.append(
            (
                x + margin,
                y,
                (cell if is_cell else width) - 2 * margin,
                max(rows, height * (is_cell and num_columns > 1)),
            )
        )
        draws.append(partial(_plot_pairs, pairs=pairs, texts=sides))
    size = np.array([width, max(y + height for _, y, _, height in boxes) + BOTTOM])
    figure = Figure(figsize=tuple(size))
    for draw, (left, top, *extent) in zip(draws, boxes, strict=True):
        draw(figure.add_axes((*((left, size[1] - top - extent[1]) / size), *(extent / size))))
    with replacing(path) as temporary, rc_context(FONTS):
        figure.savefig(temporary, dpi=200, format=path.suffix[1:])


def _plot_curves(axes: Axes, env: str, lines: list[Line], texts: dict[str, str]) -> None:
    ends = {}
    for line in lines:
        if line.label in texts:
            curve = line.curve()
            is_shown = np.isfinite(curve.iqm)
            columns = (x[is_shown] for x in (curve.env_steps, curve.iqm, curve.ci_low, curve.ci_high))
            ends |= _plot_line(axes, list(texts).index(line.label), texts[line.label], *columns)
    score = evaluation_of(lines) if lines[0].is_evaluated else "training"
    best = f", the best {len(ends)} of {len(lines)}" if len(ends) < len(lines) else ""
    axes.set_title(plain(env) + best, fontsize=FONT_SIZE + 1)
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


def _plot_pairs(axes: Axes, pairs: list[Value], texts: dict[str, str]) -> None:
    """P(A > B) as rliable draws it: A on the left, B on the right, the first pair on top."""
    values, low, high = np.array([(pair.value, pair.ci_low, pair.ci_high) for pair in pairs]).T
    places = np.arange(len(pairs))
    axes.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
    axes.hlines(places, low, high, color=COLORS[0], linewidth=4, alpha=0.3)
    axes.plot(values, places, color=COLORS[0], linestyle="", marker="o", markersize=MARKER_SIZE)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_title("P(A > B)" + ", mean over environments" * (pairs[0].environment == ALL), fontsize=FONT_SIZE + 1)
    axes.set_xlabel("probability of improvement, 95 % CI", fontsize=FONT_SIZE)
    _finish(axes)
    axes.set_yticks(places, [texts[pair.method] for pair in pairs], fontsize=FONT_SIZE)
    axes.tick_params(axis="y", length=0)
    for y, pair in zip(places, pairs, strict=True):
        axes.annotate(texts[pair.other], (1, y), (3.5, 0), **BESIDE, va="center", fontsize=FONT_SIZE)
    for x, name, side in ((0, "A", "right"), (1, "B", "left")):
        axes.annotate(name, (x, -0.5), (3.5 if x else -3.5, 4), **BESIDE, ha=side, fontsize=FONT_SIZE + 1)


def _finish(axes: Axes) -> None:
    axes.tick_params(labelsize=FONT_SIZE - 1)
    style(axes)


def _plot_line(
    axes: Axes, index: int, text: str, x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray
) -> dict[str, tuple[int, float, float]]:
    """Draw a line with its band. Returns text -> index and the line's last point; empty if the line is."""
    if len(x) == 0:
        return {}
    axes.plot(x, y, label=text, linewidth=1.5, **marked(index, len(x)))
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
    heights = np.array(list(map(text_height, texts))) / panel[1]
    x = 1 + CONNECTOR / panel[0]
    options = {"transform": axes.transAxes, "clip_on": False}
    for text, place, y in zip(texts, places, spread(places[:, 1], heights), strict=True):
        color, marker = COLORS[ends[text][0]], MARKERS[ends[text][0]]
        marker_x = 1 + 0.75 * (x - 1)
        axes.plot([place[0], marker_x], [place[1], y], color=color, linewidth=0.7, linestyle=(0, (1, 3)), **options)
        axes.plot(marker_x, y, color=color, marker=marker, markersize=MARKER_SIZE, **options)
        axes.text(x, y, text, va="center", fontsize=FONT_SIZE, **options)
