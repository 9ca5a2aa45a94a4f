"""Load a trained policy: one lane of a finished or interrupted run."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.folder import checkpoint, files
from runner.folder.record import read_experiment


def load(run_dir: str | Path, seed_index: int = 0, setting_index: int = 0) -> tuple[Any, Any, Any]:
    """Load one seed of a finished or interrupted run.

    Args:
        run_dir: the folder that a run wrote.
        seed_index: which seed, counted from 0.
        setting_index: which setting of a sweep, counted from 0 in the order of config.json.

    Returns:
        config, algorithm (with `act` and `value`) and that lane's State, without a replay buffer.

    Raises:
        ValueError: no such run, seed or setting, or a damaged checkpoint.
    """
    run_dir = Path(run_dir)
    record = files.read_record(run_dir)
    script = import_script(record.script)
    experiment = read_experiment(record, script)
    lane = experiment.lane(seed_index, setting_index)
    part = next((part for part in record.parts if part.start <= lane < part.stop), None)
    path = part and files.part_folder(run_dir, record.parts, part) / files.CHECKPOINT
    if path is None or not path.exists():
        raise ValueError(f"{run_dir} has no checkpoint of this seed")
    config = dataclasses.replace(experiment.config, **experiment.setting(setting_index))
    algorithm = script.make(config)
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((part.num_lanes,), np.uint32))
    abstract_state = jax.eval_shape(jax.vmap(algorithm.init), keys)
    state = checkpoint.restore(path, abstract_state, lane - part.start, with_buffer=False)
    return config, algorithm, jax.device_put(state)


def import_script(path: str) -> Any:
    """Import a script by its file, as a module of its own name. Raises ValueError if it is not there."""
    name = Path(path).stem
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__).resolve() == Path(path).resolve():
        return known
    if not Path(path).exists():
        raise ValueError(f"the script {path} of this run no longer exists")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
