"""A run before it starts: everything that is asked for is checked here, before anything is compiled."""

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common import files, hosts
from common.checkpoint import part_folder, read_record
from common.cli import FIXED, Options, parse, preset
from common.lanes import available_bytes, num_bytes, strong
from common.sweep import count_settings, describe, make_settings
from common.tracking import Tracker, check_wandb


@dataclass(frozen=True)
class Setup:
    """A run that is ready to start: everything that has been asked for has been checked.

    Lane i is seed i % num_seeds of setting i // num_seeds.
    """

    script: str
    config: Any
    default: Any  # Config of the environment where no flag says otherwise
    options: Options
    make: Callable  # Config -> Algorithm
    directory: Path
    settings: dict[str, np.ndarray]  # of a sweep, float32 [num_settings]; else empty
    abstract_state: Any  # shapes and dtypes of the State of one lane
    tracker: Tracker

    @property
    def num_settings(self) -> int:
        """1 without a sweep."""
        return count_settings(self.settings)

    @property
    def num_lanes(self) -> int:
        """Of all processes and batches."""
        return self.num_settings * self.options.num_seeds

    @property
    def share(self) -> int:
        """Lanes of the process that has most."""
        return -(-self.num_lanes // jax.process_count())

    @property
    def num_devices(self) -> int:
        """Devices of this process that are used."""
        return self.options.devices or jax.local_device_count()

    @property
    def seeds(self) -> np.ndarray:
        """Of the lanes, uint32 [num_lanes]."""
        seeds = np.arange(self.options.seed, self.options.seed + self.options.num_seeds)
        return np.tile(seeds, self.num_settings).astype(np.uint32)

    @property
    def lane_settings(self) -> dict[str, np.ndarray]:
        """Of the lanes, float32 [num_lanes]."""
        return {name: np.repeat(values, self.options.num_seeds) for name, values in self.settings.items()}

    def make_lane(self, settings: dict[str, jax.Array]) -> Any:
        """The Algorithm of one lane; settings name -> []."""
        return self.make(dataclasses.replace(self.config, **settings))

    def setting(self, index: int) -> dict[str, float]:
        """One setting of the sweep, in the shortest numbers that are the same float32."""
        return {name: float(str(values[index])) for name, values in self.settings.items()}

    def name_lane(self, lane: int) -> str:
        """`seed 3`, in a sweep with its setting."""
        setting = describe(self.settings, lane // self.options.num_seeds)
        return f"seed {self.seeds[lane]}" + (f" at {setting}" if setting else "")

    def env_steps(self, iterations: int) -> np.ndarray:
        """Env steps of one lane at the end of each of the first iterations, [iterations]."""
        return np.array([self.config.env_steps(i + 1) for i in range(iterations)], np.int64)


@dataclass(frozen=True)
class Part:
    """Lanes start to stop - 1, which one process trains at once. What only resuming needs stands in their folder."""

    start: int
    stop: int
    directory: Path

    @property
    def num_lanes(self) -> int:
        """How many these are."""
        return self.stop - self.start


@dataclass(frozen=True)
class Progress:
    """How far a part is."""

    iteration: int
    state: Any  # of its lanes, with padding
    metrics: dict[str, np.ndarray]  # [num_lanes, iteration]; empty at the beginning


def prepare(script: str, config_class: type, presets: dict[str, Any], make: Callable) -> Setup:
    """Check everything before anything is compiled. Raises ValueError with a line that says what to do."""
    config, options = parse(script, config_class, presets)
    settings = make_settings(options.sweep, options.sweep_samples, options.seed, config)
    if options.coordinator:
        hosts.connect(options.coordinator, options.num_processes, options.process_id)
        if jax.process_index() > 0:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, one process speaks for all
    if options.devices > jax.local_device_count():
        raise ValueError(f"devices = {options.devices}, but there are only {jax.local_device_count()} here")
    num_lanes = count_settings(settings) * options.num_seeds
    if num_lanes < jax.process_count():
        raise ValueError(
            f"{jax.process_count()} processes need at least as many lanes (seeds x settings), not {num_lanes}"
        )
    abstract_state = jax.eval_shape(lambda key: strong(make(config).init(key)), jax.eval_shape(jax.random.key, 0))
    check_memory(options, num_lanes, num_bytes(abstract_state))
    check_wandb(options.wandb)
    directory = Path(hosts.agree("directory", lambda: str(make_directory(script, config.env, options))))
    default = preset(config_class, presets, config.env)
    tracker = Tracker(options, directory, config, settings)
    return Setup(script, config, default, options, make, directory, settings, abstract_state, tracker)


def check_memory(options: Options, num_lanes: int, lane_bytes: int) -> None:
    """Raises ValueError if the State of as many lanes as are asked for at once, or of a single one, does not fit."""
    available = available_bytes(options.devices or jax.local_device_count())
    is_auto = options.lanes_per_batch == "auto"
    least = 1 if is_auto else min(int(options.lanes_per_batch), -(-num_lanes // jax.process_count()))
    if least * lane_bytes > available:
        lanes, flag = (
            ("1 lane", "--num-envs (or --buffer-size)") if least == 1 else (f"{least} lanes", "--lanes-per-batch")
        )
        raise ValueError(
            f"the state of {lanes} takes {least * lane_bytes:,} bytes and the memory is {available:,}; lower {flag}"
        )


def write_record(setup: Setup, parts: list[Part]) -> None:
    """Write config.json; process 0 does it for all. No parts: they are not known yet."""
    if jax.process_index() == 0:
        lanes = {name: getattr(setup.options, name) for name in sorted(FIXED)}
        lanes["settings"] = {name: [float(str(x)) for x in values] for name, values in setup.settings.items()}
        lanes["parts"] = [(part.start, part.stop) for part in parts]
        files.write_record(setup.directory, setup.script, setup.config, lanes)


def recorded_parts(setup: Setup) -> list[tuple[int, int]]:
    """First lane and end of each part of a run that is resumed; empty where they are not known yet."""
    return [tuple(bound) for bound in read_record(setup.directory)["parts"]] if setup.options.resume else []


def make_parts(setup: Setup, lanes_per_batch: int) -> list[Part]:
    """All parts of a run, in order of their lanes, as many for each process.

    A run that is resumed has the parts with which it began.
    """
    bounds = recorded_parts(setup)
    if not bounds:
        num_parts = jax.process_count() * -(-setup.share // lanes_per_batch)
        batches = [batch for batch in np.array_split(np.arange(setup.num_lanes), num_parts) if len(batch)]
        bounds = [(int(batch[0]), int(batch[-1]) + 1) for batch in batches]
    return [Part(*bound, part_folder(setup.directory, bounds, i)) for i, bound in enumerate(bounds)]


def free_name(parent: Path) -> str:
    """Date and time, with a number behind it if a run has started in this very second."""
    now = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    names = (f"{now}-{i}" if i else now for i in itertools.count())
    return next(name for name in names if not (parent / name).exists())


def make_directory(script: str, env: str, options: Options) -> Path:
    """The folder of the run, made and tried for writing. Raises ValueError if it holds a run or cannot be written."""
    parent = Path(options.out) / Path(script).stem / env
    directory = Path(options.resume) if options.resume else parent / (options.name or free_name(parent))
    if not options.resume and (directory / "config.json").exists():
        raise ValueError(f"{directory} holds a run; choose another --name, or continue it with --resume {directory}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files.write_atomically(directory / "writable", b"")
        (directory / "writable").unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {directory}: {error.strerror}; choose another --out") from error
    return directory
