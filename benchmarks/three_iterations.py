"""The first three iterations of a program, for `results.py --restamp`, in a process of its own.

    python benchmarks/three_iterations.py ROOT SCRIPT CONFIG.json FILE.npz CYCLES

ROOT is the working tree whose program runs: nothing else of this one is imported. FILE gets every array of the State
after `init` and after each iteration, by its path, the metrics, and `program`, its hash. CYCLES: cycles of collecting
and learning in an iteration of a replay script; 0: as many as CONFIG says.
"""

import dataclasses
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np


def hash_program(algorithm: Any) -> str:
    """SHA-256 of what a seed computes: its `init` and `step` as StableHLO, which depends on JAX' version."""
    jax.clear_caches()  # after other programs in a process the hash may be another one than alone
    key = jax.eval_shape(jax.random.key, 0)
    iteration = jax.ShapeDtypeStruct((), jax.numpy.int32)
    programs = (algorithm.init, key), (algorithm.step, jax.eval_shape(algorithm.init, key), iteration)
    texts = [jax.jit(function).lower(*arguments).as_text() for function, *arguments in programs]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def arrays_of(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """Arrays by their path; keys as numbers."""
    arrays = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        arrays[prefix + jax.tree_util.keystr(path)] = np.asarray(jax.random.key_data(x) if is_key else x)
    return arrays


def main(root: str, name: str, settings: str, file: str, cycles: str) -> None:
    """Run the program and write what it computes."""
    sys.path[:0] = [root, f"{root}/variants", f"{root}/benchmarks"]
    importlib.import_module("hidden_velocity")  # registers its environments
    script = importlib.import_module(name)
    fields = script.Config.__dataclass_fields__  # a setting that one of the two programs lacks is left out
    given = {name: x for name, x in json.loads(Path(settings).read_text()).items() if name in fields}
    config = script.Config(**{name: tuple(x) if isinstance(x, list) else x for name, x in given.items()})
    if int(cycles):
        config = dataclasses.replace(config, steps_per_iteration=int(cycles) * config.cycle_steps)
    algorithm = script.make(config)
    arrays = {"program": np.array(hash_program(algorithm))}
    state = jax.jit(algorithm.init)(jax.random.key(0))
    arrays |= arrays_of("init", state)
    step = jax.jit(algorithm.step)
    for number in range(3):
        state, metrics = step(state, np.int32(number))
        arrays |= arrays_of(f"{number}", state) | arrays_of(f"{number} metrics", metrics)
    np.savez(file, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
