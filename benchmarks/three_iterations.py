"""What a program computes in its first three iterations, for `results.py --restamp`, in a process of its own.

    python benchmarks/three_iterations.py ROOT SCRIPT CONFIG.json FILE.npz CYCLES

ROOT is the working tree whose program runs. FILE gets every array of the State after `init` and after each iteration,
by its path, the metrics, and `program`, the hash of the text of the program as `results.py` makes it. CYCLES: cycles of
collecting and learning in an iteration of a replay script; 0: as many as CONFIG says.
"""

import dataclasses
import hashlib
import importlib
import json
import sys
from pathlib import Path

ROOT, SCRIPT, CONFIG, FILE, CYCLES = sys.argv[1:]
sys.path[:0] = [ROOT, f"{ROOT}/variants", f"{ROOT}/benchmarks"]

import hidden_velocity  # noqa: E402, F401  # registers its environments
import jax  # noqa: E402
import numpy as np  # noqa: E402


def arrays_of(prefix: str, tree) -> dict[str, np.ndarray]:
    """Arrays by their path; keys as numbers."""
    arrays = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        arrays[prefix + jax.tree_util.keystr(path)] = np.asarray(jax.random.key_data(x) if is_key else x)
    return arrays


script, settings = importlib.import_module(SCRIPT), json.loads(Path(CONFIG).read_text())
settings = {name: tuple(x) if isinstance(x, list) else x for name, x in settings.items()}
fields = script.Config.__dataclass_fields__  # a setting that one of the two programs lacks is left out
config = script.Config(**{name: x for name, x in settings.items() if name in fields})
if int(CYCLES):
    config = dataclasses.replace(config, steps_per_iteration=int(CYCLES) * config.cycle_steps)
algorithm, key = script.make(config), jax.random.key(0)
init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
abstract = jax.eval_shape(jax.random.key, 0)
state_shape, iteration = jax.eval_shape(algorithm.init, abstract), jax.ShapeDtypeStruct((), jax.numpy.int32)
texts = init.lower(abstract).as_text() + step.lower(state_shape, iteration).as_text()
state = init(key)
arrays = {"program": np.array(hashlib.sha256(texts.encode()).hexdigest())} | arrays_of("init", state)
for number in range(3):
    state, metrics = step(state, np.int32(number))
    arrays |= arrays_of(f"{number}", state) | arrays_of(f"{number} metrics", metrics)
np.savez(FILE, **arrays)
