"""Memory needed, and memory available."""

import os
from typing import Any

import jax


def host_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes(num_devices: int) -> int:
    """Memory of the first local devices together; on a CPU that of the machine."""
    devices = jax.local_devices()[:num_devices]
    if devices[0].platform == "cpu":
        return host_bytes()
    return sum(device.memory_stats()["bytes_limit"] for device in devices)


def program_bytes(program: jax.stages.Compiled) -> int:
    """Memory that a program takes on each device; what it donates is not counted twice."""
    memory = program.memory_analysis()
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes


def num_bytes(tree: Any) -> int:
    """Bytes of arrays, or of abstract ones."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def format_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.3g} {units[0]}"
