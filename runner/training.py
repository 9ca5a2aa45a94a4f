"""Training: segments of one compiled program; between segments the host reports, logs and saves."""

import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.devices.evaluation import evaluated_iterations
from runner.devices.memory import divide_lanes, num_bytes
from runner.devices.programs import Programs
from runner.devices.stop import StopSignal
from runner.experiment import (
    EVAL_METRICS,
    EVAL_STEPS,
    Experiment,
    Part,
    Progress,
    Result,
    append_evaluation,
    append_metrics,
)
from runner.files import checkpoint, store
from runner.files.claim import discard
from runner.files.record import write_record
from runner.report.progress import ProgressDisplay, print_header
from runner.report.timing import Timing
from runner.report.tracking import Tracker, with_health

SECONDS_PER_SEGMENT = 1.0  # target duration of a segment


@dataclass
class Run:
    """A run, from its checked command line to its report. This process trains some of its parts, one after another."""

    experiment: Experiment
    preset: Any  # Config of the environment, None without one
    abstract_state: Any  # shapes and dtypes of the State of one lane
    directory: Path
    parts: list[Part]  # of all processes; those of a resumed run, else empty until `begin`
    wandb_id: str  # from which the ids of the wandb runs are made
    claim: contextlib.ExitStack  # on the directory; process 0 holds it for all
    stop: StopSignal
    timing: Timing
    programs: Programs = field(init=False)  # from here on by `begin`
    tracker: Tracker = field(init=False)

    def begin(self) -> None:
        """Write the record of a new run, divide its lanes into parts, and compile."""
        experiment, options = self.experiment, self.experiment.options
        if not options.resume:  # before compiling, so that a run killed meanwhile can be resumed
            write_record(self.directory, experiment, [], self.wandb_id)
        num_devices = options.devices or jax.local_device_count()
        print_header(experiment, self.preset is not None, num_devices, self.abstract_state)
        make_programs = lambda num_lanes: Programs(experiment, self.abstract_state, num_lanes, num_devices)  # noqa: E731
        try:
            lane_bytes = num_bytes(self.abstract_state)
            self.programs, self.parts = divide_lanes(make_programs, experiment, num_devices, lane_bytes, self.parts)
        except Exception:  # also one of the script's own, such as a changed loss raises when it is traced
            if not options.resume:
                discard(self.directory)
            raise
        self.timing.compiling = self.programs.compile_seconds
        self.tracker = Tracker(experiment, self.directory, self.wandb_id)

    def folder_of(self, part: Part) -> Path:
        """The folder of the checkpoint and the metrics of a part."""
        return store.part_folder(self.directory, self.parts, part)

    def train_parts(self) -> dict[Part, Result]:
        """Train and evaluate the parts of this process."""
        results = {}
        for part in self.parts[jax.process_index() :: jax.process_count()]:
            if len(self.parts) > 1:
                first, last = (self.experiment.name_lane(lane) for lane in (part.start, part.stop - 1))
                print(f"part {self.parts.index(part) + 1} of {len(self.parts)}: {first} to {last}", flush=True)
            progress = self.train(part, self.start(part))
            if progress.iteration > 0:
                results[part] = self.finish(part, progress)
                if jax.process_count() > 1:
                    store.write_arrays(self.folder_of(part) / store.EVALUATION, results[part].scores)
            if self.stop.received:
                break
            del progress  # its state would share the memory with that of the next part
        return results

    def start(self, part: Part) -> Progress:
        """A part starts from a fresh State, or from its checkpoint when resuming.

        The record is written when the checkpoint has been read: a run that cannot be resumed stays as it is.
        """
        path, options = self.folder_of(part) / store.CHECKPOINT, self.experiment.options
        iteration = checkpoint.read_iteration(path) if options.resume else None
        settings, keys = self.programs.inputs(part)
        if iteration is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_record(self.directory, self.experiment, self.parts, self.wandb_id)
            return Progress(0, self.programs.init.result()(settings, keys), {}, {})
        spread = lambda x: jax.ShapeDtypeStruct((part.num_lanes, *x.shape), x.dtype)  # noqa: E731
        state = checkpoint.restore(path, jax.tree.map(spread, self.abstract_state), self.programs.state)
        steps, lanes = self.experiment.env_steps(iteration), self.experiment.lanes_of(part)
        metrics, evaluations = store.read_metrics(path.parent, steps, lanes)
        if getattr(self.abstract_state, "buffer", None) is not None and state.buffer is None:
            print("the checkpoint has no replay buffer: it is filled again with random transitions", flush=True)
            state = state.replace(buffer=self.programs.refill(part))
        write_record(self.directory, self.experiment, self.parts, self.wandb_id)
        print(f"resumed {path.parent} at {steps[-1]:,} env steps", flush=True)
        return Progress(iteration, state, metrics, evaluations)

    def train(self, part: Part, progress: Progress) -> Progress:
        """Run segments until the end or a signal, evaluate before and between them, and save."""
        config, options, total = self.experiment.config, self.experiment.options, self.experiment.config.num_iterations
        if progress.iteration >= total:
            return progress
        settings, _ = self.programs.inputs(part)
        evaluated = evaluated_iterations(self.experiment)
        if progress.iteration == 0 and 0 in evaluated:
            progress = self.record(part, progress, self.evaluate(part, progress))
        seconds, length = min(SECONDS_PER_SEGMENT, options.checkpoint_every), 1
        saved, saved_time = progress.iteration, time.perf_counter()
        with ProgressDisplay(self.experiment, part, progress.iteration) as display:
            while progress.iteration < total and not self.stop.received:
                started, start = time.perf_counter(), progress.iteration
                end = min(start + length, total, *evaluated[evaluated > start][:1].tolist())
                state, records = self.programs.segment(settings, progress.state, np.int32(start), np.int32(end))
                records = {name: np.asarray(x)[: part.num_lanes, : end - start] for name, x in records.items()}
                elapsed = time.perf_counter() - started
                self.timing.add_training(elapsed, (config.env_steps(end) - config.env_steps(start)) * part.num_lanes)
                length = int(np.clip((end - start) / elapsed * seconds, 1, self.programs.capacity))
                progress = Progress(end, state, append_metrics(progress.metrics, records), progress.evaluations)
                self.log(part, self.experiment.env_steps(end)[start:], with_health(self.experiment, records))
                if end in evaluated:
                    progress = self.record(part, progress, self.evaluate(part, progress))
                display.update(progress, records)
                if time.perf_counter() - saved_time >= options.checkpoint_every:
                    self.save(part, progress)
                    saved, saved_time = progress.iteration, time.perf_counter()
        if saved < progress.iteration:
            self.save(part, progress)
        return progress

    def save(self, part: Part, progress: Progress) -> None:
        """Write metrics and checkpoint. Metrics come first: a checkpoint never has iterations without metrics."""
        self.write_metrics(part, progress)
        state, path = progress.state, self.folder_of(part) / store.CHECKPOINT
        if not self.experiment.options.checkpoint_buffer and hasattr(state, "buffer"):
            state = state.replace(buffer=None)
        with self.timing.measure("saving"):
            checkpoint.save(path, progress.iteration, state, part.num_lanes)

    def write_metrics(self, part: Part, progress: Progress) -> None:
        """Write metrics.npz of a part."""
        env_steps, lanes = self.experiment.env_steps(progress.iteration), self.experiment.lanes_of(part)
        with self.timing.measure("saving"):
            store.write_metrics(self.folder_of(part), env_steps, lanes, progress.metrics, progress.evaluations)

    def evaluate(self, part: Part, progress: Progress) -> dict[str, np.ndarray]:
        """Scores of the lanes, [num_lanes] each; empty, with a warning, if the evaluation fails."""
        try:
            with self.timing.measure("evaluating"):
                return self.programs.evaluate(part, progress.state, progress.iteration)
        except jax.errors.JaxRuntimeError as error:
            print(f"warning: no evaluation: {str(error).splitlines()[0]}; lower --eval-episodes", file=sys.stderr)
            return {}

    def record(self, part: Part, progress: Progress, scores: dict[str, np.ndarray]) -> Progress:
        """Add the scores of an evaluation, if it did not fail, to the learning curve."""
        if not scores:
            return progress
        # The untrained policy is at 0, also where init has stepped the environments to fill a replay buffer.
        env_steps = self.experiment.config.env_steps(progress.iteration) if progress.iteration else 0
        evaluations = append_evaluation(progress.evaluations, env_steps, scores)
        self.log(part, evaluations[EVAL_STEPS][-1:], {name: evaluations[name][:, -1:] for name in EVAL_METRICS})
        return progress._replace(evaluations=evaluations)

    def log(self, part: Part, env_steps: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
        """Log metrics [num_lanes, n] to wandb; with several parts that is done at the end, when all are there."""
        if part.num_lanes == self.experiment.num_lanes:
            self.tracker.log(env_steps, metrics)

    def finish(self, part: Part, progress: Progress) -> Result:
        """Evaluate a part that has been trained. It is already saved, whatever happens here."""
        scores = self.evaluate(part, progress) if self.experiment.options.eval_episodes else {}
        if progress.iteration == self.experiment.config.num_iterations:
            progress = self.record(part, progress, scores)
            self.write_metrics(part, progress)
        scores |= {"is_healthy": self.programs.is_healthy(part, progress.state)}
        return Result(progress.metrics, progress.evaluations, scores)

    def read_result(self, part: Part) -> Result:
        """The result written by another process."""
        path, lanes = self.folder_of(part), self.experiment.lanes_of(part)
        env_steps = self.experiment.env_steps(self.experiment.config.num_iterations)
        return Result(*store.read_metrics(path, env_steps, lanes), store.read_evaluation(path))
