"""Weights & Biases, fed by the host between segments."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common.cli import Options
from common.statistics import iqm
from common.sweep import count_settings


def check_wandb(mode: str) -> None:
    """Raises ValueError if wandb is asked for and not installed, or online and not logged in."""
    if mode == "disabled":
        return
    if importlib.util.find_spec("wandb") is None:
        raise ValueError(f"--wandb {mode} needs the package wandb: pip install wandb")
    if mode == "online" and not _is_logged_in():
        raise ValueError("--wandb online needs an account: run `wandb login` first, or use --wandb offline")


def _is_logged_in() -> bool:
    import wandb

    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.Error:
        return False


class Tracker:
    """Logs metrics on env steps: one run with the IQM over seeds, of each setting of a sweep; or one run for each lane.

    Runs of one command form a group.
    """

    def __init__(self, options: Options, directory: Path, config: Any, settings: dict[str, np.ndarray]):
        self.runs = []
        self.lanes = []  # of each run, which lanes it shows
        if options.wandb == "disabled" or jax.process_index() > 0:
            return
        import wandb  # half a second that a run without it need not wait

        group, num_seeds = f"{config.env}-{directory.name}", options.num_seeds
        for setting in range(count_settings(settings)):
            described = {name: float(str(values[setting])) for name, values in settings.items()}
            name = "-".join([group, *(f"{field}={value:g}" for field, value in described.items())])
            first = setting * num_seeds
            if options.wandb_per_seed:
                shown = {f"{name}-seed{options.seed + i}": (options.seed + i, [first + i]) for i in range(num_seeds)}
            else:
                shown = {name: (options.seed, list(range(first, first + num_seeds)))}
            for run_name, (seed, lanes) in shown.items():
                run = wandb.init(
                    mode=options.wandb,
                    project=options.wandb_project,
                    name=run_name,
                    group=group,
                    config=dataclasses.asdict(config) | described | {"seed": seed, "num_seeds": num_seeds},
                    dir=directory,
                    reinit="create_new",
                    settings=wandb.Settings(silent=True),
                )
                run.define_metric("env_steps")
                run.define_metric("*", step_metric="env_steps")
                self.runs.append(run)
                self.lanes.append(lanes)

    def log(self, env_steps: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
        """env_steps [n], metrics [num_lanes, n]; values that are not finite (no episode ended) are left out."""
        for run, lanes in zip(self.runs, self.lanes, strict=True):
            for i, step in enumerate(env_steps):
                values = {name: _iqm_of_finite(x[lanes, i]) for name, x in metrics.items()}
                run.log({"env_steps": int(step)} | {name: x for name, x in values.items() if np.isfinite(x)})

    def finish(self, evaluation: dict[str, np.ndarray]) -> None:
        """Put one score a lane, [num_lanes], into the summary and close."""
        for run, lanes in zip(self.runs, self.lanes, strict=True):
            run.summary.update({name: float(iqm(x[lanes])) for name, x in evaluation.items()})
            run.finish()


def _iqm_of_finite(x: np.ndarray) -> float:
    x = x[np.isfinite(x)]
    return float(iqm(x)) if len(x) else float("nan")
