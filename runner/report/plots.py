"""Learning curves and sweeps as pictures. The functions that write one raise OSError where they cannot."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from runner.experiment import short_texts
from runner.files.store import replacing
from runner.report.statistics import Curve

# Of Okabe and Ito's palette; neighbours also differ in lightness, and all in line style and marker.
COLORS = ("#0072B2", "#E69F00", "#000000", "#CC79A7", "#009E73", "#D55E00")
STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "X")
NUM_MARKERS, MARKER_SIZE = 6, 4.0  # on a line, in points
MAX_LINES = 6  # curves in the picture of a sweep: the best settings
MAX_SEEDS = 100  # thin lines
QUARTILES = (0.25, 0.5, 0.75)
FIRST_METRICS = ("episode_return", "eval_episode_return", "episode_length")
SCORE = "episode return, IQM over seeds"


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def style(axes: Axes) -> None:
    """Give the axes the common look: a faint grid, no frame above and on the right."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def plain(text: str) -> str:
    """A text without mathematics for matplotlib, which reads what is between two $ as such."""
    return text.replace("$", r"\$")


def marked(index: int, num_points: int) -> dict[str, Any]:
    """Colour, line style and markers of a line with `num_points` points; markers of different lines do not coincide."""
    step = max(1, num_points // NUM_MARKERS)
    line = {"color": COLORS[index], "linestyle": STYLES[index], "marker": MARKERS[index], "markersize": MARKER_SIZE}
    return line | {"markevery": (index * step // len(COLORS), step)}


def plot_curve(path: Path, curves: dict[str, Curve], title: str, policy: str = "greedy") -> None:
    """Write the IQM over seeds with its 95 % interval and a thin line for each of the first MAX_SEEDS seeds.

    Args:
        curves: `training` and, if there is one, `evaluation`, which is then shown instead; the IQM of the training
            return is a thin line beside it.
        policy: how the evaluation chose actions.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    curve = curves.get("evaluation", curves["training"])
    num_seeds = len(curve.returns)
    if num_seeds > 1:
        shown = curve.returns[:MAX_SEEDS]
        label = "single seeds" if len(shown) == num_seeds else f"the first {len(shown)} seeds"
        lines = axes.plot(curve.env_steps, shown.T, color="tab:blue", linewidth=0.5, alpha=0.35)
        lines[0].set_label(label)
        axes.fill_between(
            curve.env_steps, curve.ci_low, curve.ci_high, color="tab:blue", alpha=0.25, linewidth=0, label="95 % CI"
        )
    kind = f"{policy} evaluation" if "evaluation" in curves else "training return"
    label = f"{kind}, IQM of {num_seeds} seeds" if num_seeds > 1 else f"{kind}, one seed"
    axes.plot(curve.env_steps, curve.iqm, color="tab:blue", linewidth=2, label=label)
    if "evaluation" in curves:
        training = curves["training"]
        line = {"color": "tab:orange", "linestyle": "--", "linewidth": 1, "zorder": 1}
        axes.plot(training.env_steps, training.iqm, label="training return", **line)
    axes.set(title=plain(title), xlabel="environment steps per seed", ylabel="episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    style(axes)
    _save(figure, path)


def plot_curves(
    path: Path, names: list[str], curves: dict[str, list[Curve]], ranking: list[int], title: str, policy: str = "greedy"
) -> None:
    """Write the IQM over seeds of the best settings of a sweep, of the evaluation if there is one.

    Args:
        names: of the settings.
        curves: `training` and, if there is one, `evaluation`, one curve for each setting.
        ranking: the settings, best first.
        policy: how the evaluation chose actions.
    """
    figure = Figure(figsize=(7, 5.4), layout="constrained")
    axes = figure.add_subplot()
    kind = f"{policy} evaluation" if "evaluation" in curves else "training return"
    curves, shown = curves.get("evaluation", curves["training"]), ranking[:MAX_LINES]
    for rank, index in enumerate(shown):
        x = curves[index]
        axes.plot(x.env_steps, x.iqm, label=plain(names[index]), **marked(rank, len(x.iqm)))
        axes.fill_between(x.env_steps, x.ci_low, x.ci_high, color=COLORS[rank], alpha=0.12, linewidth=0)
    if len(shown) < len(ranking):
        title = f"{title}, the best {len(shown)} of {len(ranking)} settings"
    axes.set(title=plain(title), xlabel="environment steps per seed", ylabel=f"episode return ({kind}), IQM over seeds")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(loc="outside lower center", frameon=False, fontsize="small", handlelength=4)
    style(axes)
    _save(figure, path)


def plot_metrics(path: Path, metrics: dict[str, tuple[np.ndarray, np.ndarray]], title: str) -> None:
    """Write a grid with every metric, in the order of `metric_order`: the median over seeds and the range of the middle
    half.

    Args:
        metrics: name -> env steps [n] and values [num_seeds, n]; a point that some seeds lack (NaN) is drawn from the
            others.
    """
    num_columns = 4
    num_rows = -(-len(metrics) // num_columns)
    width, height = 3.2 * num_columns, 2.2 * num_rows + 0.8
    figure = Figure(figsize=(width, height))  # fixed margins, in inches: a layout engine takes twice the time
    figure.subplots_adjust(0.7 / width, 0.7 / height, 1 - 0.2 / width, 1 - 0.8 / height, wspace=0.35, hspace=0.35)
    panels = figure.subplots(num_rows, num_columns, sharex=True, squeeze=False).ravel()
    for axes, name in zip(panels, sorted(metrics, key=metric_order), strict=False):
        env_steps, x = metrics[name]
        x = np.where(np.isfinite(x), x, np.nan)
        is_shown = np.isfinite(x).any(axis=0)
        if is_shown.any():
            steps, (low, middle, high) = env_steps[is_shown], _quartiles(x[:, is_shown])
            axes.fill_between(steps, low, high, color="tab:blue", alpha=0.25, linewidth=0)
            axes.plot(steps, middle, color="tab:blue", linewidth=1)
        axes.locator_params(nbins=4)
        axes.ticklabel_format(axis="y", useOffset=False)  # its text would lie on the title
        axes.set_title(plain(name), fontsize="medium")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        style(axes)
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    for axes in panels[: len(metrics)][-num_columns:]:  # the lowest of each column
        axes.tick_params(labelbottom=True)
    num_seeds = max((len(x) for _, x in metrics.values()), default=1)
    figure.suptitle(plain(title) + ": median and middle half of the seeds" * (num_seeds > 1))
    figure.supxlabel("environment steps per seed")
    _save(figure, path)


def metric_order(name: str) -> tuple[int, str]:
    """Sort key of metrics: returns and lengths of episodes, then losses, then all others by name."""
    last = len(FIRST_METRICS)
    return FIRST_METRICS.index(name) if name in FIRST_METRICS else last + ("loss" not in name), name


def _quartiles(x: np.ndarray) -> np.ndarray:
    """Quartiles over seeds, [num_seeds, n] -> [3, n], of the seeds that have a value."""
    quartiles = np.quantile(x, QUARTILES, axis=0)
    lacking = np.isnan(x).any(axis=0)  # nanquantile is a hundred times slower
    quartiles[:, lacking] = np.nanquantile(x[:, lacking], QUARTILES, axis=0)
    return quartiles


def plot_sweep(
    path: Path,
    settings: dict[str, np.ndarray],
    summaries: list[dict[str, float]],
    env_steps: np.ndarray,
    is_grid: bool,
    title: str,
) -> None:
    """Write the score against the settings: a heat map of a grid of two fields, else one panel for each field.

    Args:
        settings: field name -> [num_settings].
        summaries: of each setting's scores, with iqm, ci_low and ci_high; NaN where a setting diverged.
        env_steps: of one seed of each setting; where they differ, each score is marked with them.
    """
    scores = np.array([summary["iqm"] for summary in summaries])
    if is_grid and len(settings) == 2:
        figure = Figure(figsize=(7, 5), layout="constrained")
        _plot_heat_map(figure, settings, scores, env_steps)
    else:
        figure = Figure(figsize=(max(7, 3.5 * len(settings)), 4.2), layout="constrained")
        low, high = (np.array([summary[name] for summary in summaries]) for name in ("ci_low", "ci_high"))
        panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
        for axes, (name, values) in zip(panels, settings.items(), strict=True):
            order = np.argsort(values, kind="stable")
            lengths = sorted(set(env_steps.tolist()), reverse=True)
            is_line = len(settings) == 1
            if is_line and len(lengths) == 1:
                axes.plot(values[order], scores[order], color=COLORS[0])
                axes.fill_between(values[order], low[order], high[order], color=COLORS[0], alpha=0.25, linewidth=0)
            for number, length in enumerate(lengths):
                chosen = env_steps == length
                label = f"after {length:,} env steps"
                look = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}
                axes.plot(values[chosen], scores[chosen], linestyle="", label=label, **look)
            least = values[values > 0].min(initial=np.inf)
            if values.min() >= 0 and values.max() / least > 20:
                axes.set_xscale("symlog", linthresh=least)  # a logarithm that has a place for 0
                axes.set_xlim(left=0.7 * values.min())
            axes.set_xlabel(plain(name) + " (log scale)" * (axes.get_xscale() == "symlog"))
            style(axes)
        panels[0].set_ylabel(f"{SCORE} with 95 % CI" if is_line and len(lengths) == 1 else SCORE)
        if len(lengths) > 1:
            panels[0].legend(frameon=False, fontsize="small")
    figure.suptitle(plain(title))
    _save(figure, path)


def _plot_heat_map(figure: Figure, settings: dict[str, np.ndarray], scores: np.ndarray, env_steps: np.ndarray) -> None:
    (y_name, y), (x_name, x) = settings.items()
    x_values, y_values = np.unique(x), np.unique(y)
    cells = np.full((len(y_values), len(x_values)), np.nan)
    steps = np.zeros(cells.shape, int)
    places = np.searchsorted(y_values, y), np.searchsorted(x_values, x)
    cells[places], steps[places] = scores, env_steps
    axes = figure.add_subplot()
    image = axes.imshow(cells, origin="lower", aspect="auto")
    axes.set_xticks(range(len(x_values)), map(short_texts(x_values).get, x_values), rotation=45)
    axes.set_yticks(range(len(y_values)), map(short_texts(y_values).get, y_values))
    axes.set(xlabel=plain(x_name), ylabel=plain(y_name))
    if cells.size <= 100:
        middle = (np.nanmin(cells) + np.nanmax(cells)) / 2 if np.isfinite(cells).any() else 0.0
        for (row, column), value in np.ndenumerate(cells):
            color = "white" if value <= middle else "black"  # also of NaN, whose cell is white
            text = f"{value:.4g}"
            if len(set(env_steps.tolist())) > 1:
                text += f"\nat {EngFormatter(places=0, sep='')(steps[row, column])}"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize="small")
    figure.colorbar(image, label=SCORE)
