"""What a script imports: environments, replay, normalisation, initialisation and checks of its Config.

`runner/` is what only the command line needs. Nothing here is part of an algorithm.
"""

import importlib
import os
import sys
import types
from typing import Any

import jax

NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

# One JAX device per CPU core, so that the lanes of a run spread over all cores. JAX fixes the number when its backend
# starts. GPUs and TPUs are not affected.
if "JAX_NUM_CPU_DEVICES" not in os.environ:
    if not jax._src.xla_bridge.backends_are_initialized():
        jax.config.update("jax_num_cpu_devices", NUM_CORES)
    elif jax.default_backend() == "cpu" and jax.device_count() < NUM_CORES:
        used = f"JAX started before `common` was imported and uses {jax.device_count()} of {NUM_CORES} CPU cores"
        print(f"warning: {used}; import `common` before gymnax, which starts JAX", file=sys.stderr)


class _Delayed(types.ModuleType):
    """A module that is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


# gymnax imports these to draw its environments, which takes four fifths of its import time.
for plotting in ("seaborn", "matplotlib.pyplot"):
    sys.modules.setdefault(plotting, _Delayed(plotting))
