"""The plan of a run: which programs are compiled, and how many lanes they take at once."""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from common import hosts
from common.environment import make_env
from common.evaluation import evaluate
from common.lanes import (
    Lanes,
    available_bytes,
    compile_init,
    compile_segment,
    device_bytes,
    is_finite,
    make_lanes,
    num_bytes,
)
from common.report import format_bytes, print_header
from common.setup import Part, Setup, make_parts, recorded_parts, write_record

MOST_RECORDS = 256  # iterations in one segment at most


class Programs:
    """What runs on the devices: the same programs for every part, compiled when they are first needed."""

    def __init__(self, setup: Setup, num_lanes: int):
        total, num_segments = setup.config.num_iterations, setup.options.num_segments
        self.setup = setup
        self.lanes = make_lanes(num_lanes, setup.num_devices)
        self.capacity = -(-total // num_segments) if num_segments else min(total, MOST_RECORDS)  # iterations in a call
        self.init = compile_init(setup.make_lane, self.lanes)  # (settings, keys) -> State
        self.evaluate_lanes = jax.jit(self.lanes.each(self.evaluate_lane))

    def inputs(self, part: Part) -> tuple[Lanes, dict[str, jax.Array], jax.Array]:
        """The lanes of a part, and their settings and keys where they belong."""
        lanes, setup = self.lanes._replace(num_lanes=part.num_lanes), self.setup
        settings = {name: x[part.start : part.stop] for name, x in setup.lane_settings.items()}
        return lanes, *lanes.place((settings, jax.vmap(jax.random.key)(setup.seeds[part.start : part.stop])))

    @cached_property
    def segment(self) -> Callable:
        """`(settings, State, start, stop) -> (State, metrics)`."""
        started = time.perf_counter()
        inputs = {name: jax.ShapeDtypeStruct((), x.dtype) for name, x in self.setup.settings.items()}
        settings, state = self.lanes.abstract((inputs, self.setup.abstract_state))
        segment = compile_segment(self.setup.make_lane, self.lanes, settings, state, self.capacity)
        elapsed, used = time.perf_counter() - started, format_bytes(device_bytes(segment))
        print(f"compiled in {elapsed:.1f} s, {used} on each device", flush=True)
        return segment

    @property
    def share_of_memory(self) -> float:
        """What the program needs of the memory of its devices."""
        num_devices = self.lanes.sharding.num_devices
        return device_bytes(self.segment) * num_devices / available_bytes(num_devices)

    def evaluate_lane(self, settings: dict[str, jax.Array], state: Any, key: jax.Array) -> dict[str, jax.Array]:
        """Greedy return and length of whole episodes, [eval_episodes]; apart from all that training draws."""
        setup = self.setup
        act, key = setup.make_lane(settings).act, jax.random.fold_in(key, 2**32 - 1)
        return evaluate(make_env(setup.config.env), lambda obs: act(state, obs), key, setup.options.eval_episodes)

    def evaluate(self, part: Part, state: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Scores of a part, each [num_lanes], none without evaluation; and whether all parameters are finite."""
        lanes, settings, keys = self.inputs(part)
        episodes = self.evaluate_lanes(settings, state, keys) if self.setup.options.eval_episodes else {}
        scores = {f"eval_{name}": lanes.trim(x).mean(axis=1) for name, x in episodes.items()}
        return scores, lanes.trim(jax.jit(is_finite)(state.params))


def divide(setup: Setup, lanes_per_batch: int) -> tuple[Programs, list[Part]]:
    """Parts of so many lanes at most, and programs for them. A run that is resumed keeps the parts it began with."""
    parts = make_parts(setup, lanes_per_batch)
    return Programs(setup, max(part.num_lanes for part in parts)), parts


def plan(setup: Setup) -> tuple[Programs, list[Part]]:
    """Say what will happen, and divide the lanes into parts that fit the memory."""
    lane_bytes, memory = num_bytes(setup.abstract_state), available_bytes(setup.num_devices)
    room = f"at most {memory // lane_bytes:,} fit in {format_bytes(memory)} of memory"
    print_header(setup, f"{format_bytes(lane_bytes)} of state a lane, {room}")
    if setup.options.lanes_per_batch != "auto":
        return divide(setup, min(int(setup.options.lanes_per_batch), setup.share))
    programs, parts = divide(setup, min(memory // lane_bytes, setup.share))
    if recorded_parts(setup):
        return programs, parts
    write_record(setup, [])  # compiling takes its time, and a run that is killed meanwhile can be resumed too
    while (needed := programs.share_of_memory) > 1 and programs.lanes.num_lanes > 1:
        programs, parts = divide(setup, max(1, int(programs.lanes.num_lanes / needed)))

    def decide():
        if needed > 1:
            raise ValueError(f"one lane takes {needed:.2f} times the memory; lower --num-envs (or --buffer-size)")
        return str(programs.lanes.num_lanes)

    num_lanes = int(hosts.agree("lanes_per_batch", decide))
    return (programs, parts) if num_lanes == programs.lanes.num_lanes else divide(setup, num_lanes)
