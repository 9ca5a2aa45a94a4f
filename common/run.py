"""The run loop: segments of one compiled program, between which the host talks."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from common import checkpoint, files, hosts
from common.cli import fail
from common.lanes import Lanes
from common.plan import Programs, plan
from common.progress import ProgressReport
from common.report import report
from common.setup import Part, Progress, Setup, prepare, write_record

SECONDS_PER_SEGMENT = 1.0  # aim of segments whose number is not given
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "single-file-jax-rl"


class StopSignal:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop after the segment; a second Ctrl-C quits at once."""

    def __init__(self):
        self.received = 0

    def __enter__(self):
        self.previous = {number: signal.signal(number, self.receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_):
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def receive(self, number, _):
        if self.received and number == signal.SIGINT:
            os._exit(128 + number)
        print("\nstopping after this segment; Ctrl-C again quits at once", file=sys.stderr, flush=True)
        self.received = number


class Result(NamedTuple):
    """What a part contributes to the report."""

    metrics: dict[str, np.ndarray]  # [num_lanes, num_iterations]
    scores: dict[str, np.ndarray]  # [num_lanes]
    is_healthy: np.ndarray  # [num_lanes] bool


def run(script: str, config_class: type, presets: dict[str, Any], make: Callable) -> None:
    """The command line of a script: read sys.argv, train, evaluate, write files.

    Exits with status 2 and one line on stderr where the input is bad, with 128 + signal after Ctrl-C or SIGTERM, and
    with 1 where the memory does not suffice or another process has not brought its results.
    """
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        setup = prepare(script, config_class, presets, make)
    except (ValueError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    with StopSignal() as stop:
        try:
            programs, parts = plan(setup)
            results = run_parts(setup, programs, parts, stop)
            if not stop.received or (results and len(parts) == 1):
                conclude(setup, parts, results)
        except ValueError as error:
            fail(str(error))
        except OSError as error:
            fail(f"cannot save: {error}; what was saved before is whole, continue it with --resume {setup.directory}")
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            fail("out of memory; lower --lanes-per-batch, or if it is 1 --num-envs (or --buffer-size)", 1)
        finally:
            hosts.leave()
    if stop.received:
        print(f"stopped; continue with --resume {setup.directory}", file=sys.stderr)
        raise SystemExit(128 + stop.received)


def run_parts(setup: Setup, programs: Programs, parts: list[Part], stop: StopSignal) -> dict[Part, Result]:
    """Train and evaluate the parts of this process, one after another."""
    results = {}
    for part in parts[jax.process_index() :: jax.process_count()]:
        if len(parts) > 1:
            print(f"lanes {part.start} to {part.stop - 1} of {setup.num_lanes}", flush=True)
        progress = train(setup, programs, part, begin(setup, programs, parts, part), stop)
        if progress.iteration > 0:
            result = Result(progress.metrics, *programs.evaluate(part, progress.state))
            results[part] = result
            if jax.process_count() > 1:
                scores = result.scores | {"is_healthy": result.is_healthy}
                files.write_arrays(part.directory / "evaluation.npz", scores)
        if stop.received:
            break
        del progress  # or its state would share the memory with that of the next part
    return results


def begin(setup: Setup, programs: Programs, parts: list[Part], part: Part) -> Progress:
    """The State of a part is that of the beginning, or of the checkpoint of a run that is resumed."""
    lanes, settings, keys = programs.inputs(part)
    path = part.directory / "checkpoint"
    iteration = checkpoint.latest_iteration(path) if setup.options.resume else None
    if iteration is None:
        part.directory.mkdir(parents=True, exist_ok=True)
        write_record(setup, parts)
        return Progress(0, programs.init(settings, keys), {})
    expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct((part.num_lanes, *x.shape), x.dtype), setup.abstract_state)
    state = checkpoint.restore(path, iteration, expected)
    if getattr(expected, "buffer", None) is not None and state.buffer is None:
        print("the checkpoint has no replay buffer: it starts anew with random transitions", flush=True)
        state = state.replace(buffer=lanes.trim(programs.init(settings, keys).buffer))
    metrics = files.read_metrics(part.directory, iteration)
    write_record(setup, parts)
    print(f"resumed {part.directory} at {setup.config.env_steps(iteration):,} env steps", flush=True)
    return Progress(iteration, lanes.place(state), metrics)


def train(setup: Setup, programs: Programs, part: Part, progress: Progress, stop: StopSignal) -> Progress:
    """Run segments until the end or a signal, and save."""
    config, options = setup.config, setup.options
    lanes, settings, _ = programs.inputs(part)
    total, longest = config.num_iterations, programs.capacity
    if progress.iteration >= total:
        return progress
    segment = programs.segment
    length = longest if options.num_segments else 1
    saved, saved_time = progress.iteration, time.perf_counter()
    with ProgressReport(config.env_steps(total), config.env_steps(progress.iteration), lanes.num_lanes) as shown:
        while progress.iteration < total and not stop.received:
            started = time.perf_counter()
            start, end = progress.iteration, min(progress.iteration + length, total)
            state, records = segment(settings, progress.state, np.int32(start), np.int32(end))
            records = {name: np.asarray(x)[: lanes.num_lanes, : end - start] for name, x in records.items()}
            progress = Progress(end, state, files.append_metrics(progress.metrics, records))
            if not options.num_segments:
                speed = (end - start) / (time.perf_counter() - started)
                length = int(np.clip(speed * SECONDS_PER_SEGMENT, 1, longest))
            shown.update(config.env_steps(end), progress.metrics)
            if lanes.num_lanes == setup.num_lanes:
                setup.tracker.log(setup.env_steps(end)[start:], records)
            if time.perf_counter() - saved_time >= options.checkpoint_every:
                save(setup, lanes, part, progress)
                saved, saved_time = progress.iteration, time.perf_counter()
    if saved < progress.iteration:
        save(setup, lanes, part, progress)
    return progress


def save(setup: Setup, lanes: Lanes, part: Part, progress: Progress) -> None:
    """Metrics first, so that there are never fewer of them than the checkpoint needs."""
    write_metrics(setup, part, progress.metrics)
    state = progress.state
    if not setup.options.checkpoint_buffer and hasattr(state, "buffer"):
        state = state.replace(buffer=None)
    checkpoint.save(part.directory / "checkpoint", progress.iteration, lanes.trim(state))


def write_metrics(setup: Setup, part: Part, metrics: dict[str, np.ndarray]) -> None:
    """Write metrics.npz, with what each lane is."""
    lanes = {"seed": setup.seeds} | {f"sweep_{name}": x for name, x in setup.lane_settings.items()}
    lanes = {name: x[part.start : part.stop] for name, x in lanes.items()}
    files.write_metrics(part.directory, setup.env_steps(metrics["episode_return"].shape[1]), lanes, metrics)


def conclude(setup: Setup, parts: list[Part], results: dict[Part, Result]) -> None:
    """Put the results of all parts together and report; process 0 does it for all."""
    absent = hosts.wait_for_all()
    if absent:
        who = "process " + ", ".join(map(str, absent))
        fail(f"{who} ended before its lanes did; the others are saved, continue with --resume {setup.directory}", 1)
    if jax.process_index() > 0:
        return
    results = [results.get(part) or read_result(setup, part) for part in parts]
    metrics = {name: np.concatenate([result.metrics[name] for result in results]) for name in results[0].metrics}
    scores = {name: np.concatenate([result.scores[name] for result in results]) for name in results[0].scores}
    if len(parts) > 1:
        write_metrics(setup, Part(0, setup.num_lanes, setup.directory), metrics)
        setup.tracker.log(setup.env_steps(setup.config.num_iterations), metrics)
    report(setup, metrics, scores, np.concatenate([result.is_healthy for result in results]))


def read_result(setup: Setup, part: Part) -> Result:
    """What another process has left."""
    try:
        with np.load(part.directory / "evaluation.npz") as file:
            scores = dict(file)
    except FileNotFoundError as error:
        raise ValueError(f"{part.directory} is empty: do all processes have the same --out?") from error
    return Result(files.read_metrics(part.directory, setup.config.num_iterations), scores, scores.pop("is_healthy"))
