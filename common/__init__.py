"""Shared parts of the scripts: environments, replay, normalisation, initialisation, presets, checks of a Config."""

import contextlib
import math
import os
import sys
from pathlib import Path

import jax


def cgroup_limits(*names: str, root: Path = Path("/")) -> list[list[float]]:
    """The numbers in files of these names, for this process's control group and for each that contains it.

    A container has its limits there, in files of version 2 or 1 of control groups; infinity is no limit.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError):  # this system has none, or others
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", maxsplit=2)
            folder = root / "sys/fs/cgroup" / controllers / group.lstrip("/")
            for x in (folder, *folder.parents):
                if all((x / name).exists() for name in names):
                    words = " ".join((x / name).read_text() for name in names).split()
                    limits.append([math.inf if word in ("max", "-1") else float(word) for word in words])
    return limits


def cpu_quota(root: Path = Path("/")) -> float:
    """CPU cores that this process may use, as in a container; infinity without a limit."""
    limits = cgroup_limits("cpu.max", root=root) + cgroup_limits("cpu.cfs_quota_us", "cpu.cfs_period_us", root=root)
    return min((x[0] / x[1] for x in limits if len(x) == 2), default=math.inf)


NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
NUM_CORES = math.ceil(min(NUM_CORES, cpu_quota()))
IS_CHOSEN = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")

# One JAX device per CPU core, so that the trials of a run spread over all cores. GPUs and TPUs are not affected.
if jax.config.jax_num_cpu_devices < 0 and not IS_CHOSEN:
    try:
        jax.config.update("jax_num_cpu_devices", NUM_CORES)
    except RuntimeError:  # JAX has started, which fixes the number
        if jax.default_backend() == "cpu" and jax.device_count() < NUM_CORES:
            used = f"JAX started before `common` was imported and uses {jax.device_count()} of {NUM_CORES} CPU cores"
            print(f"warning: {used}; import `common` before gymnax, which starts JAX", file=sys.stderr)
