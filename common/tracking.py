"""Weights & Biases, fed by the host between segments."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from common.cli import Options
from common.statistics import iqm


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
    """Logs metrics on env steps: the IQM over seeds in one run, or one run for each seed in a group."""

    def __init__(self, options: Options, directory: Path, config: dict[str, Any], seeds: list[int]):
        self.runs = []
        self.per_seed = options.wandb_per_seed
        if options.wandb == "disabled":
            return
        import wandb  # half a second that a run without it need not wait

        group = f"{config['env']}-{directory.name}"
        for name, seed in [(f"{group}-seed{seed}", seed) for seed in seeds] if self.per_seed else [(group, seeds[0])]:
            run = wandb.init(
                mode=options.wandb,
                project=options.wandb_project,
                name=name,
                group=group,
                config=config | {"seed": seed, "num_seeds": len(seeds)},
                dir=directory,
                reinit="create_new",
                settings=wandb.Settings(silent=True),
            )
            run.define_metric("env_steps")
            run.define_metric("*", step_metric="env_steps")
            self.runs.append(run)

    def log(self, env_steps: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
        """env_steps [n], metrics [num_seeds, n]; values that are not finite (no episode ended) are left out."""
        for lane, run in enumerate(self.runs):
            for i, step in enumerate(env_steps):
                values = {name: x[lane, i] if self.per_seed else _iqm_of_finite(x[:, i]) for name, x in metrics.items()}
                run.log({"env_steps": int(step)} | {name: float(x) for name, x in values.items() if np.isfinite(x)})

    def finish(self, evaluation: dict[str, np.ndarray]) -> None:
        """Put one score a seed, [num_seeds], into the summary and close."""
        for lane, run in enumerate(self.runs):
            run.summary.update({name: float(x[lane] if self.per_seed else iqm(x)) for name, x in evaluation.items()})
            run.finish()


def _iqm_of_finite(x: np.ndarray) -> float:
    x = x[np.isfinite(x)]
    return float(iqm(x)) if len(x) else float("nan")
