"""Checkpoints: the State of all trials of a part and its iteration, in one safetensors file.

Arrays are named by their path in the State, such as `params.params.Dense_0.kernel`; their first axis is the trials.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from common.random import is_key
from runner.errors import printable
from runner.files.store import check_file, replacing
from runner.files.tensors import NAMES, pieces, place, read, write

POLICY = ("params", "obs_statistics")  # the fields of a State that `act` and `value` read
KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}  # types of keys, and their generators
MAX_UNREAD = 2**26  # numbers in a trial of a checkpoint that this State does not have


def save(path: Path, iteration: int, state: Any, num_trials: int | None = None) -> None:
    """Write a checkpoint; a kill at any moment leaves the previous one or this one complete.

    Args:
        state: of arrays [num_padded, ...]; its buffer may be None. On a CPU it is not copied.
        num_trials: without the padding; None: there is none.

    Raises:
        OSError: the file cannot be written.
        ValueError: as of `named_leaves`.
    """
    leaves = named_leaves(state)
    data = {name: jax.random.key_data(x) if is_key(x) else x for name, x in leaves.items()}
    arrays = {name: pieces(x, len(x) if num_trials is None else num_trials) for name, x in data.items()}
    content = {"iteration": iteration, "keys": _key_types(leaves), "checksums": _checksums(arrays)}
    text = json.dumps(content)
    with replacing(path) as temporary:
        try:
            write(temporary, arrays, {"content": text, "checksum": str(zlib.crc32(text.encode()))})
        except OSError as error:  # a full disk's error names no file
            raise OSError(f"{path}: {error.strerror}") from error


def read_iteration(path: Path) -> int | None:
    """Iteration of a checkpoint, None if there is none. Raises ValueError if it is damaged."""
    if not path.exists():
        return None
    with _opened(path) as (_, content):
        return content["iteration"]


def restore(path: Path, abstract_state: Any, placed_state: Any = None) -> Any:
    """Read the State of all trials.

    Args:
        abstract_state: the expected shapes and dtypes, [num_trials, ...].
        placed_state: those with padding and shardings, [num_padded, ...], to which it is read; None: to the host.

    Returns:
        The State, of numpy arrays and typed keys, or placed. Its buffer is None if it was not saved.

    Raises:
        ValueError: the checkpoint is damaged or holds something else; the message names it.
    """
    with _opened(path) as (file, content):
        if hasattr(abstract_state, "buffer") and "buffer" not in content["checksums"]:
            abstract_state = abstract_state.replace(buffer=None)
        rows = _slices(file)
        if not _fits(abstract_state, rows, content):
            raise ValueError("it does not hold the arrays of this State")
        _check({name: read(x) for name, x in rows.items()}, content, slice(None))
        if placed_state is None:
            return _rebuild(abstract_state, {name: x[:] for name, x in rows.items()})
        targets = named_leaves(placed_state)
        return _rebuild(abstract_state, {name: place(x, _data_of(targets[name])) for name, x in rows.items()})


def restore_trials(path: Path, abstract_state: Any, trials: np.ndarray) -> Any:
    """Read the State of some trials of a checkpoint to the host, [len(trials), ...].

    Args:
        abstract_state: the expected shapes and dtypes, of one trial.
        trials: counted from 0 within the checkpoint.

    Raises:
        ValueError: the checkpoint is damaged or holds something else; the message names it.
    """
    with _opened(path) as (file, content):
        rows = _slices(file)
        if not _fits(abstract_state, rows, content, int(trials.max())):
            raise ValueError("it does not hold the arrays of this State")
        saved = {name: np.concatenate([x[i : i + 1] for i in trials.tolist()]) for name, x in rows.items()}
        for i, trial in enumerate(trials.tolist()):
            _check({name: [x[i : i + 1]] for name, x in saved.items()}, content, slice(trial, trial + 1))
        return _rebuild(abstract_state, saved)


def restore_policy(path: Path, abstract_state: Any, trial: int) -> Any:
    """Read the State of one trial, without the axis of trials and without its replay buffer.

    A field of the State that another version of the script saved differently is None, but for those in POLICY.

    Args:
        abstract_state: the expected shapes and dtypes, of one trial.
        trial: counted from 0 within the checkpoint.

    Raises:
        ValueError: the checkpoint is damaged or holds another policy; the message names it.
    """
    one = slice(trial, trial + 1)
    with _opened(path) as (file, content):
        rows = {name: x for name, x in _slices(file).items() if _group(name) != "buffer"}
        other = {}
        for field in dataclasses.fields(abstract_state):
            arrays = {name: x for name, x in rows.items() if name.partition(".")[0] == field.name}
            if not _fits({field.name: getattr(abstract_state, field.name)}, arrays, content, trial):
                other[field.name] = None
        if lacking := [name for name in POLICY if name in other]:
            raise ValueError(f"its {' and '.join(lacking)} are not those of this version of the script")
        fitting = {field.name for field in dataclasses.fields(abstract_state)} - other.keys()
        sizes = {name: math.prod(x.get_shape()[1:]) for name, x in rows.items()}
        if sum(size for name, size in sizes.items() if name.partition(".")[0] not in fitting) > MAX_UNREAD:
            raise ValueError("its largest arrays are not those of this State")
        saved = {name: x[one] for name, x in rows.items()}
        _check({name: [x] for name, x in saved.items()}, content, one)
    if unread := sorted(other.keys() - {"buffer"}):
        print(f"note: {path} is of another version of the script; not read: {', '.join(unread)}", file=sys.stderr)
    state = _rebuild(abstract_state.replace(**other), saved)
    return jax.tree.map(lambda x: x[0], state)


def _slices(file: Any) -> dict[str, Any]:
    """The arrays of a file by their names; none is read yet."""
    rows = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, it is no dict
    for name, x in rows.items():
        if not x.get_shape() or x.get_dtype() not in NAMES.values():
            raise ValueError(f"{name} is no array of trials")
    return rows


def _fits(tree: Any, rows: dict[str, Any], content: dict[str, Any], trial: int | None = None) -> bool:
    """Whether arrays of a file are the leaves of this part of a State, in their shapes and types.

    Args:
        trial: the tree is that of one trial, which the file must have; None: the tree has all trials.
    """
    leaves, shapes = named_leaves(tree), {name: x.get_shape() for name, x in rows.items()}
    expected = {name: ([*x.shape], NAMES[x.dtype.name]) for name, x in jax.tree.map(_data_of, leaves).items()}
    saved = {name: (shapes[name][trial is not None :], x.get_dtype()) for name, x in rows.items()}
    keys = {name: kind for name, kind in content["keys"].items() if name in rows}
    has_trial = trial is None or all(shape[:1] > [trial] for shape in shapes.values())
    return has_trial and expected == saved and keys == _key_types(leaves)


def _check(saved: dict[str, Iterable[np.ndarray]], content: dict[str, Any], trials: slice) -> None:
    """Raise ValueError unless the arrays of these trials, in pieces, have the checksums that were saved with them."""
    for group, checksums in _checksums(saved).items():
        if checksums != content["checksums"][group][trials]:
            raise ValueError("its checksums do not match")


def _rebuild(abstract_state: Any, saved: dict[str, Any]) -> Any:
    """The State whose leaves have these names."""

    def rebuild(key_path, x):
        array = saved[_name(key_path)]
        return jax.random.wrap_key_data(array, impl=KEYS[str(x.dtype)]) if is_key(x) else array

    return jax.tree_util.tree_map_with_path(rebuild, abstract_state)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The file and what its metadata say. Errors inside of the block become a ValueError that names the file."""
    try:
        check_file(path)
        with safe_open(path, framework="numpy") as file:
            yield file, _read_content(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, LookupError) as error:
        reason = printable((str(error).strip() or type(error).__name__).splitlines()[0])
        raise ValueError(f"the checkpoint {path} is damaged or of another run: {reason}") from error


def _read_content(metadata: dict[str, str]) -> dict[str, Any]:
    """Read the metadata that `save` writes. Raises ValueError or LookupError if they are anything else."""
    if str(zlib.crc32(metadata["content"].encode())) != metadata["checksum"]:
        raise ValueError("its metadata do not match their checksum")
    try:
        content = json.loads(metadata["content"])
    except RecursionError as error:
        raise ValueError("its metadata are nested too deep") from error
    if not isinstance(content, dict) or not isinstance(content.get("keys"), dict):
        raise ValueError("its metadata are not those of a checkpoint")
    checksums = content.get("checksums")
    if not isinstance(checksums, dict) or not all(isinstance(x, list) for x in checksums.values()):
        raise ValueError("its metadata have no checksums")
    if type(content.get("iteration")) is not int or not 1 <= content["iteration"] < 2**63:
        raise ValueError("its iteration is no positive integer")
    return content


def _checksums(arrays: dict[str, Iterable[np.ndarray]]) -> dict[str, list[int]]:
    """CRC-32 of each trial of arrays in pieces, separately for the buffer, so that the rest can be read without it."""
    checksums = {}
    for name in sorted(arrays):
        before = iter(checksums.get(_group(name), itertools.repeat(0)))
        trials = [zlib.crc32(x[i : i + 1], next(before)) for x in arrays[name] for i in range(len(x))]
        checksums[_group(name)] = trials
    return checksums


def _group(name: str) -> str:
    return "buffer" if name.partition(".")[0] == "buffer" else "state"


def _name(key_path: Any) -> str:
    return jax.tree_util.keystr(key_path, simple=True, separator=".")


def named_leaves(tree: Any) -> dict[str, Any]:
    """Each leaf of a State, abstract or not, by its name.

    Raises:
        ValueError: a checkpoint could not hold them: two have one name, or an array has a type that the format lacks.
    """
    leaves = {}
    for key_path, x in jax.tree_util.tree_leaves_with_path(tree):
        name = _name(key_path)
        if name in leaves:
            raise ValueError(f"two arrays of the State have the name {name} in a checkpoint; rename one")
        if x.dtype.name not in NAMES and str(x.dtype) not in KEYS:
            raise ValueError(
                f"{name} in the State is {x.dtype.name}, which a checkpoint cannot hold; choose another type"
            )
        leaves[name] = x
    return leaves


def _data_of(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The abstract array that the file holds in place of this one: the numbers of keys."""
    return jax.eval_shape(jax.random.key_data, x).update(sharding=x.sharding) if is_key(x) else x


def _key_types(leaves: dict[str, Any]) -> dict[str, str]:
    return {name: str(x.dtype) for name, x in leaves.items() if is_key(x)}
