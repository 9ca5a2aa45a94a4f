"""Training: segments of one compiled program; between segments the host reports, logs and saves."""

import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.random import is_key
from runner.cli.halving import choose, describe_cut, plan_sizes, plan_stops
from runner.cli.parse import fail
from runner.devices import hosts
from runner.devices.evaluation import evaluated_iterations
from runner.devices.memory import available_bytes, divide_lanes, num_bytes
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
    join_results,
    join_rungs,
)
from runner.files import checkpoint, store
from runner.files.claim import discard
from runner.files.record import write_record
from runner.report.progress import ProgressDisplay, print_header
from runner.report.timing import Timing
from runner.report.tracking import Tracker

SECONDS_PER_SEGMENT = 1.0  # target duration of a segment
LEAST_LANES = 4  # on a CPU core, in the program of the last rung, if it is to train the rungs before too


@dataclass
class Run:
    """A run, from its checked command line to its report. This process trains some of its parts, one after another."""

    experiment: Experiment
    preset: Any  # Config of the environment, None without one
    abstract_state: Any  # shapes and dtypes of the State of one lane
    directory: Path
    rungs: list[Rung]  # up to the one that is being trained; the parts are those of all processes
    wandb_id: str  # from which the ids of the wandb runs are made
    claim: contextlib.ExitStack  # on the directory; process 0 holds it for all
    stop: StopSignal
    timing: Timing
    lanes: Experiment = field(init=False)  # those of the last rung; from here on by `begin`
    programs: Programs | None = field(init=False, default=None)
    tracker: Tracker = field(init=False)

    @property
    def num_devices(self) -> int:
        """Devices of this process that train."""
        return self.experiment.options.devices or jax.local_device_count()

    @property
    def parts(self) -> list[Part]:
        """The parts of the last rung."""
        return self.rungs[-1].parts

    @property
    def is_last_rung(self) -> bool:
        """Whether the last rung so far ends with the run."""
        return self.rungs[-1].stop == self.experiment.config.num_iterations

    @property
    def is_single(self) -> bool:
        """Whether all lanes are trained together, from the beginning to the end."""
        return not self.experiment.is_halved and len(self.parts) == 1

    def write_record(self) -> None:
        """Write config.json."""
        write_record(self.directory, self.experiment, self.rungs, self.wandb_id)

    def begin(self) -> None:
        """Write the record of a new run, and compile its first program."""
        experiment, options = self.experiment, self.experiment.options
        if not options.resume:  # before compiling, so that a run killed meanwhile can be resumed
            self.write_record()
        else:
            self.check_record()
        print_header(experiment, self.preset is not None, self.num_devices, self.abstract_state)
        try:
            self.compile()
            self.tracker = Tracker(experiment, self.directory, self.wandb_id)
        except Exception:  # also one of the script's own, such as a changed loss raises when it is traced
            if not options.resume:
                discard(self.directory)
            raise

    def check_record(self) -> None:
        """Raise ValueError, before compiling, unless the metrics of a run to resume are those of its script."""
        algorithm = self.experiment.make(self.experiment.config)
        _, metrics = jax.eval_shape(algorithm.step, self.abstract_state, jax.ShapeDtypeStruct((), np.int32))
        store.check_metrics(self.directory, metrics)

    def train(self) -> dict[Part, Result]:
        """Train all rungs that are left. The results are those of the parts of this process in the last one."""
        while True:
            results = self.train_parts()
            if self.is_last_rung or self.stop.received or not self.meet():
                return results
            self.cut()
            self.compile()

    # -- Rungs ---------------------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Divide the lanes of the last rung into parts, and compile, unless there is a program for as many lanes."""
        experiment, rung, before = self.experiment, self.rungs[-1], self.programs
        self.lanes = experiment.select(rung.settings)
        most = available_bytes(self.num_devices) // num_bytes(self.abstract_state)
        if experiment.is_halved and jax.default_backend() == "cpu":  # compiling costs more than it gains there
            last = plan_sizes(experiment.num_settings, experiment.halving_factor)[-1] * experiment.options.num_seeds
            most = min(most, max(last, LEAST_LANES * self.num_devices))

        def make_programs(num_lanes: int) -> Programs:
            if before and before.num_lanes == num_lanes:
                return before.serve(self.lanes)
            return Programs(self.lanes, self.abstract_state, num_lanes, self.num_devices)

        name = f"lanes_per_batch of rung {len(self.rungs)}"
        self.programs, parts = divide_lanes(make_programs, self.lanes, rung.parts, most, name)
        self.rungs[-1] = rung._replace(parts=parts)
        self.timing.compiling += self.programs.compile_seconds

    def meet(self) -> bool:
        """Wait for the other processes at the end of a rung. Returns whether this one goes on."""
        name = f"rung {len(self.rungs)}"
        if not (absent := hosts.meet(name)):  # a signal may come while process 0 waits, or just after
            is_stopped = hosts.agree(f"stop after {name}", lambda: "yes" if self.stop.received else "") == "yes"
            absent = [0] if is_stopped else []
        if absent and not self.stop.received:
            fail(hosts.describe_absent(absent, self.directory), 1)
        return not absent

    def cut(self) -> None:
        """Choose the settings that go on to the next rung."""
        experiment, rung, result = self.experiment, self.rungs[-1], self.read_rung(-1)
        factor, score, settings = experiment.halving_factor, "eval_episode_return", rung.settings
        if score in result.scores and result.evaluations[EVAL_STEPS][0] == 0:
            untrained = self.lanes.by_setting(result.evaluations[score][:, 0])
            final = np.where(result.scores["is_healthy"], result.scores[score], np.nan)
            scores = self.lanes.by_setting(final), untrained, factor
            settings, what = tuple(settings[i] for i in choose(*scores)), describe_cut(*scores)
        else:
            what = f"an evaluation has failed, all {len(settings)} go on"
        stops = plan_stops(experiment.num_settings, experiment.config.num_iterations, factor)
        print(f"rung {len(self.rungs)} of {len(stops)}: {what}", flush=True)
        self.rungs.append(Rung(settings, stops[len(self.rungs)], []))
        self.write_record()

    def promote(self, part: Part) -> Progress:
        """A part of a rung starts from where its lanes were at the end of the rung before."""
        before, rung = self.rungs[-2:]
        settings = [before.settings.index(setting) for setting in rung.settings]
        lanes = self.experiment.select(before.settings).lanes_at(settings)[part.start : part.stop]
        states = []
        for source in before.parts:
            rows = lanes[(source.start <= lanes) & (lanes < source.stop)] - source.start
            if len(rows):
                path = self.folder_of(source, -2) / store.CHECKPOINT
                states.append(checkpoint.restore_lanes(path, self.abstract_state, rows))
        join = lambda *x: (jnp if is_key(x[0]) else np).concatenate(x)  # noqa: E731  # on the host
        state = self.programs.placement.place(jax.tree.map(join, *states))
        result = self.read_rung(-2)
        evaluations = {name: x if name == EVAL_STEPS else x[lanes] for name, x in result.evaluations.items()}
        return Progress(before.stop, state, {name: x[lanes] for name, x in result.metrics.items()}, evaluations)

    def read_rung(self, index: int) -> Result:
        """The results of all lanes of a rung that has been trained."""
        return join_results([self.read_result(part, index) for part in self.rungs[index].parts])

    def join(self, results: dict[Part, Result]) -> Result:
        """The results of all lanes; `results`: of the parts of this process in the last rung."""
        result = join_results([results.get(part) or self.read_result(part) for part in self.parts])
        if len(self.rungs) == 1:
            return result
        before = [self.read_rung(index) for index in range(len(self.rungs) - 1)]
        return join_rungs(self.experiment, self.rungs, [*before, result])

    # -- Parts ---------------------------------------------------------------------------------------------------------

    def folder_of(self, part: Part, index: int = -1) -> Path:
        """The folder of the checkpoint and the metrics of a part of a rung."""
        directory = self.directory
        if self.experiment.is_halved:
            directory = store.rung_folder(directory, range(len(self.rungs))[index])
        return store.part_folder(directory, self.rungs[index].parts, part)

    def train_parts(self) -> dict[Part, Result]:
        """Train and evaluate the parts of this process."""
        results = {}
        for part in self.parts[jax.process_index() :: jax.process_count()]:
            if len(self.parts) > 1:
                first, last = (self.lanes.name_lane(lane) for lane in (part.start, part.stop - 1))
                print(f"part {self.parts.index(part) + 1} of {len(self.parts)}: {first} to {last}", flush=True)
            progress = self.train_part(part, self.start(part))
            if self.stop.received and not self.is_single:  # its results would be of no use yet
                break
            if progress.iteration > 0:
                results[part] = self.finish(part, progress)
                if jax.process_count() > 1 or self.experiment.is_halved:
                    store.write_arrays(self.folder_of(part) / store.EVALUATION, results[part].scores)
            del progress  # its state would share the memory with that of the next part
        return results

    def start(self, part: Part) -> Progress:
        """A part starts from a fresh State, from the rung before, or from its checkpoint when resuming.

        The record is written when the checkpoint has been read: a run that cannot be resumed stays as it is.
        """
        path, options = self.folder_of(part) / store.CHECKPOINT, self.experiment.options
        iteration = checkpoint.read_iteration(path) if options.resume else None
        settings, keys = self.programs.inputs(part)
        if iteration is not None and iteration > self.rungs[-1].stop:
            raise ValueError(f"{path} is of iteration {iteration:,}, after the end of the run")
        if iteration is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.write_record()
            if len(self.rungs) > 1:
                return self.promote(part)
            return Progress(0, self.programs.init.result()(settings, keys), {}, {})
        spread = lambda x: jax.ShapeDtypeStruct((part.num_lanes, *x.shape), x.dtype)  # noqa: E731
        state = checkpoint.restore(path, jax.tree.map(spread, self.abstract_state), self.programs.state)
        steps, lanes = self.lanes.env_steps(iteration), self.lanes.lanes_of(part)
        metrics, evaluations = store.read_metrics(path.parent, steps, lanes)
        if getattr(self.abstract_state, "buffer", None) is not None and state.buffer is None:
            print("the checkpoint has no replay buffer: it is filled again with random transitions", flush=True)
            state = state.replace(buffer=self.programs.refill(part))
        self.write_record()
        print(f"resumed {path.parent} at {steps[-1]:,} env steps", flush=True)
        return Progress(iteration, state, metrics, evaluations)

    def train_part(self, part: Part, progress: Progress) -> Progress:
        """Run segments until the end or a signal, evaluate before them, and save after them."""
        config, options, total = self.experiment.config, self.experiment.options, self.rungs[-1].stop
        if progress.iteration >= total:
            return progress
        settings, _ = self.programs.inputs(part)
        evaluated = evaluated_iterations(self.experiment)
        seconds, length = min(SECONDS_PER_SEGMENT, options.checkpoint_every), 1
        saved, saved_time = progress.iteration, time.perf_counter()
        with ProgressDisplay(self.lanes, part, progress.iteration, total) as display:
            while progress.iteration < total and not self.stop.received:
                if progress.iteration in evaluated and not self.is_evaluated(progress):
                    progress = self.record(progress, self.evaluate(part, progress))
                    if self.stop.received:
                        break
                started, start = time.perf_counter(), progress.iteration
                end = min(start + length, total, *evaluated[evaluated > start][:1].tolist())
                state, records = self.programs.segment(settings, progress.state, np.int32(start), np.int32(end))
                records = {name: np.asarray(x)[: part.num_lanes, : end - start] for name, x in records.items()}
                elapsed = time.perf_counter() - started
                self.timing.add_training(elapsed, (config.env_steps(end) - config.env_steps(start)) * part.num_lanes)
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
            checkpoint.save(path, progress.iteration, state, part.num_lanes)

    def write_metrics(self, part: Part, progress: Progress) -> None:
        """Write metrics.npz of a part."""
        env_steps = self.lanes.env_steps(progress.iteration)
        lanes = self.lanes.lanes_of(part) | {"is_healthy": self.programs.is_healthy(part, progress.state)}
        with self.timing.measure("saving"):
            store.write_metrics(self.folder_of(part), env_steps, lanes, progress.metrics, progress.evaluations)

    def evaluate(self, part: Part, progress: Progress) -> dict[str, np.ndarray]:
        """Scores of the lanes, [num_lanes] each; empty, with a warning, if the memory does not suffice."""
        try:
            with self.timing.measure("evaluating"):
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

    def log(self, env_steps: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
        """Log metrics [num_lanes, n] to wandb; with several parts that is done at the end, when all are there."""
        if self.is_single:
            self.tracker.log(env_steps, metrics)

    def finish(self, part: Part, progress: Progress) -> Result:
        """Evaluate a part that has been trained. It is already saved, whatever happens here."""
        scores = self.evaluate(part, progress) if self.experiment.options.eval_episodes else {}
        if progress.iteration == self.rungs[-1].stop:
            progress = self.record(progress, scores)
            self.write_metrics(part, progress)
        scores |= {"is_healthy": self.programs.is_healthy(part, progress.state)}
        num_iterations = np.full(part.num_lanes, progress.iteration)
        return Result(progress.metrics, progress.evaluations, scores, num_iterations)

    def read_result(self, part: Part, index: int = -1) -> Result:
        """The result of a part that another process has written, or this one in a rung before."""
        rung, path = self.rungs[index], self.folder_of(part, index)
        lanes = self.experiment.select(rung.settings).lanes_of(part)
        metrics, evaluations = store.read_metrics(path, self.experiment.env_steps(rung.stop), lanes)
        num_iterations = np.full(part.num_lanes, rung.stop)
        return Result(metrics, evaluations, store.read_scores(path, part.num_lanes), num_iterations)
