"""The command line of a script, from sys.argv to the files of the run."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import jax

from runner.ask.cli import fail, find_preset
from runner.folder import files
from runner.machine import hosts
from runner.machine.memory import num_bytes
from runner.machine.programs import plan
from runner.machine.stop import StopSignal
from runner.prepare import Prepared, prepare
from runner.tell.progress import print_header
from runner.tell.timing import Timing
from runner.tell.tracking import Tracker
from runner.training import Run, write_record

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "single-file-jax-rl"


def run(script: str, config_class: type, make: Callable) -> None:
    """The command line of a script: read sys.argv, train, evaluate, write files.

    Exits with status 2 and one line on stderr if the input is bad, with 128 + signal after Ctrl-C or SIGTERM, and
    with 1 if memory runs out or another process ended before its lanes did.
    """
    timing = Timing()
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        prepared = prepare(script, config_class, make)
        preset = find_preset(script, config_class, prepared.experiment.config.env)
    except (ValueError, OSError) as error:
        refuse(error)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    with StopSignal() as stop:
        try:
            begun = begin(prepared, preset is not None, stop, timing)
            results = begun.train_parts()
            if not stop.received or (results and len(begun.parts) == 1):
                begun.conclude(results, preset or config_class())
        except ValueError as error:
            refuse(error)
        except OSError as error:
            hint = f"what was saved before is complete, continue it with --resume {prepared.directory}"
            fail(f"cannot save: {error}; {hint}")
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            fail("out of memory; lower --lanes-per-batch, or if it is 1 --num-envs (or --buffer-size)", 1)
        finally:
            hosts.leave()
    if stop.received:
        print(f"stopped; continue with --resume {prepared.directory}", file=sys.stderr)
        raise SystemExit(128 + stop.received)


def refuse(error: Exception) -> NoReturn:
    """Exit with the message of a refusal. An error inside JAX, as a changed loss may cause, keeps its traceback."""
    if hasattr(error, "__notes__"):  # JAX notes that it has removed its own frames from the traceback
        raise error
    fail(str(error))


def begin(prepared: Prepared, has_preset: bool, stop: StopSignal, timing: Timing) -> Run:
    """Write the record of a new run, plan the parts and compile."""
    experiment, directory = prepared.experiment, prepared.directory
    if not experiment.options.resume:  # before compiling, so that a run killed meanwhile can be resumed
        write_record(experiment, directory, [], prepared.wandb_id)
    num_devices = experiment.options.devices or jax.local_device_count()
    print_header(experiment, has_preset, num_devices, num_bytes(prepared.abstract_state))
    try:
        programs, parts = plan(experiment, prepared.abstract_state, num_devices, prepared.parts)
    except ValueError:
        if not experiment.options.resume:
            files.discard(directory)
        raise
    timing.compiling = programs.compile_seconds
    tracker = Tracker(experiment, directory, prepared.wandb_id)
    return Run(experiment, directory, prepared.abstract_state, programs, parts, tracker, stop, timing)
