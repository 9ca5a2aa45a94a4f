"""A run before it starts: everything that is asked for is checked here, before anything is compiled."""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common.cli import Options, parse
from common.files import write_atomically
from common.lanes import Lanes, available_bytes, make_lanes, num_bytes
from common.tracking import Tracker, check_wandb


@dataclass(frozen=True)
class Setup:
    """A run that is ready to start: everything that has been asked for has been checked."""

    script: str
    config: Any
    options: Options
    algorithm: Any
    directory: Path
    lanes: Lanes
    keys: jax.Array  # [num_lanes]
    abstract_state: Any  # shapes and dtypes of the State of all lanes, without padding
    tracker: Tracker

    @property
    def seeds(self) -> list[int]:
        """Of the lanes, in order."""
        return list(range(self.options.seed, self.options.seed + self.options.num_seeds))

    def env_steps(self, iterations: int) -> np.ndarray:
        """Env steps of one seed at the end of each of the first iterations, [iterations]."""
        return np.array([self.config.env_steps(i + 1) for i in range(iterations)], np.int64)


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    iteration: int
    state: Any  # of all lanes, with padding
    metrics: dict[str, np.ndarray]  # [num_seeds, iteration]; empty at the beginning


def prepare(script: str, config_class: type, presets: dict[str, dict[str, Any]], make: Callable) -> Setup:
    """Check everything before anything is compiled. Raises ValueError with a line that says what to do."""
    config, options = parse(script, config_class, presets)
    algorithm = make(config)
    seeds = list(range(options.seed, options.seed + options.num_seeds))
    keys = jax.vmap(jax.random.key)(np.array(seeds, np.uint32))
    abstract_state = jax.eval_shape(jax.vmap(algorithm.init), keys)
    lanes = make_lanes(options.num_seeds)
    check_memory(lanes, abstract_state)
    check_wandb(options.wandb)
    directory = make_directory(script, config.env, options)
    tracker = Tracker(options, directory, dataclasses.asdict(config), seeds)
    return Setup(script, config, options, algorithm, directory, lanes, keys, abstract_state, tracker)


def check_memory(lanes: Lanes, abstract_state: Any) -> None:
    """Raises ValueError if the State alone does not fit."""
    needed, available = num_bytes(abstract_state), available_bytes(lanes)
    if needed > available:
        raise ValueError(
            f"the state of {lanes.num_lanes} seeds takes {needed:,} bytes and the memory is {available:,}; "
            "lower --num-seeds (or --buffer-size)"
        )


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
        write_atomically(directory / "writable", b"")
        (directory / "writable").unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {directory}: {error.strerror}; choose another --out") from error
    return directory
