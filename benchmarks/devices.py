"""What an iteration of one PPO lane takes on 1, 2, 4, ... devices, and what its devices exchange.

    JAX_NUM_CPU_DEVICES=4 python benchmarks/devices.py
    JAX_NUM_CPU_DEVICES=4 python benchmarks/devices.py --settings '{"num_envs": 4096}'  # other fields of its Config

Prints a table: seconds, the median of `--rounds` iterations; floating-point operations in the text of the program, in
which the body of a loop counts once; collectives that a device runs, and their share of its time, waiting for the
others included. Counts and share come from the profile of an iteration on CPUs; on GPUs it names them otherwise.
"""

import argparse
import glob
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np
from jax.profiler import ProfileData

from ppo import Config, make
from runner.devices.lanes import compile_init, compile_segment, make_placement

SETTINGS = {"env": "CartPole-v1", "num_envs": 1024, "num_steps": 32, "num_epochs": 4, "num_minibatches": 4}
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
COLUMNS = ("devices", "seconds", "operations", "all-gathers", "all-reduces", "others", "share")


def collectives(folder: str) -> list[tuple[str, float]]:
    """Name and seconds of each collective in the profile that was written to a folder."""
    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    lines = [line for plane in ProfileData.from_file(path).planes for line in plane.lines]
    events = [(re.sub(r"[.\d]+$", "", event.name), event.duration_ns / 1e9) for line in lines for event in line.events]
    return [(name, seconds) for name, seconds in events if name in COLLECTIVES]


def measure(config: Any, num_devices: int, rounds: int) -> tuple[float, float, list[float], float]:
    """Seconds, operations, the collectives of a device by their kinds, and their share of its time."""
    algorithm, lane = make(config), make_placement(1, num_devices, num_devices, config.num_envs)
    state = compile_init(lambda _: algorithm, lane, {})({}, lane.place(jax.random.key(0)[None]))
    segment = compile_segment(lambda _: algorithm, lane, {}, state, capacity=1)

    def iterate(state, iteration):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(segment({}, state, np.int32(iteration), np.int32(iteration + 1)))
        return state, time.perf_counter() - started

    seconds = []
    for iteration in range(rounds + 1):
        state, elapsed = iterate(state, iteration)
        seconds.append(elapsed)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            state, elapsed = iterate(state, rounds + 1)
        found = collectives(folder)
    names = [name for name, _ in found]
    counts = [names.count(name) / num_devices for name in COLLECTIVES]
    share = sum(seconds for _, seconds in found) / (num_devices * elapsed)
    return statistics.median(seconds[1:]), segment.cost_analysis()["flops"], counts, share


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="iterations of which the median is taken")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, fields of the Config")
    arguments = parser.parse_args()
    fields = {name: tuple(x) if isinstance(x, list) else x for name, x in (SETTINGS | arguments.settings).items()}
    steps = fields["num_envs"] * fields["num_steps"]
    config = Config(**{**fields, "total_timesteps": (arguments.rounds + 2) * steps})
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    num_devices = 1
    while num_devices <= jax.local_device_count():
        seconds, operations, (gathers, reduces, *others), share = measure(config, num_devices, arguments.rounds)
        row = num_devices, f"{seconds:.3f}", f"{operations / 1e6:.0f}M", f"{gathers:.0f}", f"{reduces:.0f}"
        print("| " + " | ".join(map(str, (*row, f"{sum(others):.0f}", f"{share:.0%}"))) + " |", flush=True)
        num_devices *= 2


if __name__ == "__main__":
    main()
