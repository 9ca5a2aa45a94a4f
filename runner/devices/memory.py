"""Memory: how much there is, what does not fit, how trials are divided so that they fit, and what is printed of it."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from common import cgroup_limits
from common.environment import Environment
from runner.devices import hosts
from runner.experiment import Experiment, Part, split_trials
from runner.options.fields import Options

RECORD_BYTES = 40  # per trial and iteration: about ten metrics
SMALLER = "lower --trials-per-batch, or if it is 1 --num-envs (or --buffer-size)"  # what helps where it is too little


def host_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may take: of the machine, of its container, of its address space (ulimit -v)."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits += [] if address_space == resource.RLIM_INFINITY else [address_space]
    limits += [x for name in ("memory.max", "memory.limit_in_bytes") for (x,) in cgroup_limits(name, root=root)]
    return int(min(limits))


def available_bytes(num_devices: int) -> int:
    """Memory of the first local devices together; on a CPU the host's."""
    devices = jax.local_devices()[:num_devices]
    if devices[0].platform == "cpu":
        return host_bytes()
    return sum(device.memory_stats()["bytes_limit"] for device in devices)


def program_bytes(program: jax.stages.Compiled) -> int:
    """Memory that a program takes on each device; what it donates is not counted twice."""
    memory = program.memory_analysis()
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes


def share_of_memory(program: jax.stages.Compiled, num_devices: int) -> float:
    """Memory that a program takes on its devices, as a share of what they have."""
    return program_bytes(program) * num_devices / available_bytes(num_devices)


def num_bytes(tree: Any) -> int:
    """Bytes of arrays, or of abstract ones."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def format_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.3g} {units[0]}"


def describe_trials(num_trials: int) -> str:
    """1 -> '1 trial (a seed of a setting)'."""
    return "1 trial (a seed of a setting)" if num_trials == 1 else f"{num_trials:,} trials (seeds x settings)"


def describe_state(abstract_state: Any, num_devices: int) -> str:
    """Size of the State of a trial, and how many fit."""
    memory, trial_bytes = available_bytes(num_devices), num_bytes(abstract_state)
    room = f"at most {memory // trial_bytes:,} fit in {format_bytes(memory)} of memory"
    return f"{format_bytes(trial_bytes)} of state per seed, {room}"


# -- Before compiling --------------------------------------------------------------------------------------------------


def check_memory(env: Environment, config: Any, options: Options, num_trials: int, abstract_state: Any) -> None:
    """Check what can be known before compiling; `abstract_state`: of one trial.

    Raises:
        ValueError: the State of one batch of trials (with auto: of one trial), the metrics of all trials, which this
            host joins and writes, or the evaluation episodes of one trial, which run side by side, do not fit.
    """
    available, trial_bytes = available_bytes(options.devices or jax.local_device_count()), num_bytes(abstract_state)
    batch = 1 if options.trials_per_batch == "auto" else int(options.trials_per_batch)
    least = min(batch, -(-num_trials // jax.process_count()))
    if least * trial_bytes > available:
        trials, taken = describe_trials(least), format_bytes(least * trial_bytes)
        raise ValueError(f"the state of {trials} takes {taken} and the memory is {format_bytes(available)}; {SMALLER}")

    metric_bytes = config.num_iterations * RECORD_BYTES
    most = host_bytes() // (3 * metric_bytes)  # joining copies them, writing may do so once more
    if num_trials > most:
        raise ValueError(
            f"the metrics of {describe_trials(num_trials)} take about {format_bytes(num_trials * metric_bytes)}; "
            f"at most {most:,} trials fit in {format_bytes(host_bytes())} of memory"
        )

    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((1,), "uint32"))
    most = available_bytes(1) // (2 * num_bytes(jax.eval_shape(env.reset, keys)))
    if options.eval_episodes > most:
        raise ValueError(f"eval_episodes = {options.eval_episodes:,}, but at most {most:,} fit in the memory")


# -- Compiling ---------------------------------------------------------------------------------------------------------


def divide_trials(
    make_programs: Callable[[int], Any], experiment: Experiment, recorded: list[Part], most: int, name: str
) -> tuple[Any, list[Part]]:
    """Divide the trials of a run into parts that fit the memory, and compile.

    Args:
        make_programs: number of trials -> their `Programs`.
        recorded: the parts of a run that is resumed, which it keeps; else empty.
        most: trials in a part with --trials-per-batch auto, or fewer.
        name: under which all processes agree on that number.

    Raises:
        ValueError: what is asked for does not fit.
    """

    def divide(trials_per_batch: int) -> tuple[Any, list[Part]]:
        parts = recorded or split_trials(experiment.num_trials, jax.process_count(), trials_per_batch)
        return make_programs(max(part.num_trials for part in parts)), parts

    asked = experiment.options.trials_per_batch
    if asked != "auto" or recorded:
        programs, parts = divide(experiment.num_trials if asked == "auto" else int(asked))
        check_fits(programs, "resume it on a machine with more memory" if recorded else SMALLER)
        return programs, parts
    programs, parts = divide(max(1, most))
    while (share := programs.share_of_memory) > 1 and programs.num_trials > 1:
        programs, parts = divide(max(1, int(programs.num_trials / share)))

    def decide() -> str:
        check_fits(programs, SMALLER)
        return str(programs.num_trials)

    agreed = int(hosts.broadcast(name, decide))
    return (programs, parts) if agreed == programs.num_trials else divide(agreed)


def check_fits(programs: Any, hint: str) -> None:
    """Raise ValueError if the training program takes more memory than its devices have."""
    if (share := programs.share_of_memory) > 1:
        raise ValueError(f"training {describe_trials(programs.num_trials)} takes {share:.2f} times the memory; {hint}")
