"""Load a trained policy: one lane of a finished or interrupted run."""

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.experiment import Experiment
from runner.files.checkpoint import restore_policy
from runner.files.record import Record, read_experiment, read_record
from runner.files.store import CHECKPOINT, part_folder, rung_folder

ROOT = Path(__file__).resolve().parent.parent.parent  # the folder of the scripts


def load(
    run_dir: str | Path, seed_index: int = 0, setting_index: int = 0, script: str | Path | None = None
) -> tuple[Any, Any, Any]:
    """Load one seed of a finished or interrupted run.

    Args:
        run_dir: the folder that a run wrote.
        seed_index: which seed, counted from 0.
        setting_index: which setting of a sweep, counted from 0 in the order of config.json.
        script: the file of the script that trained it, if that has moved; None: where it was.

    Returns:
        config, algorithm (with `act` and `value`) and that lane's State, without a replay buffer. Of a run of another
        version of the script, the State has at least what `act` and `value` read; a note says what is None.

    Raises:
        ValueError: no such run, seed, setting or script, a damaged checkpoint, or one of a policy that the script
            cannot have.
    """
    run_dir = Path(run_dir)
    record = read_record(run_dir)
    if script is not None and not (Path(script).is_file() and Path(script).suffix == ".py"):
        raise ValueError(f"the script {script} does not exist or is no .py file")
    module = import_script(str(script or record.script))
    if missing := [name for name in ("Config", "make") if not hasattr(module, name)]:
        raise ValueError(f"{module.__file__} is no script that trains: it has no {' and no '.join(missing)}")
    try:
        return _restore(run_dir, record, module, seed_index, setting_index)
    except ValueError as error:
        if script is None or Path(script).stem == record.algorithm:
            raise
        raise ValueError(f"{run_dir} is a run of {record.algorithm}.py, read with {script}: {error}") from error


def _restore(run_dir: Path, record: Record, module: Any, seed_index: int, setting_index: int) -> tuple[Any, Any, Any]:
    """`load` with the record and the module of the script."""
    experiment = read_experiment(record, module)
    places = lanes_of_checkpoints(run_dir, record, experiment, experiment.lane(seed_index, setting_index))
    path, row = next((place for place in places if place[0].exists()), (None, 0))
    if path is None:
        raise ValueError(f"{run_dir} has no checkpoint of this seed")
    config = dataclasses.replace(experiment.config, **experiment.setting(setting_index))
    algorithm = module.make(config)
    abstract_state = jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0))
    state = restore_policy(path, abstract_state, row)
    return config, algorithm, jax.device_put(state)


def lanes_of_checkpoints(
    run_dir: Path, record: Record, experiment: Experiment, lane: int
) -> Iterator[tuple[Path, int]]:
    """The checkpoints that a lane may have, the last rung's first, and its row there."""
    folders = [(run_dir, record.parts, np.arange(experiment.num_lanes))]
    for index, rung in enumerate(record.rungs):
        folders.append((rung_folder(run_dir, index), rung.parts, experiment.lanes_at(rung.settings)))
    for folder, parts, lanes in reversed(folders):
        for part in parts:
            for row in np.flatnonzero(lanes[part.start : part.stop] == lane):
                yield part_folder(folder, parts, part) / CHECKPOINT, int(row)


def import_script(path: str) -> Any:
    """Import a script by its file, as a module of its own name. Where the file is gone, as on another machine, the
    script of this name beside `runner/` is taken. Raises ValueError if there is none.
    """
    name = Path(path).stem
    if not Path(path).exists():
        places = [ROOT / f"{name}.py", ROOT / "variants" / f"{name}.py"]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise ValueError(f"the script {path} no longer exists; if it has moved, name it: --script, load(script=)")
        path = str(found)
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__).resolve() == Path(path).resolve():
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
