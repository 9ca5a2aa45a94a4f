"""The run loop: segments of one compiled program, between which the host talks."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common import checkpoint, files
from common.cli import fail
from common.lanes import compile_segment, init_state
from common.progress import ProgressReport
from common.report import format_bytes, print_header, report
from common.setup import Progress, Setup, prepare

MOST_RECORDS = 256  # iterations in one segment at most
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


def run(script: str, config_class: type, presets: dict[str, dict[str, Any]], make: Callable) -> None:
    """The command line of a script: read sys.argv, train, evaluate, write files.

    Exits with status 2 and one line on stderr where the input is bad, with 128 + signal after Ctrl-C or SIGTERM.
    """
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        setup = prepare(script, config_class, presets, make)
        progress = begin(setup)
    except (ValueError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    with StopSignal() as stop:
        try:
            progress = train(setup, progress, stop)
        except OSError as error:
            fail(f"cannot save: {error}; the checkpoint before is whole, continue it with --resume {setup.directory}")
        if progress.iteration > 0:
            report(setup, progress)
    if stop.received:
        print(f"stopped; continue with --resume {setup.directory}", file=sys.stderr)
        raise SystemExit(128 + stop.received)


def begin(setup: Setup) -> Progress:
    """Say what will happen. The State is that of the beginning, or of the checkpoint of a run that is resumed."""
    algorithm, directory = setup.algorithm, setup.directory
    print_header(setup)
    iteration = checkpoint.latest_iteration(directory / "checkpoint") if setup.options.resume else None
    if iteration is None:
        files.write_record(directory, setup.script, setup.config, setup.options.seed, setup.options.num_seeds)
        return Progress(0, init_state(algorithm.init, setup.lanes, setup.keys), {})
    state = checkpoint.restore(directory / "checkpoint", iteration, setup.abstract_state)
    if getattr(setup.abstract_state, "buffer", None) is not None and state.buffer is None:
        print("the checkpoint has no replay buffer: it starts anew with random transitions", flush=True)
        fresh = init_state(algorithm.init, setup.lanes, setup.keys)
        state = state.replace(buffer=setup.lanes.trim(fresh.buffer))
    metrics = files.read_metrics(directory, iteration)
    files.write_record(directory, setup.script, setup.config, setup.options.seed, setup.options.num_seeds)
    print(f"resumed {directory} at {setup.config.env_steps(iteration):,} env steps", flush=True)
    return Progress(iteration, setup.lanes.place(state), metrics)


def train(setup: Setup, progress: Progress, stop: StopSignal) -> Progress:
    """Run segments until the end or a signal, and save."""
    config, options, lanes = setup.config, setup.options, setup.lanes
    total = config.num_iterations
    if progress.iteration >= total:
        return progress
    longest = -(-total // options.num_segments) if options.num_segments else min(total, MOST_RECORDS)
    length = longest if options.num_segments else 1

    compile_time = time.perf_counter()
    segment = compile_segment(setup.algorithm.step, lanes, progress.state, longest)
    memory = segment.memory_analysis()
    compile_time = time.perf_counter() - compile_time
    peak = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    print(f"compiled in {compile_time:.1f} s, {format_bytes(peak)} on each device", flush=True)

    saved, saved_time = progress, time.perf_counter()
    with ProgressReport(config.env_steps(total), config.env_steps(progress.iteration), lanes.num_lanes) as shown:
        while progress.iteration < total and not stop.received:
            started = time.perf_counter()
            start, end = progress.iteration, min(progress.iteration + length, total)
            state, records = segment(progress.state, np.int32(start), np.int32(end))
            records = {name: np.asarray(x)[: lanes.num_lanes, : end - start] for name, x in records.items()}
            progress = Progress(end, state, files.append_metrics(progress.metrics, records))
            if not options.num_segments:
                speed = (end - start) / (time.perf_counter() - started)
                length = int(np.clip(speed * SECONDS_PER_SEGMENT, 1, longest))
            shown.update(config.env_steps(end), progress.metrics)
            setup.tracker.log(setup.env_steps(end)[start:], records)
            if time.perf_counter() - saved_time >= options.checkpoint_every:
                save(setup, progress)
                saved, saved_time = progress, time.perf_counter()
    if saved is not progress:
        save(setup, progress)
    return progress


def save(setup: Setup, progress: Progress) -> None:
    """Metrics first, so that there are never fewer of them than the checkpoint needs."""
    files.write_metrics(setup.directory, setup.env_steps(progress.iteration), progress.metrics)
    checkpoint.save(
        setup.directory / "checkpoint",
        progress.iteration,
        setup.lanes.trim(progress.state),
        setup.options.checkpoint_buffer,
    )
