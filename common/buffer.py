"""A ring buffer of whole transitions that lives on the device."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from common.random import shard_rows


@struct.dataclass
class Buffer:
    """The newest `capacity` transitions, any dataclass or dict of arrays; every dtype is kept.

    All fields of one dtype share an array: on a GPU each array is a kernel more to write.
    """

    arrays: dict[str, jax.Array]  # name of the dtype -> [capacity, width]
    count: jax.Array  # [] int32, transitions written so far, also those that are overwritten
    row: Any = struct.field(pytree_node=False)  # a transition of ShapeDtypeStructs

    @property
    def capacity(self) -> int:
        """Rows of the buffer, written or not."""
        return len(next(iter(self.arrays.values())))

    @property
    def size(self) -> jax.Array:
        """Rows that hold a transition, [] int32."""
        return jnp.minimum(self.count, self.capacity)


def init_buffer(transition: Any, capacity: int) -> Buffer:
    """An empty buffer for transitions like this row of arrays or ShapeDtypeStructs."""
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), transition)
    widths = {dtype: stop for dtype, _, stop in _columns(row)}
    arrays = {dtype: jnp.zeros((capacity, width), dtype) for dtype, width in widths.items()}
    return Buffer(arrays=arrays, count=jnp.int32(0), row=row)


def add(buffer: Buffer, transitions: Any) -> Buffer:
    """Write transitions [n, ...] over the oldest rows, in order, as `collections.deque(maxlen=capacity).extend` does.

    In place where the buffer is donated or carried by a loop. n need not divide the capacity.

    Raises:
        ValueError: more transitions than the buffer has rows, or ones of other fields or shapes than its row has.
    """
    given, row = _shapes(transitions, 1), _shapes(buffer.row, 0)
    for name in given | row:
        one, other = (shapes.get(name, "absent") for shapes in (given, row))
        if one != other:
            raise ValueError(f"{name} is {one} in a transition and {other} in a row of the buffer")
    leaves, n = jax.tree.leaves(transitions), len(jax.tree.leaves(transitions)[0])
    if n > buffer.capacity:
        raise ValueError(f"{n} transitions do not fit a buffer of {buffer.capacity}")
    fields = {dtype: [] for dtype in buffer.arrays}
    for x, (dtype, start, stop) in zip(leaves, _columns(buffer.row), strict=True):
        fields[dtype].append(x.astype(dtype).reshape(n, stop - start))
    rows = (buffer.count + jnp.arange(n, dtype=jnp.int32)) % buffer.capacity
    packed = {dtype: jnp.concatenate(x, axis=1) for dtype, x in fields.items()}
    if n == 1:
        # On a CPU, XLA fuses the write of a single row into the reads that follow, and copies the whole buffer.
        # Writing the row twice prevents that fusion.
        rows, packed = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), (rows, packed))
    arrays = {dtype: x.at[rows].set(packed[dtype]) for dtype, x in buffer.arrays.items()}
    return buffer.replace(arrays=arrays, count=buffer.count + n)


def draw_rows(buffer: Buffer, key: jax.Array, shape: tuple[int, ...], num_new: int = 0) -> jax.Array:
    """Draw row numbers [*shape] int32 uniformly, with replacement, for shape[0] rounds that follow.

    Each round first adds `num_new` transitions, and draws from the rows that are written by then.
    """
    count = buffer.count + num_new * jnp.arange(1, shape[0] + 1, dtype=jnp.int32)
    size = jnp.minimum(count, buffer.capacity).reshape(-1, *[1] * (len(shape) - 1))
    return shard_rows(jax.random.randint(key, shape, 0, jnp.broadcast_to(size, shape), jnp.int32))


def read(buffer: Buffer, rows: jax.Array) -> Any:
    """The transitions of these rows, [*rows.shape, ...]. Costs O(rows), never O(capacity)."""
    arrays = {dtype: x[rows] for dtype, x in buffer.arrays.items()}
    leaves, structure = jax.tree.flatten(buffer.row)
    columns = zip(leaves, _columns(buffer.row), strict=True)
    fields = [arrays[dtype][..., start:stop].reshape(*rows.shape, *x.shape) for x, (dtype, start, stop) in columns]
    return jax.tree.unflatten(structure, fields)


def read_windows(buffer: Buffer, rows: jax.Array, *, n_step: int, num_envs: int, gamma: float) -> Any:
    """The windows of n_step transitions that begin at these rows, each as one transition: n-step returns.

    A window has the rows of one environment, `num_envs` rows apart. It ends after n_step rows, with the episode or with
    the newest row: `reward` is its discounted sum, `discount` is gamma to the power of its length; `terminated` and
    `next_obs` are those of its last row, other fields those of its first.
    """
    batch = read(buffer, rows)
    num_newer = (buffer.count - 1 - rows) % buffer.capacity
    last, is_open, end = rows, jnp.ones(rows.shape, bool), batch
    reward, discount = batch.reward, jnp.full(rows.shape, gamma, batch.reward.dtype)
    for i in range(1, n_step):
        is_open &= ~(end.terminated | end.truncated) & (i * num_envs <= num_newer)
        last = jnp.where(is_open, (rows + i * num_envs) % buffer.capacity, last)
        end = read(buffer, last)
        reward += jnp.where(is_open, discount * end.reward, 0.0)
        discount *= jnp.where(is_open, gamma, 1.0)
    return batch.replace(reward=reward, discount=discount, terminated=end.terminated, next_obs=end.next_obs)


def _shapes(tree: Any, num_axes: int) -> dict[str, tuple[int, ...]]:
    """The shape of each field, without its first axes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): x.shape[num_axes:] for path, x in leaves}


def _columns(row: Any) -> list[tuple[str, int, int]]:
    """The columns of each field of a transition: array, first column and the column after the last."""
    columns, widths = [], {}
    for x in jax.tree.leaves(row):
        start = widths.get(x.dtype.name, 0)
        widths[x.dtype.name] = start + x.size
        columns.append((x.dtype.name, start, start + x.size))
    return columns
