"""The compiled programs of a run.

A lane is one seed; lanes are the leading axis of every array and never talk to each other.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


class Lanes(NamedTuple):
    """Where lanes live. The number of lanes is padded to a multiple of the devices; the padding is never shown."""

    num_lanes: int
    num_padded: int
    sharding: NamedSharding

    def trim(self, tree: Any) -> Any:
        """Leave out the padding of arrays [num_padded, ...]."""
        return tree if self.num_lanes == self.num_padded else jax.tree.map(lambda x: x[: self.num_lanes], tree)

    def place(self, tree: Any) -> Any:
        """Pad arrays [num_lanes, ...] with copies of the last lane and spread them over the devices."""
        index = np.minimum(np.arange(self.num_padded), self.num_lanes - 1)
        padded = tree if self.num_lanes == self.num_padded else jax.tree.map(lambda x: x[index], tree)
        return jax.device_put(padded, self.sharding)


def make_lanes(num_lanes: int) -> Lanes:
    """Spread lanes over the local devices, at least one lane on each."""
    devices = jax.local_devices()[:num_lanes]
    mesh = jax.make_mesh((len(devices),), ("lane",), axis_types=(AxisType.Auto,), devices=devices)
    num_padded = -(-num_lanes // len(devices)) * len(devices)
    return Lanes(num_lanes, num_padded, NamedSharding(mesh, PartitionSpec("lane")))


def init_state(init: Callable, lanes: Lanes, keys: jax.Array) -> Any:
    """The first State of all lanes, each made on the device where it will live. keys [num_lanes]."""

    def strict(key):
        # An environment may begin with a weakly typed number. A checkpoint has none, and the two would be two programs.
        return jax.tree.map(lambda x: x.astype(x.dtype) if getattr(x, "weak_type", False) else x, init(key))

    return jax.jit(jax.vmap(strict), out_shardings=lanes.sharding)(lanes.place(keys))


def compile_segment(step: Callable, lanes: Lanes, state: Any, capacity: int) -> Callable:
    """Compile `(state, start, stop) -> (state, metrics [num_padded, capacity])`, iterations start to stop - 1.

    `stop` is an argument of the program, so one compilation serves segments of every length up to `capacity`. The
    state is donated.
    """

    def segment(state, start, stop):
        def iterate(iteration, carry):
            state, records = carry
            state, metrics = step(state, iteration)
            return state, jax.tree.map(lambda record, x: record.at[iteration - start].set(x), records, metrics)

        _, shapes = jax.eval_shape(step, state, start)
        records = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(start, stop, iterate, (state, records))

    program = jax.jit(
        jax.vmap(segment, in_axes=(0, None, None)), donate_argnums=0, out_shardings=(lanes.sharding, lanes.sharding)
    )
    return program.lower(state, np.int32(0), np.int32(0)).compile()


def available_bytes(lanes: Lanes) -> int:
    """Memory of the devices that the lanes live on, together; on a CPU that of the machine."""
    devices = lanes.sharding.mesh.devices.flat
    if devices[0].platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sum(device.memory_stats()["bytes_limit"] for device in devices)


def num_bytes(tree: Any) -> int:
    """Bytes of the arrays, or of abstract ones."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def is_finite(tree: Any) -> jax.Array:
    """Whether all floats of a lane are finite. Arrays [num_lanes, ...] -> [num_lanes] bool."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.isfinite(x).reshape(len(x), -1).all(axis=1) for x in leaves]), axis=0)
