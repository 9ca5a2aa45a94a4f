"""Shared parts of the scripts: environments, replay, normalisation, initialisation, presets, checks of a Config."""

import math
import os
import sys
from pathlib import Path

import jax


def cpu_quota(folder: Path) -> float:
    """CPU cores that a control group allows, as that of a container may; infinity without a limit."""
    names = ["cpu.max"]  # of version 2
    if not (folder / "cpu.max").exists():
        names = ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]
    try:
        quota, period = " ".join((folder / name).read_text() for name in names).split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)


NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
NUM_CORES = math.ceil(min(NUM_CORES, cpu_quota(Path("/sys/fs/cgroup"))))
IS_CHOSEN = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")

# One JAX device per CPU core, so that the lanes of a run spread over all cores. GPUs and TPUs are not affected.
if jax.config.jax_num_cpu_devices < 0 and not IS_CHOSEN:
    try:
        jax.config.update("jax_num_cpu_devices", NUM_CORES)
    except RuntimeError:  # JAX has started, which fixes the number
        if jax.default_backend() == "cpu" and jax.device_count() < NUM_CORES:
            used = f"JAX started before `common` was imported and uses {jax.device_count()} of {NUM_CORES} CPU cores"
            print(f"warning: {used}; import `common` before gymnax, which starts JAX", file=sys.stderr)
