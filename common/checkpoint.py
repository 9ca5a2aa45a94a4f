"""Checkpoints with orbax: the State of all lanes and the iteration.

They are written aside and renamed, so that a process killed at any moment leaves a whole one.
"""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from common.sweep import count_settings

# What config.json needs for a run to be loaded or resumed.
RECORD = {
    *("algorithm", "script", "config", "seed", "num_seeds", "parts"),
    *("settings", "sweep", "sweep_samples", "lanes_per_batch"),
}
logging.getLogger("absl").setLevel(logging.ERROR)  # orbax reports each of its steps


@contextlib.contextmanager
def _manager(directory: Path) -> Iterator[ocp.CheckpointManager]:
    """A manager that takes this process for the only one.

    With several, orbax would wait for all of them at each save, and write only arrays that they have in common.
    """
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
    with (
        mock.patch.object(jax, "process_count", return_value=1),
        mock.patch.object(jax, "process_index", return_value=0),
        ocp.CheckpointManager(directory.absolute(), options=options) as manager,
    ):
        yield manager


def save(directory: Path, iteration: int, state: Any) -> None:
    """Save the State after `iteration` iterations; on return it is on disk and the previous checkpoint is gone.

    A replay buffer is an item of its own, so that a policy can be loaded without it. Checksums go along.

    Raises:
        OSError: `directory` cannot be written.
    """
    buffer = getattr(state, "buffer", None)
    items = {"state": state if buffer is None else state.replace(buffer=None)}
    if buffer is not None:
        items["buffer"] = buffer
    args = {name: ocp.args.StandardSave(item) for name, item in items.items()}
    args["checksums"] = ocp.args.JsonSave({name: checksums(item) for name, item in items.items()})
    with _manager(directory) as manager:
        manager.save(iteration, args=ocp.args.Composite(**args), force=True)


def checksums(tree: Any) -> list[str]:
    """Type, shape and CRC-32 of each array, in the order of the leaves."""

    def checksum(x):
        data = jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        return f"{x.dtype} {x.shape} {zlib.crc32(np.ascontiguousarray(data).reshape(-1).view(np.uint8)):08x}"

    return [checksum(x) for x in jax.tree.leaves(tree)]


def latest_iteration(directory: Path) -> int | None:
    """Iteration of the checkpoint in `directory`, None if there is none."""
    if not directory.is_dir():
        return None
    with _manager(directory) as manager:
        return manager.latest_step()


def restore(directory: Path, iteration: int, abstract_state: Any, with_buffer: bool = True) -> Any:
    """Read the State back, keys aside as numpy arrays; its buffer is None where it was not saved or is not wanted.

    Args:
        abstract_state: shapes and dtypes of what is expected, from `jax.eval_shape`.

    Raises:
        ValueError: the checkpoint is damaged or holds something else; the message names it.
    """
    path = directory / str(iteration)
    buffer = getattr(abstract_state, "buffer", None)
    items = {"state": abstract_state if buffer is None else abstract_state.replace(buffer=None)}
    try:
        with _manager(directory) as manager:
            saved = manager.restore(iteration, args=ocp.args.Composite(checksums=ocp.args.JsonRestore()))["checksums"]
            if buffer is not None and with_buffer and "buffer" in saved:
                items["buffer"] = buffer
            args = {name: ocp.args.StandardRestore(jax.tree.map(_target, item)) for name, item in items.items()}
            restored = manager.restore(iteration, args=ocp.args.Composite(**args))
    except Exception as error:  # orbax and tensorstore raise a wide variety
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ValueError(f"the checkpoint {path} is damaged or of another shape: {reason}") from error
    for name, item in items.items():
        wanted, found = ([(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (item, restored[name]))
        if found != wanted:
            raise ValueError(f"the checkpoint {path} holds arrays of another shape or type")
        if checksums(restored[name]) != saved[name]:
            raise ValueError(f"the checkpoint {path} is damaged: its checksums do not fit")
    return restored["state"].replace(buffer=restored["buffer"]) if "buffer" in items else restored["state"]


def _target(x: Any) -> Any:
    """What tells orbax to read an array into the host's memory; it makes keys only on a device."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(jax.local_devices()[0]))
    return np.empty(x.shape, x.dtype)


def part_folder(run_dir: Path, parts: list[tuple[int, int]], part: int) -> Path:
    """Where the checkpoint of lanes start to stop - 1 is; a run of a single part has it in its own folder."""
    start, stop = parts[part]
    return run_dir if len(parts) == 1 else run_dir / "parts" / f"lanes-{start}-to-{stop - 1}"


def load(run_dir: str | Path, seed_index: int = 0, setting_index: int = 0) -> tuple[Any, Any, Any]:
    """Load one seed of a finished or interrupted run.

    Args:
        run_dir: the folder that a run wrote, with config.json and checkpoint/.
        seed_index: which seed, counted from 0.
        setting_index: which setting of a sweep, counted from 0 in the order of config.json.

    Returns:
        config, algorithm (with `act` and `value`) and that lane's State, without a replay buffer.

    Raises:
        ValueError: no such run, seed or setting, or a damaged checkpoint.
    """
    run_dir = Path(run_dir)
    record = read_record(run_dir)
    num_settings = count_settings(record["settings"])
    for index, count, what in ((seed_index, record["num_seeds"], "seeds"), (setting_index, num_settings, "settings")):
        if not 0 <= index < count:
            raise ValueError(f"{run_dir} has {what} 0 to {count - 1}, not {index}")
    lane = setting_index * record["num_seeds"] + seed_index
    part = next((i for i, (start, stop) in enumerate(record["parts"]) if start <= lane < stop), None)
    if part is None:
        raise ValueError(f"{run_dir} has no checkpoint")
    start, stop = record["parts"][part]
    directory = part_folder(run_dir, record["parts"], part) / "checkpoint"
    iteration = latest_iteration(directory)
    if iteration is None:
        raise ValueError(f"{run_dir} has no checkpoint")
    script = import_script(record["script"])
    setting = {name: values[setting_index] for name, values in record["settings"].items()}
    config = dataclasses.replace(read_config(script.Config, record), **setting)
    algorithm = script.make(config)
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((stop - start,), "uint32"))
    abstract_state = jax.eval_shape(jax.vmap(algorithm.init), keys)
    state = restore(directory, iteration, abstract_state, with_buffer=False)
    return config, algorithm, jax.device_put(jax.tree.map(lambda x: x[lane - start], state))


def read_record(run_dir: Path) -> dict[str, Any]:
    """What config.json says. Raises ValueError if it is missing or damaged."""
    try:
        record = json.loads((run_dir / "config.json").read_text())
        if not isinstance(record, dict) or not record.keys() >= RECORD:
            raise ValueError(f"it needs the fields {', '.join(sorted(RECORD))}")
        return record
    except FileNotFoundError:
        raise ValueError(f"no run in {run_dir}: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{run_dir / 'config.json'} cannot be read: {error}") from error


def read_config(config_class: type, record: dict[str, Any]) -> Any:
    """The Config of a record; JSON's lists become tuples.

    Raises ValueError if the script's fields are others by now.
    """
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in record["config"].items()}
    try:
        return config_class(**fields)
    except TypeError as error:
        raise ValueError(f"the run was made with another version of the script: {error}") from error


def import_script(path: str) -> Any:
    """Import a script by its file, as a module of its own name. Raises ValueError if it is not there."""
    name = Path(path).stem
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__).resolve() == Path(path).resolve():
        return known
    if not Path(path).exists():
        raise ValueError(f"the script {path} that made the run is not there any more")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
