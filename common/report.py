"""What a run says at its beginning and at its end, and the files that belong to the end."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common import files
from common.environment import make_env
from common.evaluation import evaluate
from common.lanes import is_finite, num_bytes
from common.plots import plot_curve
from common.setup import Progress, Setup
from common.statistics import learning_curve, summarize


def format_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.3g} {units[0]}"


def print_header(setup: Setup) -> None:
    """Say what is going to happen."""
    config, seeds = setup.config, setup.seeds
    lanes = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    device = f"{setup.lanes.sharding.num_devices} x {jax.local_devices()[0].device_kind}"
    print(f"{Path(setup.script).stem} on {config.env}, {lanes}, {device}")
    steps = f"{config.env_steps(config.num_iterations):,} env steps per seed in {config.num_iterations:,} iterations"
    print(f"{steps}, {format_bytes(num_bytes(setup.abstract_state))} of state", flush=True)


def report(setup: Setup, progress: Progress) -> None:
    """Evaluate, print the table, write the files that belong to the end."""
    scores = evaluate_seeds(setup, progress) if setup.options.eval_episodes else {}  # each [num_seeds]
    summary = {
        "env": setup.config.env,
        "env_steps": setup.config.env_steps(progress.iteration),
        "eval_episodes": setup.options.eval_episodes,
        "diverged_seeds": diverged_seeds(setup, progress),
        **{name: summarize(score) | {"per_seed": score.tolist()} for name, score in scores.items()},
    }
    print_table(summary)
    steps, metrics, title = setup.env_steps(progress.iteration), progress.metrics, Path(setup.script).stem
    curve = learning_curve(steps, metrics["episode_return"], metrics["num_episodes"])
    attempt(files.write_json, setup.directory / "summary.json", summary)
    attempt(files.write_curve, setup.directory / "curve.csv", curve)
    attempt(plot_curve, setup.directory / "curve.png", curve, f"{title} on {setup.config.env}")
    setup.tracker.finish(scores)
    print(f"results in {setup.directory}", flush=True)


def attempt(write: Callable, path: Path, *content: Any) -> None:
    """Write a file. Checkpoint and metrics are safe already: a disk that is full now must not look like a lost run."""
    try:
        write(path, *content)
    except OSError as error:
        print(f"warning: {path} is not written: {error}", file=sys.stderr)


def evaluate_seeds(setup: Setup, progress: Progress) -> dict[str, np.ndarray]:
    """Mean greedy return and length of `eval_episodes` whole episodes, for each seed."""
    env = make_env(setup.config.env)

    def evaluate_lane(state, key):
        return evaluate(env, lambda obs: setup.algorithm.act(state, obs), key, setup.options.eval_episodes)

    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(setup.keys, 2**32 - 1)  # apart from all that training draws
    episodes = jax.jit(jax.vmap(evaluate_lane))(progress.state, setup.lanes.place(keys))
    return {f"eval_{name}": np.asarray(setup.lanes.trim(x)).mean(axis=1) for name, x in episodes.items()}


def diverged_seeds(setup: Setup, progress: Progress) -> list[int]:
    """Seeds with a parameter or a loss that is not finite."""
    healthy = np.asarray(is_finite(setup.lanes.trim(progress.state).params))
    for name, x in progress.metrics.items():
        if not name.startswith("episode_"):  # these are NaN where no episode ended
            healthy = healthy & np.isfinite(x).all(axis=1)
    return [seed for seed, is_healthy in zip(setup.seeds, healthy, strict=True) if not is_healthy]


def print_table(summary: dict) -> None:
    """The scores over seeds."""
    if "eval_episode_return" in summary:
        score = summary["eval_episode_return"]
        seeds = "1 seed" if len(score["per_seed"]) == 1 else f"{len(score['per_seed'])} seeds"
        print(f"\ngreedy evaluation of {seeds}, {summary['eval_episodes']} whole episodes each:")
        print(f"{'mean':>10} {'IQM':>10} {'95 % CI of the IQM':>23} {'min':>10} {'max':>10}")
        interval = f"{score['ci_low']:.1f} to {score['ci_high']:.1f}" if len(score["per_seed"]) > 1 else "-"
        print(f"{score['mean']:10.1f} {score['iqm']:10.1f} {interval:>23} {score['min']:10.1f} {score['max']:10.1f}")
    if summary["diverged_seeds"]:
        print(f"diverged (a loss or a parameter is not finite): seeds {', '.join(map(str, summary['diverged_seeds']))}")
