"""What a run says at its beginning and at its end, and the files that belong to the end."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common import files
from common.cli import rerun_command
from common.plots import plot_curve, plot_curves, plot_sweep
from common.setup import Setup
from common.statistics import final_return, learning_curve, rank, summarize
from common.sweep import describe

MOST_ROWS = 20  # settings in the table


def format_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.3g} {units[0]}"


def count(number: int, what: str) -> str:
    """1, "seed" -> '1 seed'."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_header(setup: Setup, memory: str) -> None:
    """Say what is going to happen."""
    config, options = setup.config, setup.options
    last = options.seed + options.num_seeds - 1
    seeds = f"seeds {options.seed} to {last}" if options.num_seeds > 1 else f"seed {options.seed}"
    sweep = f" of each of {count(setup.num_settings, 'setting')}" if setup.settings else ""
    device = f"{setup.num_devices} x {jax.local_devices()[0].device_kind}"
    processes = f" in each of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(f"{Path(setup.script).stem} on {config.env}, {seeds}{sweep}, {device}{processes}")
    steps = f"{config.env_steps(config.num_iterations):,} env steps per seed in {config.num_iterations:,} iterations"
    print(f"{steps}; {memory}", flush=True)


def report(setup: Setup, metrics: dict[str, np.ndarray], scores: dict[str, np.ndarray], is_healthy: np.ndarray) -> None:
    """Print the table, write the files that belong to the end.

    Args:
        metrics: of all lanes, [num_lanes, num_iterations].
        scores: of the greedy evaluation, [num_lanes] each, empty if there was none.
        is_healthy: [num_lanes], all parameters are finite.
    """
    config, options, directory = setup.config, setup.options, setup.directory
    num_iterations = metrics["episode_return"].shape[1]
    for x in metrics.values():
        is_undefined = metrics["num_episodes"] == 0  # means over episodes are NaN there
        is_healthy = is_healthy & (np.isfinite(x) | is_undefined).all(axis=1)
    results, curves = [], []  # of each setting; a run without a sweep has one
    for index in range(setup.num_settings):
        lanes = slice(index * options.num_seeds, (index + 1) * options.num_seeds)
        diverged = [int(seed) for seed in setup.seeds[lanes][~is_healthy[lanes]]]
        summaries = {name: summarize(x[lanes]) | {"per_seed": x[lanes].tolist()} for name, x in scores.items()}
        results.append(setup.setting(index) | {"diverged_seeds": diverged} | summaries)
        returns, num_episodes = metrics["episode_return"][lanes], metrics["num_episodes"][lanes]
        curves.append(learning_curve(setup.env_steps(num_iterations), returns, num_episodes))

    env_steps, title = config.env_steps(num_iterations), f"{Path(setup.script).stem} on {config.env}"
    summary = {"env": config.env, "env_steps": env_steps, "eval_episodes": options.eval_episodes}
    if setup.settings:
        training = final_return(metrics["episode_return"], metrics["num_episodes"])
        score = scores.get("eval_episode_return", training).reshape(setup.num_settings, options.num_seeds)
        ranked = [summarize(x) for x in score]
        ranking = rank(ranked)
        best = setup.setting(ranking[0])
        rerun = rerun_command(setup.script, config, setup.default, best, options.seed, options.num_seeds)
        print_ranking(setup, ranked, ranking, rerun)
        summary |= {"settings": results, "ranking": ranking, "rerun": rerun}
        is_grid = options.sweep_samples == 0
        attempt(plot_sweep, directory / "sweep.png", setup.settings, ranked, is_grid, title)
        attempt(plot_curves, directory / "curve.png", setup.settings, curves, ranking, title)
    else:
        summary |= results[0]
        print_scores(summary)
        attempt(plot_curve, directory / "curve.png", curves[0], title)
    print_diverged(setup, np.flatnonzero(~is_healthy))
    attempt(files.write_json, directory / "summary.json", summary)
    attempt(files.write_curves, directory / "curve.csv", setup.settings, curves)
    setup.tracker.finish(scores)
    print(f"results in {directory}", flush=True)


def attempt(write: Callable, path: Path, *content: Any) -> None:
    """Write a file. Checkpoint and metrics are safe already: a disk that is full now must not look like a lost run."""
    try:
        write(path, *content)
    except OSError as error:
        print(f"warning: {path} is not written: {error}", file=sys.stderr)


def row(score: dict[str, float], names: list[str]) -> str:
    """Columns of a table: the named statistics, the interval behind the IQM."""
    interval = f"{score['ci_low']:.1f} to {score['ci_high']:.1f}" if np.isfinite(score["ci_low"]) else "-"
    return " ".join(f"{score[name]:10.1f}" + (f" {interval:>23}" if name == "iqm" else "") for name in names)


def print_scores(summary: dict[str, Any]) -> None:
    """The scores over seeds."""
    if "eval_episode_return" in summary:
        score = summary["eval_episode_return"]
        seeds = count(len(score["per_seed"]), "seed")
        print(f"\ngreedy evaluation of {seeds}, {summary['eval_episodes']} whole episodes each:")
        print(f"{'mean':>10} {'IQM':>10} {'95 % CI of the IQM':>23} {'min':>10} {'max':>10}")
        print(row(score, ["mean", "iqm", "min", "max"]))


def print_ranking(setup: Setup, scores: list[dict[str, float]], ranking: list[int], rerun: str) -> None:
    """The settings of a sweep, best first, and how to run the best one again."""
    episodes = f"greedy evaluation over {count(setup.options.eval_episodes, 'whole episode')}"
    what = episodes if setup.options.eval_episodes else "training return over the last tenth"
    seeds = count(setup.options.num_seeds, "seed")
    print(f"\n{what}, {count(setup.num_settings, 'setting')} with {seeds} each, best first:")
    names = [describe(setup.settings, index) for index in ranking[:MOST_ROWS]]
    width = max(map(len, names))
    print(f"{'':{width}} {'IQM':>10} {'95 % CI of the IQM':>23} {'min':>10} {'max':>10}")
    for name, index in zip(names, ranking, strict=False):
        print(f"{name:{width}} {row(scores[index], ['iqm', 'min', 'max'])}")
    if len(ranking) > MOST_ROWS:
        print(f"and {len(ranking) - MOST_ROWS} more in {setup.directory / 'summary.json'}")
    print(f"the best again: {rerun}")


def print_diverged(setup: Setup, lanes: np.ndarray) -> None:
    """The lanes that are lost, if any."""
    if len(lanes):
        names = [setup.name_lane(lane) for lane in lanes[:MOST_ROWS]]
        more = f" and {len(lanes) - MOST_ROWS} more" if len(lanes) > MOST_ROWS else ""
        print(f"diverged (a loss or a parameter is not finite): {', '.join(names)}{more}")
