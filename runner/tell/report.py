"""The end of a run: the tables that it prints and the files that it writes."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.environment import make_env
from runner.ask.cli import rerun_command, shown_path
from runner.experiment import EVAL_STEPS, Experiment, Result
from runner.folder import files
from runner.folder.record import describe_machine
from runner.machine.evaluation import episode_limit
from runner.tell.plots import plot_curve, plot_curves, plot_metrics, plot_sweep
from runner.tell.statistics import (
    Curve,
    evaluation_curve,
    final_return,
    finite_lanes,
    learning_curve,
    rank,
    summarize,
)
from runner.tell.timing import Timing

MAX_ROWS = 20  # settings in the table


def report(experiment: Experiment, directory: Path, result: Result, timing: Timing, preset: Any) -> None:
    """Print the table of scores and write summary.json, curve.csv and the plots. `preset`: of the environment."""
    with timing.measure("reporting"):
        summary = report_scores(experiment, directory, result, preset)
    summary |= {"timing": timing.summary()} | describe_machine()
    attempt(files.write_json, directory / "summary.json", summary)
    print_commands(experiment, directory)


def report_scores(experiment: Experiment, directory: Path, result: Result, preset: Any) -> dict[str, Any]:
    """Print the table of scores and write curve.csv and the plots; returns the scores for summary.json."""
    config, metrics, scores = experiment.config, result.metrics, dict(result.scores)
    num_cut = int(scores.pop("eval_cut_episodes", np.zeros(1)).sum())
    env_steps = experiment.env_steps(metrics["episode_return"].shape[1])
    is_healthy = scores.pop("is_healthy") & finite_lanes(metrics)
    title = f"{experiment.algorithm} on {config.env}"
    summary = {
        "env": config.env,
        "env_steps": int(env_steps[-1]),
        "eval_episodes": experiment.options.eval_episodes,
        "eval_cut_episodes": num_cut,
    }
    settings = [summarize_setting(experiment, scores, is_healthy, i) for i in range(experiment.num_settings)]
    curves = make_curves(experiment, env_steps, result)
    ranking = [0]
    if experiment.settings:
        training = final_return(metrics["episode_return"], metrics["num_episodes"])
        final = np.where(is_healthy, scores.get("eval_episode_return", training), np.nan)  # one that diverged is last
        ranked = [summarize(x) for x in experiment.by_setting(final)]
        ranking = rank(ranked)
        best, options = experiment.setting(ranking[0]), experiment.options
        rerun = rerun_command(experiment.script, config, preset, best, options.seed, options.num_seeds)
        print_ranking(experiment, directory, ranked, ranking, bool(scores))
        print(f"train the best setting again: {rerun}")
        summary |= {"settings": settings, "ranking": ranking, "rerun": rerun}
        is_grid = options.sweep_samples == 0
        attempt(plot_sweep, directory / "sweep.png", experiment.settings, ranked, is_grid, title)
        names = [experiment.name_setting(i) for i in range(experiment.num_settings)]
        attempt(plot_curves, directory / "curve.png", names, curves, ranking, title)
    else:
        summary |= settings[0]
        print_scores(summary)
        attempt(plot_curve, directory / "curve.png", {kind: x[0] for kind, x in curves.items()}, title)
    print_warnings(experiment, num_cut, np.flatnonzero(~is_healthy))
    shown = {name: experiment.by_setting(x)[ranking[0]] for name, x in metrics.items()}
    attempt(plot_metrics, directory / "metrics.png", env_steps, shown, title)
    attempt(files.write_curves, directory / "curve.csv", experiment.settings, curves)
    return summary


def make_curves(experiment: Experiment, env_steps: np.ndarray, result: Result) -> dict[str, list[Curve]]:
    """The learning curves of each setting: of the training return and, with two points or more, of the evaluation."""
    returns, counts = (experiment.by_setting(result.metrics[name]) for name in ("episode_return", "num_episodes"))
    curves = {"training": [learning_curve(env_steps, *x) for x in zip(returns, counts, strict=True)]}
    if len(result.evaluations.get(EVAL_STEPS, ())) > 1:
        steps, returns = result.evaluations[EVAL_STEPS], result.evaluations["eval_episode_return"]
        curves["evaluation"] = [evaluation_curve(steps, x) for x in experiment.by_setting(returns)]
    return curves


def attempt(write: Callable, path: Path, *content: Any) -> None:
    """Write a file. Checkpoint and metrics are saved already, so an error is only a warning."""
    try:
        write(path, *content)
    except OSError as error:
        print(f"warning: {path} is not written: {error}", file=sys.stderr)


def summarize_setting(
    experiment: Experiment, scores: dict[str, np.ndarray], is_healthy: np.ndarray, index: int
) -> dict[str, Any]:
    """What summary.json says of one setting."""
    seeds, healthy = (experiment.by_setting(x)[index] for x in (experiment.lane_seeds, is_healthy))
    by_setting = {name: experiment.by_setting(x)[index] for name, x in scores.items()}
    summaries = {name: summarize(x) | {"per_seed": x.tolist()} for name, x in by_setting.items()}
    return experiment.setting(index) | {"diverged_seeds": seeds[~healthy].tolist()} | summaries


def row(score: dict[str, float], names: list[str]) -> str:
    """Columns of a table: the named statistics, the interval after the IQM."""
    interval = f"{score['ci_low']:.1f} to {score['ci_high']:.1f}" if np.isfinite(score["ci_low"]) else "-"
    return " ".join(f"{score[name]:10.1f}" + (f" {interval:>23}" if name == "iqm" else "") for name in names)


def count(number: int, what: str) -> str:
    """1, "seed" -> '1 seed'."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_scores(summary: dict[str, Any]) -> None:
    """Print the scores over seeds."""
    if "eval_episode_return" in summary:
        score = summary["eval_episode_return"]
        seeds = count(len(score["per_seed"]), "seed")
        print(f"\ngreedy evaluation of {seeds}, {count(summary['eval_episodes'], 'whole episode')} each:")
        print(f"{'mean':>10} {'IQM':>10} {'95 % CI of the IQM':>23} {'min':>10} {'max':>10}")
        print(row(score, ["mean", "iqm", "min", "max"]))


def print_ranking(
    experiment: Experiment, directory: Path, scores: list[dict[str, float]], ranking: list[int], is_evaluated: bool
) -> None:
    """Print the settings of a sweep, best first."""
    episodes = f"greedy evaluation over {count(experiment.options.eval_episodes, 'whole episode')}"
    what = episodes if is_evaluated else "training return over the last tenth"
    seeds = count(experiment.options.num_seeds, "seed")
    print(f"\n{what}, {count(experiment.num_settings, 'setting')} with {seeds} each, best first:")
    names = [experiment.name_setting(index) for index in ranking[:MAX_ROWS]]
    width = max(map(len, names))
    print(f"{'':{width}} {'IQM':>10} {'95 % CI of the IQM':>23} {'min':>10} {'max':>10}")
    for name, index in zip(names, ranking, strict=False):
        print(f"{name:{width}} {row(scores[index], ['iqm', 'min', 'max'])}")
    if len(ranking) > MAX_ROWS:
        print(f"and {len(ranking) - MAX_ROWS} more in {directory / 'summary.json'}")


def print_warnings(experiment: Experiment, num_cut: int, diverged: np.ndarray) -> None:
    """Print how many evaluation episodes were cut, and which lanes diverged."""
    if num_cut:
        total = experiment.num_lanes * experiment.options.eval_episodes
        steps = episode_limit(make_env(experiment.config.env), experiment.options.eval_max_steps)
        print(f"{num_cut:,} of {total:,} evaluation episodes had not ended after {steps:,} steps and were cut")
    if len(diverged):
        print(f"diverged (a metric or a parameter is not finite): {experiment.name_lanes(diverged)}")


def print_commands(experiment: Experiment, directory: Path) -> None:
    """Print where the results are, and what can be done with them."""
    script, run = shlex.quote(shown_path(experiment.script)), shlex.quote(str(directory))
    longer = 2 * experiment.config.total_timesteps
    print(f"\nresults in {directory}")
    print(f"  continue:    python {script} --resume {run} --total-timesteps {longer}")
    print(f"  draw:        python -m runner.render {run}")
    print(f"  compare:     python -m runner.compare {run} OTHER_RUN", flush=True)
