"""CPU-seconds of tracing and compiling a whole training run for the GPU of kernels.py, which need not be there.

    cuda/bin/python benchmarks/compile_seconds.py                               # ours, environment as in kernels.py
    peers/bin/python benchmarks/compile_seconds.py --peer rejax --only ppo-128  # as in speed.py, with jax[cuda13]

One process compiles one case after another. CPU-seconds say more than seconds where other work runs beside it.
"""

import argparse
import importlib
import time
from typing import Any

from kernels import find_gpu  # before JAX, which it tells that there is a GPU

# isort: split
import jax
import jax.numpy as jnp
import worker
from speed import CASES, GPU_CASES, Contender

CHOSEN = ("ppo-1", "ppo-128", "dqn-10k", "dqn-128", "sac-1", "sac-128", "td3-1", "td3-128")


def training_run(contender: Contender, seeds: int) -> Any:
    """A function of the seeds, uint32 [seeds]: everything that a run trains."""
    if contender.peer:
        worker.compile_train = lambda train, seeds: train
        train, _ = getattr(worker, contender.peer)(contender.script.partition(":")[2], seeds, contender.settings)
        make_key = jax.random.PRNGKey
    else:
        module = importlib.import_module(contender.script)
        train, make_key = module.make_train(module.Config(**contender.settings)), jax.random.key
    if seeds == 1:
        return lambda x: train(make_key(x[0]))
    return lambda x: jax.vmap(lambda seed: train(make_key(seed)))(x)


def main() -> None:
    """Read the command line, compile and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=("purejaxrl", "rejax"), default="", help="by default ours")
    parser.add_argument("--only", nargs="+", choices=CHOSEN, default=CHOSEN, help="some of the cases")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    cases = {case.name: case for case in [*CASES, *GPU_CASES]}  # of a name the one for a GPU
    for name in arguments.only:
        for contender in cases[name].contenders:
            if contender.peer == arguments.peer:
                seeds = jax.ShapeDtypeStruct((cases[name].seeds,), jnp.uint32, sharding=find_gpu())
                times = [time.process_time()]
                lowered = jax.jit(training_run(contender, cases[name].seeds)).lower(seeds)
                times.append(time.process_time())
                lowered.compile()
                times.append(time.process_time())
                print(f"{name:>8} {contender.name:>10}: traced in {times[1] - times[0]:.1f} CPU-seconds, ", end="")
                print(f"compiled in {times[2] - times[1]:.1f}", flush=True)


if __name__ == "__main__":
    main()
