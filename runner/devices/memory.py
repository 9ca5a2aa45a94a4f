"""Memory: how much there is, what does not fit, how lanes are divided so that they fit, and what is printed of it."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from common import cgroup_limits
from common.environment import Environment
from runner.cli.options import Options
from runner.devices import hosts
from runner.experiment import Experiment, Part, split_lanes

RECORD_BYTES = 40  # per lane and iteration: about ten metrics
SMALLER = "lower --lanes-per-batch, or if it is 1 --num-envs (or --buffer-size)"  # what helps where it does not suffice


def host_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may take: of the machine, of its container, of its address space (ulimit -v)."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits += [] if address_space == resource.RLIM_INFINITY else [address_space]
    limits += [x for name in ("memory.max", "memory.limit_in_bytes") for (x,) in cgroup_limits(name, root=root)]
    return int(min(limits))


def available_bytes(num_devices: int) -> int:
    """Memory of the first local devices together; on a CPU that of the host."""
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


def describe_lanes(num_lanes: int) -> str:
    """1 -> '1 lane (a seed of a setting)'."""
    return "1 lane (a seed of a setting)" if num_lanes == 1 else f"{num_lanes:,} lanes (seeds x settings)"


def describe_state(abstract_state: Any, num_devices: int) -> str:
    """Size of the State of a lane, and how many fit."""
    memory, lane_bytes = available_bytes(num_devices), num_bytes(abstract_state)
    room = f"at most {memory // lane_bytes:,} fit in {format_bytes(memory)} of memory"
    return f"{format_bytes(lane_bytes)} of state per seed, {room}"


# -- Before compiling --------------------------------------------------------------------------------------------------


def check_memory(env: Environment, config: Any, options: Options, num_lanes: int, abstract_state: Any) -> None:
    """Check what can be known before compiling.

    Args:
        abstract_state: of one lane.

    Raises:
        ValueError: the State of a batch of lanes, all metrics, or the evaluation of a lane does not fit.
    """
    check_state(options, num_lanes, num_bytes(abstract_state))
    check_results(num_lanes, config.num_iterations * RECORD_BYTES)
    check_evaluation(env, options)


def check_state(options: Options, num_lanes: int, lane_bytes: int) -> None:
    """Raise ValueError if the State of one batch of lanes (with auto: of one lane) does not fit."""
    available = available_bytes(options.devices or jax.local_device_count())
    is_auto = options.lanes_per_batch == "auto"
    least = 1 if is_auto else min(int(options.lanes_per_batch), -(-num_lanes // jax.process_count()))
    if least * lane_bytes > available:
        lanes, taken = describe_lanes(least), format_bytes(least * lane_bytes)
        raise ValueError(f"the state of {lanes} takes {taken} and the memory is {format_bytes(available)}; {SMALLER}")


def check_results(num_lanes: int, lane_bytes: int) -> None:
    """Raise ValueError if the metrics of all lanes do not fit the memory of this host, which joins and writes them."""
    most = host_bytes() // (3 * lane_bytes)  # joining copies them, writing may do so once more
    if num_lanes > most:
        raise ValueError(
            f"the metrics of {describe_lanes(num_lanes)} take about {format_bytes(num_lanes * lane_bytes)}; "
            f"at most {most:,} lanes fit in {format_bytes(host_bytes())} of memory"
        )


def check_evaluation(env: Environment, options: Options) -> None:
    """Raise ValueError if the evaluation episodes of one lane do not fit: their environments run side by side."""
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((1,), "uint32"))
    most = available_bytes(1) // (2 * num_bytes(jax.eval_shape(env.reset, keys)))
    if options.eval_episodes > most:
        raise ValueError(f"eval_episodes = {options.eval_episodes:,}, but at most {most:,} fit in the memory")


# -- Compiling ---------------------------------------------------------------------------------------------------------


def divide_lanes(
    make_programs: Callable[[int], Any], experiment: Experiment, recorded: list[Part], most: int, name: str
) -> tuple[Any, list[Part]]:
    """Divide the lanes of a run into parts that fit the memory, and compile.

    Args:
        make_programs: number of lanes -> their `Programs`.
        recorded: the parts of a run that is resumed, which it keeps; else empty.
        most: lanes in a part with --lanes-per-batch auto, or fewer.
        name: under which all processes agree on that number.

    Raises:
        ValueError: what is asked for does not fit.
    """

    def divide(lanes_per_batch: int) -> tuple[Any, list[Part]]:
        parts = recorded or split_lanes(experiment.num_lanes, jax.process_count(), lanes_per_batch)
        return make_programs(max(part.num_lanes for part in parts)), parts

    asked = experiment.options.lanes_per_batch
    if asked != "auto" or recorded:
        programs, parts = divide(experiment.num_lanes if asked == "auto" else int(asked))
        check_fits(programs, "resume it on a machine with more memory" if recorded else SMALLER)
        return programs, parts
    programs, parts = divide(max(1, most))
    while (share := programs.share_of_memory) > 1 and programs.num_lanes > 1:
        programs, parts = divide(max(1, int(programs.num_lanes / share)))

    def decide() -> str:
        check_fits(programs, SMALLER)
        return str(programs.num_lanes)

    agreed = int(hosts.agree(name, decide))
    return (programs, parts) if agreed == programs.num_lanes else divide(agreed)


def check_fits(programs: Any, hint: str) -> None:
    """Raise ValueError if the training program takes more memory than its devices have."""
    if (share := programs.share_of_memory) > 1:
        raise ValueError(f"training {describe_lanes(programs.num_lanes)} takes {share:.2f} times the memory; {hint}")
