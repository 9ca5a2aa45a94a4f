"""Logs metrics to Weights & Biases between segments."""

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.experiment import EVAL_METRICS, EVAL_STEPS, Experiment, Result
from runner.options.fields import PROCESS, Options
from runner.report.statistics import iqm


def check_wandb(options: Options) -> None:
    """Raise ValueError if wandb is asked for and cannot work as asked, or is not asked for and has an option."""
    mode, project = options.wandb, options.wandb_project
    if mode == "disabled":
        if options.wandb_per_seed and not options.resume:
            raise ValueError("--wandb-per-seed has no effect without --wandb offline or --wandb online")
        return
    if importlib.util.find_spec("wandb") is None:
        raise ValueError(f"--wandb {mode} needs the package wandb: pip install wandb")
    if "WANDB_SWEEP_ID" in os.environ and (options.sweep or (options.wandb_per_seed and options.num_seeds > 1)):
        flag = "--sweep" if options.sweep else "--wandb-per-seed"
        raise ValueError(f"an agent of wandb takes one wandb run from each command: leave {flag} out")
    if len(project) > 128 or set(project) & set("/\\#?%:"):
        raise ValueError(f"wandb_project must have at most 128 characters and none of / \\ # ? % :, not {project!r}")
    if not os.path.isabs(os.path.expanduser("~")):
        raise ValueError(f"--wandb {mode} needs a home directory: set HOME")
    if mode == "online" and not _is_logged_in():
        raise ValueError("--wandb online needs an account: run `wandb login` first, or use --wandb offline")


def _is_logged_in() -> bool:
    import wandb

    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.Error:
        return False


class Tracker:
    """Logs metrics on env steps: one wandb run per setting with the IQM over seeds, or one per trial, in one group.

    A resumed run continues its wandb runs: their ids are derived from `wandb_id`. The step of wandb is the env step:
    wandb counts from 0 again when a run is resumed offline.
    """

    def __init__(self, experiment: Experiment, directory: Path, wandb_id: str):
        self.experiment, self.wandb_id = experiment, wandb_id
        self.runs = []  # pairs of a wandb run and the trials that it shows
        options = experiment.options
        if options.wandb == "disabled" or jax.process_index() > 0:
            return
        group = f"{experiment.algorithm}-{experiment.config.env}-{directory.name}"
        config = {"algorithm": experiment.algorithm} | dataclasses.asdict(experiment.config)
        config |= {name: x for name, x in dataclasses.asdict(options).items() if name not in PROCESS}
        trials = np.arange(experiment.num_trials)
        for index, trials_of_setting in enumerate(experiment.by_setting(trials)):
            setting = experiment.setting(index)
            name = "-".join([group, *experiment.name_setting(index).split()])
            shown = trials_of_setting[:, None] if options.wandb_per_seed else trials_of_setting[None]
            for trials in shown:
                seed = int(experiment.trial_seeds[trials[0]])
                run = _init(
                    mode=options.wandb,
                    project=options.wandb_project,
                    id=f"{wandb_id}-{'seed' * options.wandb_per_seed}{len(self.runs)}",
                    resume="allow",
                    name=f"{name}-seed{seed}" if options.wandb_per_seed else name,
                    group=group,
                    tags=[experiment.algorithm],
                    config=config | setting | {"seed": seed},
                    dir=directory,
                    reinit="create_new",
                )
                run.define_metric("env_steps")
                run.define_metric("*", step_metric="env_steps")
                self.runs.append((run, trials))

    def log(self, env_steps: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
        """env_steps [n], ascending from call to call; what is logged at the same one is joined. Of metrics
        [num_trials, n] those that are not finite (no episode ended) are left out."""
        for run, trials in self.runs:
            for i, step in enumerate(env_steps.tolist()):
                known = {name: x[trials, i][np.isfinite(x[trials, i])] for name, x in metrics.items()}
                values = {name: _over_trials(name, x) for name, x in known.items() if len(x)}
                if values:
                    run.log({"env_steps": step} | values, step=step)

    def log_result(self, env_steps: np.ndarray, result: Result) -> None:
        """Log all metrics and evaluations of a run that was trained part by part; env_steps [num_iterations].

        wandb takes no step below the last one, so evaluations are logged among the metrics.
        """
        evaluated = result.evaluations.get(EVAL_STEPS, np.empty(0, np.int64))
        steps, metrics = np.union1d(env_steps, evaluated), {}
        has_ended = np.arange(len(env_steps)) >= result.num_iterations[:, None]
        records = {name: np.where(has_ended, np.nan, x) for name, x in result.metrics.items()}
        for name, x in (records | result.evaluations).items():
            if name != EVAL_STEPS:
                metrics[name] = np.full((len(x), len(steps)), np.nan)
                metrics[name][:, np.isin(steps, evaluated if name in EVAL_METRICS else env_steps)] = x
        self.log(steps, metrics)

    def log_episode(self, env_steps: int, path: Path) -> None:
        """Log an animation of the first trial, a .gif, .html or .svg, which may be removed afterwards."""
        import wandb

        media = wandb.Video(str(path)) if path.suffix == ".gif" else wandb.Html(path.read_text())
        run, _ = self.runs[0]
        run.log({"env_steps": env_steps, "episode": media}, step=env_steps)

    def finish(self, result: Result) -> None:
        """Write the scores of the trials into the summary and close."""
        for run, trials in self.runs:
            run.summary.update({name: _over_trials(name, x[trials]) for name, x in result.scores.items()})
            run.finish()


def _init(**arguments: Any) -> Any:
    """Start or continue a run of wandb. Raises ValueError if wandb cannot, as without a network or with a wrong key."""
    import wandb

    try:
        return wandb.init(**arguments, settings=wandb.Settings(silent=True))
    except wandb.errors.Error as error:
        raise ValueError(f"wandb cannot start: {error}; --wandb offline needs no network") from error


def _over_trials(name: str, x: np.ndarray) -> float:
    """The IQM of some trials, of `is_healthy` the share."""
    return float(np.mean(x) if name == "is_healthy" else iqm(x))
