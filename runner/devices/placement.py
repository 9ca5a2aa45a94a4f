"""Placement of trials on devices, and the compiled programs that train them.

A trial is one seed of one setting. Trials are the first axis of every array between programs, and never exchange
anything. With --devices-per-trial N each lives on N devices, which split its environments and its minibatches: there
XLA divides the program of the trial, and puts in what its devices have to exchange.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from common.random import is_key
from runner.devices.memory import num_bytes

CACHED_TRIALS = 8  # trials trained together on a CPU core; more overflow the caches, fewer are slower
# LLVM's level; 3, XLA's default, compiles up to twice as long for programs that are as fast (benchmarks/NOTES.md).
CPU_COMPILER = {"xla_backend_optimization_level": 2}
COPIED_BYTES = 8 * 2**20  # largest State of a trial that is copied in and out of a group, once per segment
# Fields of State that every device of a trial holds whole: each reads all of it. The others belong to the environments.
REPLICATED_FIELDS = ("params", "target_params", "opt_state", "buffer", "obs_statistics")


class Placement(NamedTuple):
    """How trials are spread over devices. They are padded to fill all groups of all devices; results are trimmed."""

    num_padded: int
    num_groups: int  # per device, evaluated one after another, and trained so unless their State is large
    sharding: NamedSharding  # over the mesh axis "trial"
    num_envs: int  # of a trial, split over the mesh axis "env"; 0: a trial has one device, and the mesh no such axis

    def on_devices(self, function: Callable, num_shared: int = 0) -> Callable:
        """Call a function on each device with that device's trials; only devices of one trial wait for each other.

        Its last `num_shared` arguments are the same for all trials.
        """

        def called(*args):
            trial, shared = PartitionSpec("trial"), PartitionSpec()
            specs = (trial,) * (len(args) - num_shared) + (shared,) * num_shared
            mesh = self.sharding.mesh
            axes = {"in_specs": specs, "out_specs": trial, "axis_names": {"trial"}}
            return jax.shard_map(function, mesh=mesh, check_vma=False, **axes)(*args)

        return called

    def each(self, function: Callable, num_shared: int = 0, in_groups: bool = False) -> Callable:
        """Map a function of one trial over all trials; its last `num_shared` arguments are the same for all.

        With `in_groups` a device maps one group after another: a loop in the function then ends when it has ended for
        the trials of the group, not for all trials.
        """

        def mapped(*args):
            trials, shared = args[: len(args) - num_shared], args[len(args) - num_shared :]
            if not in_groups or self.num_groups == 1:
                return map_trials(lambda trial: function(*trial, *shared), trials)
            size = len(jax.tree.leaves(trials)[0]) // self.num_groups
            return jax.lax.map(lambda trial: function(*trial, *shared), trials, batch_size=size)

        return self.on_devices(mapped, num_shared)

    def shardings(self, tree: Any) -> Any:
        """Placement of the arrays [num_padded, ...] of a State, or of anything without environments."""

        def choose(path, x):
            field = jax.tree_util.keystr(path[:1], simple=True)
            is_split = self.num_envs and field not in REPLICATED_FIELDS and x.shape[1:2] == (self.num_envs,)
            return self.sharding.update(spec=PartitionSpec("trial", "env")) if is_split else self.sharding

        return jax.tree.map_with_path(choose, tree)

    def abstract(self, tree: Any) -> Any:
        """Shapes and dtypes of one trial -> of all trials, with padding and sharding."""
        padded = jax.tree.map(lambda x: jax.ShapeDtypeStruct((self.num_padded, *x.shape), x.dtype), tree)
        return jax.tree.map(lambda x, sharding: x.update(sharding=sharding), padded, self.shardings(padded))

    def place(self, tree: Any) -> Any:
        """Pad arrays [num_trials, ...] with copies of the last trial and spread them over the devices."""

        def pad(x):
            return x if len(x) == self.num_padded else x[np.minimum(np.arange(self.num_padded), len(x) - 1)]

        return jax.device_put(jax.tree.map(pad, tree), self.shardings(tree))


def map_trials(function: Callable, trials: Any) -> Any:
    """`jax.vmap` of a function of one trial. A single trial loses its axis: on a CPU XLA's programs with LayerNorm are
    twice as fast without it (benchmarks/NOTES.md)."""
    if len(jax.tree.leaves(trials)[0]) > 1:
        return jax.vmap(function)(trials)
    results = function(jax.tree.map(lambda x: x[0], trials))
    return jax.tree.map(lambda x: jnp.expand_dims(x, 0), results)  # x may be a Python number


def to_host(tree: Any, num_trials: int) -> Any:
    """Copy arrays [num_padded, ...] to the host, without their padding: [num_trials, ...]."""

    def copy(x):
        if is_key(x):
            return jax.random.wrap_key_data(copy(jax.random.key_data(x)))
        return np.asarray(x)[:num_trials]

    return jax.tree.map(copy, tree)


def make_placement(num_trials: int, num_devices: int, devices_per_trial: int = 1, num_envs: int = 0) -> Placement:
    """Spread trials evenly over the first local devices, and over no more devices than needed.

    Args:
        devices_per_trial: a divisor of num_devices and of num_envs, the environments of a trial.
    """
    num_places = min(num_devices, jax.local_device_count()) // devices_per_trial
    on_place = -(-num_trials // num_places)
    num_places = -(-num_trials // on_place)
    devices = jax.local_devices()[: num_places * devices_per_trial]
    is_shared = devices_per_trial > 1
    shape, axes = ((num_places, devices_per_trial), ("trial", "env")) if is_shared else ((num_places,), ("trial",))
    mesh = jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(axes), devices=devices)
    num_groups = -(-on_place // CACHED_TRIALS) if devices[0].platform == "cpu" and not is_shared else 1
    num_padded = -(-on_place // num_groups) * num_groups * num_places
    sharding = NamedSharding(mesh, PartitionSpec("trial"))
    return Placement(num_padded, num_groups, sharding, num_envs if is_shared else 0)


def strip_weak_types(tree: Any) -> Any:
    """Remove weak types, which some environments start with: a checkpoint has none, so the program would be compiled
    twice."""
    return jax.tree.map(lambda x: x.astype(x.dtype) if getattr(x, "weak_type", False) else x, tree)


def compile_init(make: Callable, placement: Placement, settings: Any) -> Callable:
    """Compile `(settings, keys) -> State` of all trials, each made on the device where it will live.

    Args:
        make: the settings of one trial, name -> [], to its Algorithm.
        settings: [num_padded] each, may be abstract.
    """

    def init(settings, key):
        return strip_weak_types(make(settings).init(key))

    key = placement.abstract(jax.eval_shape(jax.random.key, 0))
    function = placement.each(init)
    shardings = placement.shardings(jax.eval_shape(function, settings, key))
    return compile_program(jax.jit(function, out_shardings=shardings), settings, key)


def compile_program(jitted: Callable, *inputs: Any) -> jax.stages.Compiled:
    """Compile a jitted function for arrays, which may be abstract."""
    is_chosen = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    is_default = jax.default_backend() != "cpu" or is_chosen
    return jitted.lower(*inputs).compile(compiler_options={} if is_default else CPU_COMPILER)


def compile_segment(make: Callable, placement: Placement, settings: Any, state: Any, capacity: int) -> Callable:
    """Compile `make_segment` for settings and state [num_padded, ...], which may be abstract."""
    segment = make_segment(make, placement, state, capacity)
    return compile_program(segment, settings, state, np.int32(0), np.int32(0))


def make_segment(make: Callable, placement: Placement, state: Any, capacity: int) -> Callable:
    """Make `(settings, state, start, stop) -> (state, metrics [num_padded, capacity])`, jitted.

    It runs iterations start to stop - 1. `stop` is an argument, so one compilation serves segments of every length up
    to `capacity`. The state is donated.

    Args:
        make: the settings of one trial, name -> [], to its Algorithm.
        state: of all trials, may be abstract.
    """

    def segment(settings, state, start, stop):
        step = jax.jit(make(settings).step, inline=True)  # traced once for both calls

        def iterate(iteration, carry):
            state, records = carry
            state, metrics = step(state, iteration)
            return state, jax.tree.map(lambda record, x: record.at[iteration - start].set(x), records, metrics)

        _, shapes = jax.eval_shape(step, state, start)
        records = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(start, stop, iterate, (state, records))

    num_groups = placement.num_groups if num_bytes(state) <= placement.num_padded * COPIED_BYTES else 1

    def groups(settings, state, start, stop):
        size = len(jax.tree.leaves(state)[0]) // num_groups

        def train(state, first):  # the states of the other groups stay where they are
            inputs = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, size), (settings, state))
            trained, records = map_trials(lambda trial: segment(*trial, start, stop), inputs)
            put = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, first, axis=0)
            return jax.tree.map(put, state, trained), records

        state, records = jax.lax.scan(train, state, jnp.arange(num_groups, dtype=jnp.int32) * size)
        return state, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), records)

    # The shardings are named since XLA would choose others for arrays without elements.
    shardings = placement.shardings(state), placement.sharding
    return jax.jit(placement.on_devices(groups, num_shared=2), donate_argnums=1, out_shardings=shardings)


def is_finite(tree: Any) -> jax.Array:
    """Whether all floats of a trial are finite. Arrays [num_trials, ...] -> [num_trials] bool."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.isfinite(x).reshape(len(x), -1).all(axis=1) for x in leaves]), axis=0)
