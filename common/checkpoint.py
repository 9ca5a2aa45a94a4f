"""Checkpoints with orbax: the State of all lanes and the iteration, written aside and renamed, so that a kill leaves a whole one."""

import importlib.util
import json
import logging
import sys
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax reports each of its steps


def _manager(directory: Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
    return ocp.CheckpointManager(directory.absolute(), options=options)


def save(directory: Path, iteration: int, state: Any) -> None:
    """Save the State after `iteration` iterations; the previous checkpoint goes when this one stands. Returns when it is on disk.

    Raises:
        OSError: `directory` cannot be written.
    """
    with _manager(directory) as manager:
        manager.save(iteration, args=ocp.args.StandardSave(state), force=True)


def latest_iteration(directory: Path) -> int | None:
    """Iteration of the checkpoint in `directory`, None if there is none."""
    if not directory.is_dir():
        return None
    with _manager(directory) as manager:
        return manager.latest_step()


def restore(directory: Path, iteration: int, abstract_state: Any) -> Any:
    """Read the State back.

    Args:
        abstract_state: shapes, dtypes and shardings of what is expected, from `jax.eval_shape`.

    Raises:
        ValueError: the checkpoint is damaged or holds something else; the message names it.
    """
    path = directory / str(iteration)
    try:
        with _manager(directory) as manager:
            return manager.restore(iteration, args=ocp.args.StandardRestore(abstract_state))
    except Exception as error:  # orbax and tensorstore raise a wide variety
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ValueError(f"the checkpoint {path} is damaged or of another shape: {reason}") from error


def load(run_dir: str | Path, seed_index: int = 0) -> tuple[Any, Any, Any]:
    """Load one seed of a finished or interrupted run.

    Args:
        run_dir: the folder that a run wrote, with config.json and checkpoint/.
        seed_index: which lane, counted from 0.

    Returns:
        config, algorithm (with `act` and `value`) and that lane's State.

    Raises:
        ValueError: no such run or seed, or a damaged checkpoint.
    """
    run_dir = Path(run_dir)
    record = read_record(run_dir)
    num_lanes = record["num_seeds"]
    if not 0 <= seed_index < num_lanes:
        raise ValueError(f"{run_dir} has seeds 0 to {num_lanes - 1}, not {seed_index}")
    iteration = latest_iteration(run_dir / "checkpoint")
    if iteration is None:
        raise ValueError(f"{run_dir} has no checkpoint")
    script = import_script(record["script"])
    config = read_config(script.Config, record)
    algorithm = script.make(config)
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((num_lanes,), "uint32"))
    state = restore(run_dir / "checkpoint", iteration, jax.eval_shape(jax.vmap(algorithm.init), keys))
    return config, algorithm, jax.tree.map(lambda x: x[seed_index], state)


def read_record(run_dir: Path) -> dict[str, Any]:
    """What config.json says. Raises ValueError if it is missing or damaged."""
    try:
        return json.loads((run_dir / "config.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"no run in {run_dir}: it has no config.json") from None
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{run_dir / 'config.json'} cannot be read: {error}") from error


def read_config(config_class: type, record: dict[str, Any]) -> Any:
    """The Config of a record; JSON's lists become tuples. Raises ValueError if the script's fields are others by now."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in record["config"].items()}
    try:
        return config_class(**fields)
    except TypeError as error:
        raise ValueError(f"the run was made with another version of the script: {error}") from error


def import_script(path: str) -> Any:
    """Import a script by its file, as a module of its own name."""
    name = Path(path).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or not Path(path).exists():
            raise ValueError(f"the script {path} that made the run is not there any more")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
