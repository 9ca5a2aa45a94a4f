"""Checkpoints: the State of all lanes of a part and its iteration, in one safetensors file.

Arrays are named by their path in the State, such as `params.params.Dense_0.kernel`; their first axis is the lanes.
"""

import contextlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from runner.folder.files import replacing


def save(path: Path, iteration: int, state: Any) -> None:
    """Write a checkpoint; a kill at any moment leaves the previous one or this one complete.

    Args:
        state: of numpy arrays [num_lanes, ...] and typed keys; its buffer may be None.

    Raises:
        OSError: the file cannot be written.
    """
    leaves = _named_leaves(state)
    arrays = {name: np.ascontiguousarray(jax.random.key_data(x) if _is_key(x) else x) for name, x in leaves.items()}
    content = {"iteration": iteration, "keys": _key_types(leaves), "checksums": _checksums(arrays)}
    text = json.dumps(content)
    with replacing(path) as temporary:
        try:
            save_file(arrays, temporary, {"content": text, "checksum": str(zlib.crc32(text.encode()))})
        except SafetensorError as error:  # also where the disk is full
            raise OSError(f"{path}: {error}") from error


def read_iteration(path: Path) -> int | None:
    """Iteration of a checkpoint, None if there is none. Raises ValueError if it is damaged."""
    if not path.exists():
        return None
    with _opened(path) as (_, content):
        return content["iteration"]


def restore(path: Path, abstract_state: Any, lane: int | None = None, with_buffer: bool = True) -> Any:
    """Read the State of a checkpoint.

    Args:
        abstract_state: the expected shapes and dtypes, the axis of lanes included.
        lane: reads this lane alone, without the axis of lanes.
        with_buffer: whether the replay buffer is wanted.

    Returns:
        The State, of numpy arrays and typed keys. Its buffer is None if it was not saved or is not wanted.

    Raises:
        ValueError: the checkpoint is damaged or holds something else; the message names it.
    """
    with _opened(path) as (file, content):
        saved = set(file.keys())
        if hasattr(abstract_state, "buffer") and not (with_buffer and "buffer" in content["checksums"]):
            abstract_state = abstract_state.replace(buffer=None)
            saved = {name for name in saved if _group(name) != "buffer"}
        expected = _named_leaves(abstract_state)
        if expected.keys() != saved or content["keys"] != _key_types(expected):
            raise ValueError("it does not hold the arrays of this State")
        arrays = {}
        for name, x in expected.items():
            target, part = jax.eval_shape(jax.random.key_data, x) if _is_key(x) else x, file.get_slice(name)
            arrays[name] = part[:] if lane is None else part[lane : lane + 1]
            if (tuple(part.get_shape()), arrays[name].dtype) != (target.shape, target.dtype):
                raise ValueError(f"{name} has another shape or type")
    for group, checksums in _checksums(arrays).items():
        if checksums != content["checksums"][group][slice(lane, None if lane is None else lane + 1)]:
            raise ValueError(f"the checkpoint {path} is damaged: its checksums do not match")

    def rebuild(key_path, x):
        array = arrays[_name(key_path)] if lane is None else arrays[_name(key_path)][0]
        return jax.random.wrap_key_data(array) if _is_key(x) else array

    return jax.tree_util.tree_map_with_path(rebuild, abstract_state)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The file and what its metadata say. Errors inside of the block become a ValueError that names the file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if str(zlib.crc32(metadata["content"].encode())) != metadata["checksum"]:
                raise ValueError("its metadata do not match their checksum")
            yield file, json.loads(metadata["content"])
    except (SafetensorError, OSError, ValueError, LookupError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the checkpoint {path} is damaged or of another run: {reason}") from error


def _checksums(arrays: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """CRC-32 of each lane, separately for the buffer, so that the rest can be read without it."""
    checksums = {}
    for name in sorted(arrays):
        x = arrays[name]
        lanes = checksums.setdefault(_group(name), [0] * len(x))
        checksums[_group(name)] = [zlib.crc32(x[i : i + 1], checksum) for i, checksum in enumerate(lanes)]
    return checksums


def _group(name: str) -> str:
    return "buffer" if name.startswith("buffer.") else "state"


def _name(key_path: Any) -> str:
    return jax.tree_util.keystr(key_path, simple=True, separator=".")


def _named_leaves(tree: Any) -> dict[str, Any]:
    return {_name(key_path): x for key_path, x in jax.tree_util.tree_leaves_with_path(tree)}


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _key_types(leaves: dict[str, Any]) -> dict[str, str]:
    return {name: str(x.dtype) for name, x in leaves.items() if _is_key(x)}
