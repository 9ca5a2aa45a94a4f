"""Kernels that an iteration of a script launches on a GPU, and its memory there, without a GPU.

    python -m venv cuda && cuda/bin/pip install -r requirements.txt "jax[cuda13]"  # 5 GB
    cuda/bin/python benchmarks/kernels.py --out benchmarks/results/kernels.csv     # the table of README.md
    cuda/bin/python benchmarks/kernels.py ppo --list                               # every kernel, loop by loop
    cuda/bin/python benchmarks/kernels.py ppo --settings '{"env": "Pendulum-v1"}'  # other fields of its Config
    cuda/bin/python benchmarks/kernels.py ppo --env brax/ant                       # its preset; --preset: a named one

A single seed on a GPU is bound by launches, about a microsecond each, so this number says how fast it is. XLA compiles
for the GPU of TARGET, which need not be there. Autotuning needs one and is off: it chooses other kernels on the device,
but hardly another number of them. A loop's body counts once for each of its rounds, one of unknown length once.
Memory is what the compiled program says of itself: the state of the seeds, which it overwrites, and what it allocates
while it runs.
"""

import argparse
import dataclasses
import importlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # the check asks the driver, which is not there
os.environ["JAX_PLATFORMS"] = "cpu,cuda"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from speed import CASES, PENDULUM, PPO
from tables import markdown  # with the folders of the scripts in the path

import common  # noqa: F401  # before gymnax starts JAX
from common.presets import find_preset
from runner.devices.placement import map_trials
from runner.files.store import write_table

jax.default_backend = lambda: "gpu"  # the scripts ask, to unroll their loops
jax.config.update("jax_default_matmul_precision", "float32")  # as the scripts run

TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# Bytes of the device's memory that JAX takes when it starts (XLA_PYTHON_CLIENT_MEM_FRACTION, by default 0.75).
AVAILABLE = 0.75 * int(re.search(r"device_memory_size: (\d+)", TARGET).group(1))
# Operations of a compiled program that launch a kernel (or a copy, which costs as much).
KERNELS = {"fusion", "custom-call", "copy", "sort", "dynamic-update-slice", "dynamic-slice", "dot", "reduce", "gather"}
KERNELS |= {"scatter", "concatenate", "transpose", "convert", "add", "select", "broadcast", "iota"}
# Those of speed.py.
OURS = {case.name: case.contenders[0].settings for case in CASES}
SETTINGS = {"ppo": PPO, "dqn": OURS["dqn-10k"], "categorical_dqn": OURS["dqn-10k"]}
SETTINGS |= {"sac": OURS["sac-1"], "td3": OURS["td3-1"], "pqn": PPO, "reppo": PPO | {"env": PENDULUM}}


def read_computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation of a compiled program, by its name, and the name of its entry."""
    bodies, lines, entry = {}, [], ""
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head:
            lines = bodies[head.group(2)] = []
            entry = head.group(2) if head.group(1) else entry
        elif line.startswith("  "):
            lines.append(line)
    return bodies, entry


def read_operation(line: str) -> str:
    """The operation of a line, such as `fusion`."""
    found = re.search(r"\s([a-z][\w\-]*)\(", line.partition("=")[2])
    return found.group(1) if found else ""


def count(
    bodies: dict[str, list[str]], name: str, rounds: int = 1, depth: int = 0
) -> Iterator[tuple[int, str, list[str], int]]:
    """Depth, name, lines of the kernels and rounds of a computation, and of the loops and branches inside of it."""
    yield depth, name, [line for line in bodies[name] if read_operation(line).removesuffix("-start") in KERNELS], rounds
    for line in bodies[name]:
        operation, rest = read_operation(line), line.partition("=")[2]
        if operation == "while":
            length = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            body = re.search(r"body=%?([\w.\-]+)", line).group(1)
            yield from count(bodies, body, rounds * (int(length.group(1)) if length else 1), depth + 1)
        elif operation in ("call", "conditional"):
            branches = [branch for branch in re.findall(r"%([\w.\-]+)", rest) if branch in bodies]
            for branch in branches:
                yield from count(bodies, branch, rounds, depth + 1)


def read_config(script: str, env: str, preset: str, settings: dict) -> Any:
    """The Config of a preset, or of SETTINGS where no environment is named, with some fields changed.

    Raises:
        ValueError: the environment has no such preset.
    """
    config_class = importlib.import_module(script).Config
    config = config_class(**_fields(SETTINGS.get(script, {})))
    if env:
        config = find_preset(config_class, env, preset)
    if not config:
        raise ValueError(f"presets/{script}.toml has no preset for {env}")
    return dataclasses.replace(config, **_fields(settings))


def _fields(settings: dict) -> dict:
    return {name: tuple(x) if isinstance(x, list) else x for name, x in settings.items()}


def find_gpu() -> NamedSharding:
    """A placement on the GPU of TARGET."""
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="gpu", topology="1x1x1", target_config=TARGET
    )
    return NamedSharding(Mesh(np.array(topology.devices[:1]), ("trial",)), PartitionSpec())


def compile_iteration(script: str, seeds: int, config: Any) -> jax.stages.Compiled:
    """The program of one iteration, compiled for TARGET."""
    algorithm = importlib.import_module(script).make(config)
    sharding = find_gpu()

    def place(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((seeds,), jnp.uint32))
    state = jax.tree.map(place, jax.eval_shape(jax.vmap(algorithm.init), keys))

    def step(state, iteration):
        return map_trials(lambda trial: algorithm.step(trial, iteration), state)

    return jax.jit(step, donate_argnums=0).lower(state, place(jax.ShapeDtypeStruct((), jnp.int32))).compile()


def count_bytes(program: jax.stages.Compiled) -> int:
    """Device memory of a program: arguments, temporaries, and results that do not overwrite an argument."""
    memory = program.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes + results


def describe_bytes(num_bytes: float) -> str:
    """GiB, and what there is if that is less."""
    more = f", more than the {AVAILABLE / 2**30:.1f} that JAX takes" if num_bytes > AVAILABLE else ""
    return f"{num_bytes / 2**30:.3g}{more}"


def print_kernels(depth: int, name: str, kernels: list[str], rounds: int) -> None:
    """Print one computation and its kernels: name, shape and the operation of the script that it comes from."""
    print(f"{'  ' * depth}{name}: {len(kernels)} x {rounds}")
    for line in kernels:
        head, _, rest = line.partition("=")
        source = re.search(r'op_name="([^"]*)"', line)
        print(f"{'  ' * depth}  {head.strip():40} {rest.split('(')[0]:50.50} {source.group(1)[-90:] if source else ''}")


def main() -> None:
    """Read the command line, compile, count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*", default=list(SETTINGS), help="such as ppo; by default those of README.md")
    parser.add_argument("--env", default="", help="environment whose preset is compiled; without: SETTINGS")
    parser.add_argument("--preset", default="", help="name of its preset, such as small")
    parser.add_argument("--seeds", type=int, default=1, help="seeds that the program trains")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, fields of the Config")
    parser.add_argument("--list", action="store_true", help="also print each kernel")
    parser.add_argument("--out", type=Path, help="also write the table to this file, as CSV")
    arguments = parser.parse_args()
    try:
        configs = [read_config(x, arguments.env, arguments.preset, arguments.settings) for x in arguments.scripts]
    except ValueError as error:
        parser.error(str(error))
    columns = ("script", "environment", "seeds", "env steps an iteration", "kernels an iteration")
    columns, rows = (*columns, "kernels an env step", "memory, GiB", "compile, s"), []
    print("\n".join(markdown(columns, [])))
    for script, config in zip(arguments.scripts, configs, strict=True):
        started, steps = time.perf_counter(), config.env_steps(1) - config.env_steps(0)
        program = compile_iteration(script, arguments.seeds, config)
        seconds = time.perf_counter() - started
        computations = list(count(*read_computations(program.as_text())))
        if arguments.list:
            for computation in computations:
                print_kernels(*computation)
        total = sum(len(kernels) * rounds for _, _, kernels, rounds in computations)
        cells = [f"{steps:,}", f"{total:,}", f"{total / steps:.1f}", describe_bytes(count_bytes(program))]
        rows.append([script, config.env, f"{arguments.seeds}", *cells, f"{seconds:.0f}"])
        print(markdown(columns, rows)[-1], flush=True)
    if arguments.out:
        write_table(arguments.out, columns, rows)


if __name__ == "__main__":
    main()
