"""Progress of a run: a bar on a terminal, plain lines anywhere else."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

import jax
import numpy as np

from common.presets import find_preset
from runner.devices.memory import describe_state
from runner.experiment import Experiment, Part, Progress
from runner.report.statistics import iqm

SECONDS_BETWEEN_LINES = 10.0


def print_header(experiment: Experiment, has_preset: bool, num_devices: int, abstract_state: Any) -> None:
    """Print what is trained, on which devices, how many trials fit their memory, and what a user may not expect."""
    config, options = experiment.config, experiment.options
    last = options.seed + options.num_seeds - 1
    seeds = f"seeds {options.seed} to {last}" if options.num_seeds > 1 else f"seed {options.seed}"
    sweep = f" of each of {experiment.num_settings} settings" if experiment.settings else ""
    device = f"{num_devices} x {jax.local_devices()[0].device_kind}"
    processes = f" in each of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(f"{experiment.algorithm} on {config.env}, {seeds}{sweep}, {device}{processes}")
    if not (has_preset or options.resume):
        print(f"presets/{experiment.algorithm}.toml has no preset for this environment: Config's defaults are used")
    steps = f"{config.env_steps(config.num_iterations):,} env steps per seed in {config.num_iterations:,} iterations"
    print(f"{steps}; {describe_state(abstract_state, num_devices)}")
    if has_preset and not options.preset and not options.resume and jax.local_devices()[0].platform == "cpu":
        _name_small_preset(experiment)
    sys.stdout.flush()


def _name_small_preset(experiment: Experiment) -> None:
    """Say on a CPU that the preset is of GPU size, where the environment has another one, named small."""
    config = experiment.config
    with contextlib.suppress(ValueError):  # there is none
        small = find_preset(type(config), config.env, "small")
        steps, fewer = (f"{x.env_steps(x.num_iterations):,}" for x in (config, small))
        print(f"this preset is of GPU size, {steps} env steps per seed; on a CPU, --preset small takes {fewer}")


def latest_return(metrics: dict[str, np.ndarray]) -> float:
    """IQM over seeds of each seed's latest training return, NaN before the first episode has ended."""
    returns = metrics["episode_return"]
    last = returns.shape[1] - 1 - np.argmax(np.isfinite(returns[:, ::-1]), axis=1)
    latest = returns[np.arange(len(returns)), last]
    return float(iqm(latest[np.isfinite(latest)])) if np.isfinite(latest).any() else float("nan")


@contextlib.contextmanager
def ignore_write_errors() -> Iterator[None]:
    """Go on where stdout or stderr can no longer be written, and say once on stderr that stdout is lost."""
    stderr = IgnoreWriteErrors(sys.stderr)
    stdout = IgnoreWriteErrors(sys.stdout, notices=stderr)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            yield
        finally:
            stdout.flush()
            stderr.flush()


class IgnoreWriteErrors:
    """A stream on which a closed pipe or terminal or a full disk is no error; the rest of the output is dropped."""

    def __init__(self, stream: IO[str] | None, notices: Any = None):
        self.stream = stream or open(os.devnull, "w")  # noqa: SIM115, a process may begin without stdout or stderr
        self.notices = notices

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write, or drop the text from the first error on."""
        return self._attempt(self.stream.write, text)

    def flush(self) -> None:
        """Flush, or drop the text from the first error on."""
        self._attempt(self.stream.flush)

    def _attempt(self, method: Any, *args: str) -> Any:
        try:
            return method(*args)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # so what is in its buffer is no error when the process ends
            os.close(nowhere)
            if self.notices:
                print(f"note: stdout is lost ({error.strerror}); the run goes on without it", file=self.notices)


class ProgressDisplay:
    """Shows env steps of one trial, the speed over all trials that are trained together, and the latest returns."""

    def __init__(self, experiment: Experiment, part: Part, iteration: int, stop: int):
        self.experiment, self.part = experiment, part
        self.total_steps = experiment.config.env_steps(stop)
        self.start_steps, self.start_time = experiment.config.env_steps(iteration), time.perf_counter()
        self.last_line = -float("inf")
        self.diverged = np.zeros(part.num_trials, bool)
        self.bar = None
        if sys.stdout.isatty():
            from rich import progress

            text = progress.TextColumn("{task.description}")
            columns = (progress.BarColumn(), progress.TaskProgressColumn(), text, progress.TimeRemainingColumn(True))
            self.bar = progress.Progress(*columns)
            self.task = self.bar.add_task("", total=self.total_steps, completed=self.start_steps)

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_):
        if self.bar:
            self.bar.stop()

    def update(self, progress: Progress, is_healthy: np.ndarray) -> None:
        """Report the progress so far; is_healthy: whether all parameters of a trial are finite, [num_trials] bool."""
        steps = self.experiment.config.env_steps(progress.iteration)
        elapsed = time.perf_counter() - self.start_time
        speed = (steps - self.start_steps) * self.part.num_trials / max(elapsed, 1e-9)
        text = f"{speed:,.0f} steps/s  return {latest_return(progress.metrics):.1f}"
        if progress.evaluations and steps < self.total_steps:  # at the end it would not be the one of the report
            text += f"  {self.experiment.policy} {iqm(progress.evaluations['eval_episode_return'][:, -1]):.1f}"
        self._warn(steps, is_healthy)
        if self.diverged.any():
            noun = "trials" if self.experiment.settings else "seeds"
            text += f"  {self.diverged.sum():,} of {len(self.diverged):,} {noun} diverged"
        if self.bar:
            self.bar.update(self.task, completed=steps, description=text)
        elif steps >= self.total_steps or elapsed - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = elapsed
            left = (self.total_steps - steps) * self.part.num_trials / max(speed, 1e-9)
            print(f"{steps:>12,} / {self.total_steps:,} steps  {text}  {left:.0f} s left", flush=True)

    def _warn(self, steps: int, is_healthy: np.ndarray) -> None:
        """Say once of each trial that it has diverged. While the bar is shown, print writes above it."""
        new = np.flatnonzero(~is_healthy & ~self.diverged)
        self.diverged |= ~is_healthy
        if len(new):
            trials = self.experiment.name_trials(self.part.start + new)
            print(f"diverged by {steps:,} env steps (a parameter is not finite): {trials}", flush=True)
