"""What the four scripts share: environments, statistics, checkpoints and the run loop.

Nothing here is part of an algorithm.
"""

import os

import jax

# One host device a core, so that the lanes of a run spread over all cores. JAX fixes the number when its backend
# starts. GPUs and TPUs are not affected.
if "JAX_NUM_CPU_DEVICES" not in os.environ and not jax._src.xla_bridge.backends_are_initialized():
    jax.config.update(
        "jax_num_cpu_devices", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
