"""The rungs of a run: a sweep that is halved has several, between which settings are cut, any other run has one."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.random import is_key
from runner.devices import hosts
from runner.devices.memory import available_bytes, divide_trials, num_bytes
from runner.devices.programs import Programs
from runner.devices.stop import StopSignal
from runner.errors import fail
from runner.experiment import EVAL_STEPS, Experiment, Part, Progress, Result, Rung, join_results, join_rungs
from runner.files import checkpoint, store
from runner.files.lock import discard
from runner.files.record import Record, check_rungs, write_record
from runner.halving import choose, describe_cut, describe_rungs, plan_sizes, plan_stops
from runner.report.progress import print_header
from runner.report.timing import Timing
from runner.report.tracking import Tracker
from runner.training import Trainer

LEAST_TRIALS = 4  # on a CPU core, in the program of the last rung, if it is to train the rungs before too


@dataclass
class Run:
    """A run, from its checked command line to its report. This process trains some parts of each rung."""

    experiment: Experiment
    preset: Any  # Config of the environment, None without one
    abstract_state: Any  # shapes and dtypes of the State of one trial
    directory: Path
    rungs: list[Rung]  # up to the one that is being trained, with the parts of all processes
    wandb_id: str  # from which the ids of the wandb runs are made
    lock: contextlib.ExitStack  # of the directory; process 0 holds it for all
    stop: StopSignal
    timing: Timing
    trainer: Trainer | None = field(init=False, default=None)  # of the last rung, see `compile`
    tracker: Tracker = field(init=False)

    @property
    def num_devices(self) -> int:
        """Devices of this process that train."""
        return self.experiment.options.devices or jax.local_device_count()

    @property
    def is_single(self) -> bool:
        """Whether all trials are trained together, from the beginning to the end."""
        return not self.experiment.is_halved and len(self.rungs[-1].parts) == 1

    def begin(self) -> None:
        """Write the record of a new run, and compile its first program."""
        experiment, options = self.experiment, self.experiment.options
        if not options.resume:  # before compiling, so that a run killed meanwhile can be resumed
            self.write_record()
        else:
            self.check_record()
        print_header(experiment, self.preset is not None, self.num_devices, self.abstract_state)
        if experiment.is_halved:
            print(describe_rungs(experiment), flush=True)
        try:
            self.compile()
            self.tracker = Tracker(experiment, self.directory, self.wandb_id)
        except Exception:  # also one of the script's own, such as a changed loss raises when it is traced
            if not options.resume:
                discard(self.directory)
            raise

    def write_record(self) -> None:
        """Write config.json."""
        write_record(self.directory, self.experiment, self.rungs, self.wandb_id)

    def check_record(self) -> None:
        """Raise ValueError, before compiling, unless a run to resume has the metrics of its script."""
        algorithm = self.experiment.make(self.experiment.config)
        _, metrics = jax.eval_shape(algorithm.step, self.abstract_state, jax.ShapeDtypeStruct((), np.int32))
        store.check_metrics(self.directory, metrics)

    def train(self) -> dict[Part, Result]:
        """Train all rungs that are left. Returns the results of this process's parts of the last one."""
        while True:
            results = self.train_rung()
            is_last = self.rungs[-1].stop == self.experiment.config.num_iterations
            if is_last or self.stop.received or not self.synchronize():
                return results
            self.cut()
            self.compile()

    def compile(self) -> None:
        """Divide the trials of the last rung into parts, and compile, unless there is a program for as many trials."""
        experiment, rung, before = self.experiment, self.rungs[-1], self.trainer
        trials = experiment.select(rung.settings)
        most = available_bytes(self.num_devices) // num_bytes(self.abstract_state)
        if experiment.is_halved and jax.default_backend() == "cpu":  # compiling costs more than it gains there
            last = plan_sizes(experiment.num_settings, experiment.halving_factor)[-1] * experiment.options.num_seeds
            most = min(most, max(last, LEAST_TRIALS * self.num_devices))

        def make_programs(num_trials: int) -> Programs:
            if before and before.programs.num_trials == num_trials:
                return before.programs.with_experiment(trials)
            return Programs(trials, self.abstract_state, num_trials, self.num_devices)

        name = f"trials_per_batch of rung {len(self.rungs)}"
        programs, parts = divide_trials(make_programs, trials, rung.parts, most, name)
        self.rungs[-1] = rung._replace(parts=parts)
        self.timing.seconds["compile"] += programs.compile_seconds
        inputs = programs, self.log, self.stop, self.timing
        self.trainer = Trainer(trials, self.rungs[-1], self.rung_folder(-1), *inputs)

    def log(self, env_steps: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
        """Log metrics [num_trials, n] to wandb; with several parts that is done at the end, when all are there."""
        if self.is_single:
            self.tracker.log(env_steps, metrics)

    def train_rung(self) -> dict[Part, Result]:
        """Train and evaluate the parts of this process."""
        trainer, parts, results = self.trainer, self.rungs[-1].parts, {}
        for part in parts[jax.process_index() :: jax.process_count()]:
            if len(parts) > 1:
                first, last = (trainer.experiment.name_trial(trial) for trial in (part.start, part.stop - 1))
                print(f"part {parts.index(part) + 1} of {len(parts)}: {first} to {last}", flush=True)
            progress = trainer.train(part, self.start(part))
            if self.stop.received and not self.is_single:  # its results would be of no use yet
                break
            if progress.iteration > 0:
                results[part] = trainer.finish(part, progress)
                if jax.process_count() > 1 or self.experiment.is_halved:
                    store.write_arrays(trainer.folder_of(part) / store.EVALUATION, results[part].scores)
            del progress  # else its state would stay in memory beside the next part's
        return results

    def start(self, part: Part) -> Progress:
        """A part starts from a fresh State, from the rung before, or from its checkpoint when resuming.

        The record is written when the checkpoint has been read: a run that cannot be resumed stays as it is.
        """
        folder = self.trainer.folder_of(part)
        resume = self.experiment.options.resume
        iteration = checkpoint.read_iteration(folder / store.CHECKPOINT) if resume else None
        if iteration is not None:
            progress = self.trainer.resume(part, iteration)
            self.write_record()
            env_steps = self.experiment.config.env_steps(iteration)
            print(f"resumed {folder} at {env_steps:,} env steps", flush=True)
            return progress
        folder.mkdir(parents=True, exist_ok=True)
        self.write_record()
        if len(self.rungs) > 1:
            return self.promote(part)
        programs = self.trainer.programs
        return Progress(0, programs.init.result()(*programs.inputs(part)), {}, {})

    def promote(self, part: Part) -> Progress:
        """A part of a rung starts from where its trials were at the end of the rung before."""
        before, rung = self.rungs[-2:]
        settings = [before.settings.index(setting) for setting in rung.settings]
        trials = self.experiment.select(before.settings).trials_at(settings)[part.start : part.stop]
        states = []
        for source in before.parts:
            rows = trials[(source.start <= trials) & (trials < source.stop)] - source.start
            if len(rows):
                path = store.part_folder(self.rung_folder(-2), before.parts, source) / store.CHECKPOINT
                states.append(checkpoint.restore_trials(path, self.abstract_state, rows))

        def join(*x):  # on the host, but for keys
            return (jnp if is_key(x[0]) else np).concatenate(x)

        state = self.trainer.programs.placement.place(jax.tree.map(join, *states))
        result = self.read_rung(-2)
        evaluations = {name: x if name == EVAL_STEPS else x[trials] for name, x in result.evaluations.items()}
        return Progress(before.stop, state, {name: x[trials] for name, x in result.metrics.items()}, evaluations)

    def synchronize(self) -> bool:
        """Wait for the other processes at the end of a rung. Returns whether this one goes on."""
        name = f"rung {len(self.rungs)}"
        if not (absent := hosts.barrier(name)):  # a signal may come while process 0 waits, or just after
            is_stopped = hosts.broadcast(f"stop after {name}", lambda: "yes" if self.stop.received else "") == "yes"
            absent = [0] if is_stopped else []
        if absent and not self.stop.received:
            fail(hosts.absence_hint(absent, self.directory), 1)
        return not absent

    def cut(self) -> None:
        """Choose the settings that go on to the next rung."""
        experiment, rung, result = self.experiment, self.rungs[-1], self.read_rung(-1)
        factor, metric, settings = experiment.halving_factor, "eval_episode_return", rung.settings
        if metric in result.scores and result.evaluations[EVAL_STEPS][0] == 0:
            final = np.where(result.scores["is_healthy"], result.scores[metric], np.nan)
            untrained = result.evaluations[metric][:, 0]
            final, untrained = (experiment.select(settings).by_setting(x) for x in (final, untrained))
            message = describe_cut(final, untrained, factor)
            settings = tuple(settings[i] for i in choose(final, untrained, factor))
        else:
            message = f"an evaluation has failed, all {len(settings)} go on"
        stops = plan_stops(experiment.num_settings, experiment.config.num_iterations, factor)
        print(f"rung {len(self.rungs)} of {len(stops)}: {message}", flush=True)
        self.rungs.append(Rung(settings, stops[len(self.rungs)], []))
        self.write_record()

    # -- Results -------------------------------------------------------------------------------------------------------

    def rung_folder(self, index: int) -> Path:
        """The folder of a rung: the run's where it has no other rung."""
        if not self.experiment.is_halved:
            return self.directory
        return store.rung_folder(self.directory, range(len(self.rungs))[index])

    def join(self, results: dict[Part, Result]) -> Result:
        """The results of all trials; `results`: of the parts of this process in the last rung."""
        last = self.read_rung(-1, results)
        if len(self.rungs) == 1:
            return last
        before = [self.read_rung(index) for index in range(len(self.rungs) - 1)]
        return join_rungs(self.experiment, self.rungs, [*before, last])

    def read_rung(self, index: int, known: dict[Part, Result] | None = None) -> Result:
        """The results of all trials of a rung that has been trained; `known` are not read."""
        known = known or {}
        return join_results([known.get(part) or self.read_result(part, index) for part in self.rungs[index].parts])

    def read_result(self, part: Part, index: int) -> Result:
        """The result of a part that another process has written, or this one in a rung before."""
        rung = self.rungs[index]
        path = store.part_folder(self.rung_folder(index), rung.parts, part)
        trials = self.experiment.select(rung.settings).trials_of(part)
        metrics, evaluations = store.read_metrics(path, self.experiment.env_steps(rung.stop), trials)
        num_iterations = np.full(part.num_trials, rung.stop)
        return Result(metrics, evaluations, store.read_scores(path, part.num_trials), num_iterations)


def plan_rungs(experiment: Experiment, record: Record | None) -> list[Rung]:
    """The rungs that a run has begun; the last one is trained next. A new run has begun the first."""
    if record:
        check_rungs(record, experiment)
        if record.rungs:
            return record.rungs
    stop = experiment.config.num_iterations
    if experiment.is_halved:
        stop, *_ = plan_stops(experiment.num_settings, stop, experiment.halving_factor)
    return [Rung(tuple(range(experiment.num_settings)), stop, record.parts if record else [])]
