"""Shared parts of the scripts: environments, replay, normalisation, initialisation, presets, checks of a Config."""

import os
import sys

import jax

NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

# One JAX device per CPU core, so that the lanes of a run spread over all cores. GPUs and TPUs are not affected.
if "JAX_NUM_CPU_DEVICES" not in os.environ:
    try:
        jax.config.update("jax_num_cpu_devices", NUM_CORES)
    except RuntimeError:  # JAX has started, which fixes the number
        if jax.default_backend() == "cpu" and jax.device_count() < NUM_CORES:
            used = f"JAX started before `common` was imported and uses {jax.device_count()} of {NUM_CORES} CPU cores"
            print(f"warning: {used}; import `common` before gymnax, which starts JAX", file=sys.stderr)
