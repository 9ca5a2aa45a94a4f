"""The end of a run: the tables that it prints and the files that it writes."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from runner.devices.evaluation import episode_limit
from runner.errors import one_line
from runner.experiment import EVAL_METRICS, EVAL_STEPS, Experiment, Result
from runner.files import store
from runner.files.record import describe_machine
from runner.files.store import attempt
from runner.options.fields import resume_flag
from runner.report.commands import start_command, tool_command
from runner.report.plots import plot_curve, plot_curves, plot_metrics, plot_sweep
from runner.report.scores import Scores, compute
from runner.report.statistics import Curve
from runner.report.timing import Timing

MAX_ROWS = 20  # settings in the table
COLUMNS = {"mean": "mean", "iqm": "IQM", "worst_quarter": "worst quarter", "min": "min", "max": "max"}  # of statistics
INTERVAL = "95 % CI of the IQM"


def report(
    experiment: Experiment, preset: Any, directory: Path, result: Result, timing: Timing, is_stopped: bool
) -> bool:
    """Print the table of scores and write summary.json, curve.csv and the plots. Returns whether all were written.

    Args:
        preset: the Config of the environment, None without one.
        is_stopped: whether a signal stopped the run; how to continue it is then said elsewhere.
    """

    def write_summary() -> bool:
        summary = scores.summary | {"timing": timing.summary()} | describe_machine(experiment.options.devices)
        return attempt(store.write_json, directory / store.SUMMARY, summary)

    with timing.measure("report"):
        scores = compute(experiment, preset, result)
        columns = [*experiment.settings, "return", "env_step", "mean", "iqm", "ci_low", "ci_high"]
        rows = curve_rows(experiment.settings, scores.curves)
        is_written = attempt(store.write_table, directory / store.CURVE_TABLE, columns, rows)
    has_summary = write_summary()  # before the pictures, whatever becomes of them
    print_scores(experiment, directory, scores)
    with timing.measure("report"):
        is_written &= draw_plots(experiment, directory, result, scores)
    is_written &= has_summary and write_summary()  # with the seconds that they took
    print_commands(experiment, directory, is_stopped)
    return is_written


# -- Files -------------------------------------------------------------------------------------------------------------


def draw_plots(experiment: Experiment, directory: Path, result: Result, scores: Scores) -> bool:
    """Write the pictures. Returns whether all were written."""
    curves, ranking = scores.curves, scores.ranking
    title = f"{experiment.algorithm} on {experiment.config.env}"
    if experiment.settings:
        is_grid = experiment.options.sweep_samples == 0
        points = experiment.settings, scores.settings, scores.env_steps
        ok = draw(plot_sweep, directory / store.SWEEP_PLOT, *points, is_grid, title)
        names = [experiment.name_setting(i) for i in range(experiment.num_settings)]
        ok &= draw(plot_curves, directory / store.CURVE_PLOT, names, curves, ranking, title, experiment.policy)
    else:
        curve = {kind: x[0] for kind, x in curves.items()}
        ok = draw(plot_curve, directory / store.CURVE_PLOT, curve, title, experiment.policy)
    env_steps = experiment.env_steps(result.metrics["episode_return"].shape[1])
    shown = {name: (env_steps, x) for name, x in result.metrics.items()}
    if "evaluation" in curves:
        shown |= {name: (result.evaluations[EVAL_STEPS], result.evaluations[name]) for name in EVAL_METRICS}
    shown = {name: (steps, experiment.by_setting(x)[ranking[0]]) for name, (steps, x) in shown.items()}
    best = f"{title} {experiment.name_setting(ranking[0])}".rstrip()
    return ok & draw(plot_metrics, directory / store.METRICS_PLOT, shown, best)


def draw(plot: Callable, path: Path, *content: Any) -> bool:
    """`attempt` to write a picture, where the settings of the user's matplotlib may cause any error."""
    try:
        return attempt(plot, path, *content)
    except Exception as error:
        print(f"error: {path} is not drawn: {one_line(error)}", file=sys.stderr)
        return False


def curve_rows(settings: dict[str, np.ndarray], curves: dict[str, list[Curve]]) -> Iterator[list[Any]]:
    """The rows of curve.csv: the points of the curves of each setting."""
    for kind, curves_of_kind in curves.items():
        for index, curve in enumerate(curves_of_kind):
            setting = [str(values[index]) for values in settings.values()]
            for row in zip(curve.env_steps, curve.mean, curve.iqm, curve.ci_low, curve.ci_high, strict=True):
                yield [*setting, kind, int(row[0]), *(f"{x:.6g}" for x in row[1:])]


# -- Printing ----------------------------------------------------------------------------------------------------------


def row(texts: dict[str, str], names: list[str], interval: str) -> str:
    """Columns of a table: a text for each of the named statistics, the interval after the IQM."""
    widths = {name: max(10, len(COLUMNS[name])) for name in names}
    return " ".join(f"{texts[name]:>{widths[name]}}" + f" {interval:>23}" * (name == "iqm") for name in names)


def numbers(score: dict[str, float], names: list[str]) -> str:
    """The `row` of some statistics."""
    interval = f"{score['ci_low']:.1f} to {score['ci_high']:.1f}" if np.isfinite(score["ci_low"]) else "-"
    return row({name: f"{score[name]:.1f}" for name in names}, names, interval)


def count(number: int, what: str) -> str:
    """1, "seed" -> '1 seed'."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_scores(experiment: Experiment, directory: Path, scores: Scores) -> None:
    """Print the scores over seeds, of a sweep for each setting, and what was cut or has diverged."""
    summary, options = scores.summary, experiment.options
    if experiment.settings:
        print_ranking(experiment, directory, scores)
        print(f"train the best setting again: {summary['rerun']}")
    else:
        seeds, name = count(options.num_seeds, "seed"), "eval_episode_return"
        what = f"{experiment.policy} evaluation of {seeds}, {count(options.eval_episodes, 'whole episode')} each"
        if name not in summary:
            name, what = "training_return", f"training return of {seeds} over the last tenth"
        names = ["mean", "iqm", "min", "max"]
        print(f"\n{what}:\n{row(COLUMNS, names, INTERVAL)}\n{numbers(scores.shown[0], names)}")
    if num_cut := summary["eval_cut_episodes"]:
        total = experiment.num_trials * options.eval_episodes
        steps = episode_limit(experiment.env, options.eval_max_steps)
        print(f"{num_cut:,} of {total:,} evaluation episodes had not ended after {steps:,} steps and were cut")
    if scores.greedy_gap:
        greedy, training = scores.greedy_gap
        print(f"greedy actions score {greedy:.1f}, far below the training return of {training:.1f}; ", end="")
        print("if the policy needs its randomness, train with --eval-sampled")
    if len(scores.diverged):
        print(f"diverged (a parameter is not finite), in no number above: {experiment.name_trials(scores.diverged)}")
    for name, (steps, trials) in scores.unmeasured.items():
        print(f"{name} has no finite value from {steps:,} env steps on: {experiment.name_trials(trials)}")


def print_ranking(experiment: Experiment, directory: Path, scores: Scores) -> None:
    """Print the settings of a sweep, best first."""
    episodes = f"{experiment.policy} evaluation over {count(experiment.options.eval_episodes, 'whole episode')}"
    is_evaluated = scores.summary["ranked_by"] == "eval_episode_return"
    what = episodes if is_evaluated else "training return over the last tenth"
    seeds = count(experiment.options.num_seeds, "seed")
    print(f"\n{what}, {count(experiment.num_settings, 'setting')} with {seeds} each, best first:")
    names, head = [experiment.name_setting(index) for index in scores.ranking[:MAX_ROWS]], ""
    width = max(map(len, names))
    if experiment.is_halved:
        names = [f"{x:{width}} {scores.env_steps[i]:>12,}" for x, i in zip(names, scores.ranking, strict=False)]
        head, width = "env steps", width + 13
    print(f"{head:>{width}} {row(COLUMNS, list(COLUMNS), INTERVAL)}")
    for name, index in zip(names, scores.ranking, strict=False):
        lost = np.isin(scores.diverged, experiment.trials_at([index])).sum()
        mark = f"  {lost} of {seeds} diverged" if lost else ""
        print(f"{name:{width}} {numbers(scores.shown[index], list(COLUMNS))}{mark}")
    if len(scores.ranking) > MAX_ROWS:
        print(f"and {len(scores.ranking) - MAX_ROWS} more in {directory / store.SUMMARY}")
    statistic = experiment.options.rank_by.replace("-", "_")
    best = scores.settings[scores.ranking[0]][statistic]
    finalists = [scores.settings[i] for i in scores.ranking if scores.env_steps[i] == max(scores.env_steps)]
    if (num_tied := sum(setting[statistic] == best for setting in finalists)) > 1:
        what = COLUMNS[statistic]
        print(f"{num_tied} settings tie for the best {what}; their order is that of the mean, then that of --sweep")


def print_commands(experiment: Experiment, directory: Path, is_stopped: bool) -> None:
    """Print where the results are, and what can be done with them."""
    start, run = shlex.join(start_command(experiment.script)), shlex.quote(str(directory))
    longer = 2 * experiment.config.total_timesteps
    print(f"\nresults in {directory}")
    if not (is_stopped or experiment.is_halved):
        print(f"  extend:      {start} {resume_flag(directory)} --total-timesteps {longer}")
    with contextlib.suppress(ValueError):  # some environments cannot be drawn
        experiment.env.suite.renderer()
        print(f"  draw:        {tool_command('render', experiment.script, directory)}")
    print(f"  export:      {tool_command('export', experiment.script, directory)} --out policy.onnx")
    print(f"  compare:     python -m runner.compare {run} OTHER_RUN", flush=True)
    if experiment.options.wandb == "offline":
        print(f"  upload:      wandb sync {run}/wandb/offline-run-*", flush=True)
