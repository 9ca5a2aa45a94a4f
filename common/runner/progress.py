"""What a run prints while it trains: a progress bar on a terminal, plain lines anywhere else."""

import sys
import time

import jax
import numpy as np

from common.runner.experiment import Experiment
from common.runner.memory import available_bytes, format_bytes
from common.runner.statistics import iqm

SECONDS_BETWEEN_LINES = 10.0


def print_header(experiment: Experiment, num_devices: int, lane_bytes: int) -> None:
    """Print what is trained, on which devices, and how many lanes fit their memory."""
    config, options = experiment.config, experiment.options
    last = options.seed + options.num_seeds - 1
    seeds = f"seeds {options.seed} to {last}" if options.num_seeds > 1 else f"seed {options.seed}"
    sweep = f" of each of {experiment.num_settings} settings" if experiment.settings else ""
    device = f"{num_devices} x {jax.local_devices()[0].device_kind}"
    processes = f" in each of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(f"{experiment.algorithm} on {config.env}, {seeds}{sweep}, {device}{processes}")
    steps = f"{config.env_steps(config.num_iterations):,} env steps per seed in {config.num_iterations:,} iterations"
    memory = available_bytes(num_devices)
    room = f"at most {memory // lane_bytes:,} fit in {format_bytes(memory)} of memory"
    print(f"{steps}; {format_bytes(lane_bytes)} of state per lane, {room}", flush=True)


def latest_return(metrics: dict[str, np.ndarray]) -> float:
    """IQM over seeds of each seed's latest training return, NaN before the first episode has ended."""
    returns = metrics["episode_return"]
    last = returns.shape[1] - 1 - np.argmax(np.isfinite(returns[:, ::-1]), axis=1)
    latest = returns[np.arange(len(returns)), last]
    return float(iqm(latest[np.isfinite(latest)])) if np.isfinite(latest).any() else float("nan")


class ProgressDisplay:
    """Shows env steps of one lane, the speed over all lanes that are trained together, and the latest return."""

    def __init__(self, total_steps: int, done_steps: int, num_lanes: int):
        self.total_steps, self.num_lanes = total_steps, num_lanes
        self.start_steps, self.start_time = done_steps, time.perf_counter()
        self.last_line = -float("inf")
        self.bar = None
        if sys.stdout.isatty():
            from rich import progress

            text = progress.TextColumn("{task.description}")
            columns = (progress.BarColumn(), progress.TaskProgressColumn(), text, progress.TimeRemainingColumn(True))
            self.bar = progress.Progress(*columns)
            self.task = self.bar.add_task("", total=total_steps, completed=done_steps)

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_):
        if self.bar:
            self.bar.stop()

    def update(self, steps: int, metrics: dict[str, np.ndarray]) -> None:
        """Report that each lane has made `steps` env steps; metrics [num_lanes, num_iterations] so far."""
        elapsed = time.perf_counter() - self.start_time
        speed = (steps - self.start_steps) * self.num_lanes / max(elapsed, 1e-9)
        text = f"{speed:,.0f} steps/s  return {latest_return(metrics):.1f}"
        if self.bar:
            self.bar.update(self.task, completed=steps, description=text)
        elif steps >= self.total_steps or elapsed - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = elapsed
            left = (self.total_steps - steps) * self.num_lanes / max(speed, 1e-9)
            print(f"{steps:>12,} / {self.total_steps:,} steps  {text}  {left:.0f} s left", flush=True)
