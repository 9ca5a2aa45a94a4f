"""Arrays to and from a safetensors file, without a copy of all of them on the host: the State may fill its memory."""

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 2**24  # bytes of an array that are read at a time
# What the format calls the types that can be read back.
NAMES = {"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64"}
NAMES |= {f"{x}int{bits}": f"{x or 'i'}{bits}".upper() for x in ("", "u") for bits in (8, 16, 32, 64)}
NAMES |= {f"float{bits}": f"F{bits}" for bits in (16, 32, 64)}


def pieces(x: Any, num_trials: int) -> list[np.ndarray]:
    """The first rows of an array [num_padded, ...] on the host, as arrays that follow each other.

    They are what each device has of it: on a CPU views, where the whole array of several devices would be a copy.
    """
    shards = [shard for shard in getattr(x, "addressable_shards", ()) if shard.replica_id == 0]
    if not shards or any(shard.data.shape[1:] != x.shape[1:] for shard in shards):
        return [np.ascontiguousarray(np.asarray(x)[:num_trials])]  # environments are divided too: such arrays are small
    parts = {shard.index[0].start or 0: shard.data for shard in shards}
    return [np.ascontiguousarray(np.asarray(parts[i])[: max(0, num_trials - i)]) for i in sorted(parts)]


def write(path: Path, arrays: dict[str, list[np.ndarray]], metadata: dict[str, str]) -> None:
    """Write arrays, each in pieces, in the format of https://github.com/huggingface/safetensors.

    Raises OSError if the file cannot be written.
    """
    header, end = {"__metadata__": metadata}, 0
    names = sorted(arrays, key=lambda name: -arrays[name][0].itemsize)  # so each begins at a multiple of its item size
    for name in names:
        first, start, end = arrays[name][0], end, end + sum(x.nbytes for x in arrays[name])
        shape = [sum(map(len, arrays[name])), *first.shape[1:]]
        header[name] = {"dtype": NAMES[first.dtype.name], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for x in arrays[name]:
                file.write(x)


def read(rows: Any) -> Iterator[np.ndarray]:
    """All rows of an array in a file, in pieces; `rows`: what `safe_open(...).get_slice(name)` returns."""
    for trials in _blocks(rows, np.arange(rows.get_shape()[0])):
        yield rows[trials[0] : trials[-1] + 1]


def place(rows: Any, target: jax.ShapeDtypeStruct) -> jax.Array:
    """An array of a file, as for `read`, on its devices: [num_padded, ...] with the sharding of `target`, which repeats
    the last row."""
    last, shards = rows.get_shape()[0] - 1, []
    for device, (trials, *rest) in target.sharding.addressable_devices_indices_map(target.shape).items():
        blocks = _blocks(rows, np.minimum(np.arange(target.shape[0])[trials], last))
        parts = (_select(rows, trials)[:, *rest] for trials in blocks)
        with jax.default_device(device):  # jnp.zeros(device=) makes them elsewhere and copies them
            if len(blocks) == 1:
                shard = jax.device_put(next(parts))
            else:
                shard, start = jnp.zeros(target.sharding.shard_shape(target.shape), target.dtype), 0
                for part in parts:
                    shard = _fill(shard, part, start).block_until_ready()
                    start += len(part)
        shards.append(shard)
    return jax.make_array_from_single_device_arrays(target.shape, target.sharding, shards)


@partial(jax.jit, donate_argnums=0)
def _fill(shard: jax.Array, part: jax.Array, start: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(shard, part, start, axis=0)


def _select(rows: Any, trials: np.ndarray) -> np.ndarray:
    """Read consecutive rows; the last one may be repeated."""
    x = rows[trials[0] : trials[-1] + 1]
    return x if len(x) == len(trials) else x[trials - trials[0]]


def _blocks(rows: Any, trials: np.ndarray) -> list[np.ndarray]:
    """These rows in blocks of at most BLOCK bytes, or of one row."""
    row_bytes = rows[:0].itemsize * math.prod(rows.get_shape()[1:])
    size = max(1, BLOCK // max(1, row_bytes))
    return np.split(trials, range(size, len(trials), size))
