"""Training of a part: segments of one compiled program; between segments the host reports, logs and saves."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from runner.devices.evaluation import evaluated_iterations
from runner.devices.programs import Programs
from runner.devices.stop import StopSignal
from runner.experiment import (
    EVAL_METRICS,
    EVAL_STEPS,
    Experiment,
    Part,
    Progress,
    Result,
    Rung,
    append_evaluation,
    append_metrics,
)
from runner.files import checkpoint, store
from runner.report.progress import ProgressDisplay
from runner.report.timing import Timing

SECONDS_PER_SEGMENT = 1.0  # target duration of a segment


@dataclass
class Trainer:
    """Trains parts of a rung from where they start to the end of the rung."""

    experiment: Experiment  # of the settings of the rung
    rung: Rung
    directory: Path  # of the rung
    programs: Programs
    log: Callable[[np.ndarray, dict[str, np.ndarray]], None]  # env steps [n], metrics [num_trials, n]
    stop: StopSignal
    timing: Timing

    def folder_of(self, part: Part) -> Path:
        """The folder of the checkpoint and the metrics of a part."""
        return store.part_folder(self.directory, self.rung.parts, part)

    def resume(self, part: Part, iteration: int) -> Progress:
        """A part goes on from its checkpoint, which was written after this many iterations."""
        folder, abstract_state = self.folder_of(part), self.programs.abstract_state
        path = folder / store.CHECKPOINT
        if iteration > self.rung.stop:
            raise ValueError(f"{path} is of iteration {iteration:,}, after the end of the run")
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((part.num_trials, *x.shape), x.dtype), abstract_state)
        state = checkpoint.restore(path, shapes, self.programs.state)
        steps, trials = self.experiment.env_steps(iteration), self.experiment.trials_of(part)
        metrics, evaluations = store.read_metrics(folder, steps, trials)
        if getattr(abstract_state, "buffer", None) is not None and state.buffer is None:
            print("the checkpoint has no replay buffer: it is filled again with random transitions", flush=True)
            state = state.replace(buffer=self.programs.refill(part))
        return Progress(iteration, state, metrics, evaluations)

    def train(self, part: Part, progress: Progress) -> Progress:
        """Run segments until the end or a signal, evaluate before them, and save after them."""
        config, options, total = self.experiment.config, self.experiment.options, self.rung.stop
        if progress.iteration >= total:
            return progress
        settings, _ = self.programs.inputs(part)
        evaluated = evaluated_iterations(self.experiment)
        seconds, length = min(SECONDS_PER_SEGMENT, options.checkpoint_every), 1
        saved, saved_time = progress.iteration, time.perf_counter()
        with ProgressDisplay(self.experiment, part, progress.iteration, total) as display:
            while progress.iteration < total and not self.stop.received:
                if progress.iteration in evaluated and not self.is_evaluated(progress):
                    progress = self.record(progress, self.evaluate(part, progress))
                    if self.stop.received:
                        break
                started, start = time.perf_counter(), progress.iteration
                end = min(start + length, total, *evaluated[evaluated > start][:1].tolist())
                state, records = self.programs.segment(settings, progress.state, np.int32(start), np.int32(end))
                records = {name: np.asarray(x)[: part.num_trials, : end - start] for name, x in records.items()}
                elapsed = time.perf_counter() - started
                self.timing.seconds["training"] += elapsed
                self.timing.env_steps += (config.env_steps(end) - config.env_steps(start)) * part.num_trials
                length = int(np.clip((end - start) / elapsed * seconds, 1, self.programs.capacity))
                progress = Progress(end, state, append_metrics(progress.metrics, records), progress.evaluations)
                is_healthy = self.programs.is_healthy(part, state)
                shares = {"is_healthy": np.repeat(is_healthy[:, None], end - start, axis=1)}
                self.log(self.experiment.env_steps(end)[start:], records | shares)
                display.update(progress, is_healthy)
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
            checkpoint.save(path, progress.iteration, state, part.num_trials)

    def write_metrics(self, part: Part, progress: Progress) -> None:
        """Write metrics.npz of a part."""
        env_steps = self.experiment.env_steps(progress.iteration)
        trials = self.experiment.trials_of(part) | {"is_healthy": self.programs.is_healthy(part, progress.state)}
        with self.timing.measure("saving"):
            store.write_metrics(self.folder_of(part), env_steps, trials, progress.metrics, progress.evaluations)

    def evaluate(self, part: Part, progress: Progress) -> dict[str, np.ndarray]:
        """Scores of the trials, [num_trials] each; empty, with a warning, if the memory does not suffice."""
        try:
            with self.timing.measure("evaluation"):
                return self.programs.evaluate(part, progress.state, progress.iteration)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(f"warning: no evaluation: {str(error).splitlines()[0]}; lower --eval-episodes", file=sys.stderr)
            return {}

    def env_steps_at(self, progress: Progress) -> int:
        """Env steps of an evaluation: 0 of the untrained policy, also if init has stepped the environments to fill a
        replay buffer."""
        return self.experiment.config.env_steps(progress.iteration) if progress.iteration else 0

    def is_evaluated(self, progress: Progress) -> bool:
        """Whether the learning curve has an evaluation of this iteration."""
        return self.env_steps_at(progress) in progress.evaluations.get(EVAL_STEPS, ())

    def record(self, progress: Progress, scores: dict[str, np.ndarray]) -> Progress:
        """Add the scores of an evaluation, if it did not fail, to the learning curve."""
        if not scores:
            return progress
        evaluations = append_evaluation(progress.evaluations, self.env_steps_at(progress), scores)
        self.log(evaluations[EVAL_STEPS][-1:], {name: evaluations[name][:, -1:] for name in EVAL_METRICS})
        return progress._replace(evaluations=evaluations)

    def finish(self, part: Part, progress: Progress) -> Result:
        """Evaluate a part that has been trained. It is already saved, whatever happens here."""
        scores = self.evaluate(part, progress) if self.experiment.options.eval_episodes else {}
        if progress.iteration == self.rung.stop:
            progress = self.record(progress, scores)
            self.write_metrics(part, progress)
        scores |= {"is_healthy": self.programs.is_healthy(part, progress.state)}
        num_iterations = np.full(part.num_trials, progress.iteration)
        return Result(progress.metrics, progress.evaluations, scores, num_iterations)
