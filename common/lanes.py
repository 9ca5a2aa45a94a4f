"""The compiled programs of a run.

A lane is one seed of one setting; lanes are the leading axis of every array and never talk to each other.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

CACHED_LANES = 8  # trained together on a core: more of them leave its caches, fewer make its products small
COPIED_BYTES = 8 * 2**20  # of a lane's State at most, for a group of lanes to be copied in and out once a segment


class Lanes(NamedTuple):
    """Where lanes live. The number of lanes is padded to fill all groups of all devices; the padding is never shown."""

    num_lanes: int
    num_padded: int
    num_groups: int  # on each device, trained one after another unless their State is large
    sharding: NamedSharding

    def on_devices(self, function: Callable, num_shared: int = 0) -> Callable:
        """Call a function on every device apart, with the lanes that live there: nothing waits for another device.

        Its last `num_shared` arguments are the same for all lanes.
        """

        def called(*args):
            lane, shared = PartitionSpec("lane"), PartitionSpec()
            specs = (lane,) * (len(args) - num_shared) + (shared,) * num_shared
            mesh = self.sharding.mesh
            return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=lane, check_vma=False)(*args)

        return called

    def each(self, function: Callable) -> Callable:
        """Map a function of one lane over all lanes."""
        return self.on_devices(jax.vmap(function))

    def trim(self, tree: Any) -> Any:
        """Bring arrays [num_padded, ...] to the host, without their padding."""

        def bring(x):
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(bring(jax.random.key_data(x)))
            return np.asarray(x)[: self.num_lanes]

        return jax.tree.map(bring, tree)

    def abstract(self, tree: Any) -> Any:
        """Shapes and dtypes of one lane -> those of all lanes, padding and place included."""

        def spread(x):
            return jax.ShapeDtypeStruct((self.num_padded, *x.shape), x.dtype, sharding=self.sharding)

        return jax.tree.map(spread, tree)

    def place(self, tree: Any) -> Any:
        """Pad arrays [num_lanes, ...] with copies of the last lane and spread them over the devices."""
        index = np.minimum(np.arange(self.num_padded), self.num_lanes - 1)
        padded = tree if self.num_lanes == self.num_padded else jax.tree.map(lambda x: x[index], tree)
        return jax.device_put(padded, self.sharding)


def make_lanes(num_lanes: int, num_devices: int) -> Lanes:
    """Spread lanes evenly over the first local devices, over no more of them than it takes."""
    on_device = -(-num_lanes // min(num_devices, jax.local_device_count()))
    devices = jax.local_devices()[: -(-num_lanes // on_device)]
    mesh = jax.make_mesh((len(devices),), ("lane",), axis_types=(AxisType.Auto,), devices=devices)
    num_groups = -(-on_device // CACHED_LANES) if devices[0].platform == "cpu" else 1
    num_padded = -(-on_device // num_groups) * num_groups * len(devices)
    return Lanes(num_lanes, num_padded, num_groups, NamedSharding(mesh, PartitionSpec("lane")))


def strong(tree: Any) -> Any:
    """The same arrays without weak types. An environment may begin with a weakly typed number; a checkpoint has none,
    and the two would be two programs."""
    return jax.tree.map(lambda x: x.astype(x.dtype) if getattr(x, "weak_type", False) else x, tree)


def compile_init(make: Callable, lanes: Lanes) -> Callable:
    """`(settings, keys) -> State` of all lanes, each made on the device where it will live.

    Args:
        make: the settings of one lane, name -> [], to its Algorithm.
    """

    def init(settings, key):
        return strong(make(settings).init(key))

    return jax.jit(lanes.each(init))


def compile_segment(make: Callable, lanes: Lanes, settings: Any, state: Any, capacity: int) -> Callable:
    """Compile `(settings, state, start, stop) -> (state, metrics [num_padded, capacity])`.

    It runs the iterations start to stop - 1.
    `stop` is an argument of the program, so one compilation serves segments of every length up to `capacity`. The
    state is donated. `settings` and `state` [num_padded, ...] may be abstract.
    """

    def segment(settings, state, start, stop):
        step = make(settings).step

        def iterate(iteration, carry):
            state, records = carry
            state, metrics = step(state, iteration)
            return state, jax.tree.map(lambda record, x: record.at[iteration - start].set(x), records, metrics)

        _, shapes = jax.eval_shape(step, state, start)
        records = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(start, stop, iterate, (state, records))

    num_groups = lanes.num_groups if num_bytes(state) <= lanes.num_padded * COPIED_BYTES else 1

    def groups(settings, state, start, stop):
        size = len(jax.tree.leaves(state)[0]) // num_groups

        def train(state, first):  # the states of the other groups stay where they are
            inputs = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, size), (settings, state))
            trained, records = jax.vmap(segment, in_axes=(0, 0, None, None))(*inputs, start, stop)
            put = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, first, axis=0)  # noqa: E731
            return jax.tree.map(put, state, trained), records

        state, records = jax.lax.scan(train, state, jnp.arange(num_groups, dtype=jnp.int32) * size)
        return state, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), records)

    program = jax.jit(lanes.on_devices(groups, num_shared=2), donate_argnums=1)
    return program.lower(settings, state, np.int32(0), np.int32(0)).compile()


def available_bytes(num_devices: int) -> int:
    """Memory of the first local devices together; on a CPU that of the machine."""
    devices = jax.local_devices()[:num_devices]
    if devices[0].platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sum(device.memory_stats()["bytes_limit"] for device in devices)


def device_bytes(program: jax.stages.Compiled) -> int:
    """Memory that a program takes on each device; what it donates is not counted twice."""
    memory = program.memory_analysis()
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes


def num_bytes(tree: Any) -> int:
    """Bytes of the arrays, or of abstract ones."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def is_finite(tree: Any) -> jax.Array:
    """Whether all floats of a lane are finite. Arrays [num_lanes, ...] -> [num_lanes] bool."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.isfinite(x).reshape(len(x), -1).all(axis=1) for x in leaves]), axis=0)
