"""Pictures of RESULTS.md and GPU.md."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullFormatter, PercentFormatter
from rows import FAMILIES, OPTIONS, Pair
from seeds import plot_numbers, with_many_seeds, wrong_answers
from tables import FOLDER

from runner.report.plots import style
from runner.report.statistics import aggregate_iqm, confidence_interval, iqm

# Of the curves; a script differs from the others in line style and marker, not only in colour (Okabe and Ito).
LOOKS = {
    "ppo": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "dqn": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "sac": {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    "td3": {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    "pqn": {"color": "#56B4E9", "linestyle": (0, (6, 1)), "marker": "v"},
    "reppo": {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "X"},
    "categorical_dqn": {"color": "#000000", "linestyle": (0, (3, 1, 1, 1)), "marker": "P"},
    "ppo_rnn": {"color": "#8C564B", "linestyle": (0, (2, 1)), "marker": "d"},
    "sac_discrete": {"color": "#7F7F7F", "linestyle": (0, (1, 1)), "marker": "<"},
}

PANEL = 2.6, 1.75  # inches; two panels beside each other are still readable on a phone
MIN_EVALUATIONS = 5  # of a curve
SHARES = np.linspace(0.1, 1.0, 19)  # of a budget


def draw(raws: dict[Pair, dict[str, Any]]) -> None:
    """The pictures of RESULTS.md and GPU.md, of the rows that have a curve."""
    curves = {pair: raw for pair, raw in raws.items() if len(raw["eval_env_steps"]) >= MIN_EVALUATIONS}
    for family, pairs in FAMILIES.items():
        shown = {pair: curves[pair] for pair in pairs if pair in curves}
        if shown and family != OPTIONS:
            plot(FOLDER / "results" / picture_of(family), shown)
    plot_aggregate(FOLDER / "results" / "aggregate.png", normalized_returns(curves))
    plot_numbers(wrong_answers(with_many_seeds(raws)))


def picture_of(family: str) -> str:
    """Name of the file with a family's curves."""
    return f"curves-{slug(family)}.png"


def slug(family: str) -> str:
    """ "MinAtar, as gymnax has it" -> minatar."""
    return family.split(",")[0].lower().replace(" ", "-")


def normalized_returns(raws: dict[Pair, dict[str, Any]]) -> dict[str, list[np.ndarray]]:
    """Evaluation curves at the shares SHARES of their budgets, 0: random actions, 1: the best published number; script
    -> [num_seeds, len(SHARES)] for each environment that has one. At the end stands the final evaluation."""
    samples = {script: [] for script in LOOKS}
    for pair, raw in raws.items():
        if pair.best is not None:
            steps, low = np.array(raw["eval_env_steps"]), raw["random_episode_return"]
            curves = [np.interp(SHARES, steps / steps[-1], row) for row in raw["eval_episode_return"]]
            returns = np.column_stack([np.array(curves)[:, :-1], raw["final_episode_return"]])
            samples[pair.script].append((returns - low) / (pair.best - low))
    return {script: arrays for script, arrays in samples.items() if arrays}


@rc_context({"font.size": 9})
def plot_aggregate(path: Path, samples: dict[str, list[np.ndarray]]) -> None:
    """IQM over the environments with a published number, and its 95 % interval, against env steps."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for script, arrays in samples.items():
        points = [aggregate_iqm([x[:, i] for x in arrays]) for i in range(len(SHARES))]
        label = f"{script}, {len(arrays)} environment{'s' if len(arrays) > 1 else ''}"
        draw_curve(axes, script, SHARES, *np.array(points).T, label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.annotate("best published", (SHARES[0], 1.0), xytext=(0, 3), textcoords="offset points", fontsize="small")
    axes.set(xlabel="share of the environment steps", ylabel="normalised return, IQM")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    style(axes)
    axes.legend(frameon=False, fontsize="small", loc="lower right")
    figure.savefig(path, dpi=200)


@rc_context({"font.size": 9})
def plot(path: Path, raws: dict[Pair, dict[str, Any]]) -> None:
    """A grid of evaluation curves, a panel for each environment: IQM and 95 % interval over seeds.

    The evaluation before training is a marker at 0 without a line: nothing is known between it and the next one.
    """
    envs = list(dict.fromkeys(pair.env for pair in raws))
    num_columns = min(2 if len(envs) <= 6 else 3, len(envs))
    num_rows = -(-len(envs) // num_columns)
    figure = Figure(figsize=(PANEL[0] * num_columns, PANEL[1] * num_rows + 0.5), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    handles = {}
    for axes, env in zip(panels, envs, strict=False):
        shown = {pair: raw for pair, raw in raws.items() if pair.env == env}
        for pair, raw in shown.items():
            steps, returns = np.array(raw["eval_env_steps"]), np.array(raw["eval_episode_return"])
            middle, (low, high) = iqm(returns), confidence_interval(returns)
            for part in filter(np.any, (steps == 0, steps > 0)):
                band = (x[part] for x in (middle, low, high))
                handles[pair.script] = draw_curve(axes, pair.script, steps[part], *band, pair.script)
        axes.set_title(env, fontsize="medium" if len(env) <= 24 else "small")  # a longer one is cut off
        scale_steps(axes, [step for raw in shown.values() for step in raw["eval_env_steps"] if step > 0])
        axes.locator_params(axis="y", nbins=5)
        style(axes)
    for axes in panels[len(envs) :]:
        axes.set_visible(False)
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=5, frameon=False)
    figure.supxlabel("environment steps per seed (log scale)", fontsize="medium")
    figure.supylabel("episode return, IQM over seeds", fontsize="medium")
    figure.savefig(path, dpi=200)


def draw_curve(
    axes: Axes, script: str, x: np.ndarray, middle: np.ndarray, low: np.ndarray, high: np.ndarray, label: str
) -> Line2D:
    """A line in the look of its script, and the band around it."""
    look = LOOKS[script]
    axes.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
    (line,) = axes.plot(x, middle, **look, label=label, linewidth=1.4, markersize=4, markeredgewidth=0, clip_on=False)
    return line


def scale_steps(axes: Axes, steps: list[int]) -> None:
    """A logarithmic axis from the first of these env steps on, with a place for 0 before it.

    Budgets differ by a factor of ten. Powers of ten have a number, with those of 2 and 5 where these are at most three.
    """
    first, last = min(steps), 1.05 * max(steps)
    ticks = [digit * 10**power for power in range(9) for digit in range(1, 10)]
    inside = [tick for tick in ticks if first <= tick <= last]
    for digits in ("125", "15", "1"):
        labelled = [tick for tick in inside if str(tick)[0] in digits]
        if len(labelled) <= 3:
            break
    axes.set_xscale("symlog", linthresh=first, linscale=0.4)
    axes.set_xticks([0, *labelled])
    axes.set_xticks([tick for tick in inside if tick not in labelled], minor=True)
    axes.set_xlim(left=0, right=last)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
