"""What a run says while it trains: a progress bar on a terminal, plain lines anywhere else."""

import sys
import time

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from common.statistics import iqm

SECONDS_BETWEEN_LINES = 10.0


def latest_return(metrics: dict[str, np.ndarray]) -> float:
    """IQM over seeds of each seed's latest training return, NaN before the first episode has ended."""
    returns = metrics["episode_return"]
    last = returns.shape[1] - 1 - np.argmax(np.isfinite(returns[:, ::-1]), axis=1)
    latest = returns[np.arange(len(returns)), last]
    return float(iqm(latest[np.isfinite(latest)])) if np.isfinite(latest).any() else float("nan")


class ProgressReport:
    """Shows env steps of one lane, the speed over all lanes that are trained together and the current return."""

    def __init__(self, total_steps: int, done_steps: int, num_lanes: int):
        self.total_steps, self.num_lanes = total_steps, num_lanes
        self.start_steps, self.start_time = done_steps, time.perf_counter()
        self.last_line = -float("inf")
        self.bar = None
        if sys.stdout.isatty():
            columns = (
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(compact=True),
            )
            self.bar = Progress(*columns, console=Console())
            self.task = self.bar.add_task("", total=total_steps, completed=done_steps)

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_):
        if self.bar:
            self.bar.stop()

    def update(self, steps: int, metrics: dict[str, np.ndarray]) -> None:
        """Report that each lane has made `steps` env steps; metrics [num_seeds, num_iterations] so far."""
        elapsed = time.perf_counter() - self.start_time
        speed = (steps - self.start_steps) * self.num_lanes / max(elapsed, 1e-9)
        text = f"{speed:,.0f} steps/s  return {latest_return(metrics):.1f}"
        if self.bar:
            self.bar.update(self.task, completed=steps, description=text)
        elif steps >= self.total_steps or elapsed - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = elapsed
            left = (self.total_steps - steps) * self.num_lanes / max(speed, 1e-9)
            print(f"{steps:>12,} / {self.total_steps:,} steps  {text}  {left:.0f} s left", flush=True)
