"""The record of a run, which config.json holds: what is needed to resume the run, and to run the same again."""

import dataclasses
import importlib.metadata
import platform
import shlex
import subprocess
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from common.config import check_value
from runner.ask import options as options_module
from runner.ask.options import Options
from runner.ask.sweep import make_settings, read_axes
from runner.experiment import Experiment, Part

PACKAGES = ("jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "safetensors", "numpy")
# The fields that are read again, with their types.
FIELDS = {"script": str, "config": dict, "options": dict, "parts": list, "wandb_id": str}


@dataclass(frozen=True)
class Record:
    """The fields of config.json that --resume and `load` read."""

    script: str  # path
    config: dict[str, Any]
    options: Options
    parts: list[Part]  # empty: not known yet
    wandb_id: str  # from which the ids of the wandb runs are made

    @property
    def algorithm(self) -> str:
        """Name of the script."""
        return Path(self.script).stem


def make_record(experiment: Experiment, parts: list[Part], wandb_id: str) -> dict[str, Any]:
    """The record of a run, ready for JSON."""
    script = Path(experiment.script).absolute()
    return {
        "algorithm": experiment.algorithm,
        "script": str(script),
        "config": dataclasses.asdict(experiment.config),
        "options": options_module.to_json(experiment.options),
        "settings": {name: [float(str(x)) for x in values] for name, values in experiment.settings.items()},
        "parts": parts,
        "wandb_id": wandb_id,
        "command": shlex.join(["python", *sys.argv]),
        "git_commit": _git_commit(script.parent),
        **describe_machine(),
    }


def describe_machine() -> dict[str, Any]:
    """Devices and versions on which a speed depends."""
    return {
        "device": f"{jax.local_device_count()} x {jax.local_devices()[0].device_kind}",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _git_commit(folder: Path) -> str | None:
    try:
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def parse_record(content: Any) -> Record:
    """Check parsed JSON. Raises ValueError if a field is missing, of another type or contradicts another one."""
    for name, kind in FIELDS.items():
        if not isinstance(content, dict) or not isinstance(content.get(name), kind):
            raise ValueError(f"it needs a field {name!r} of type {kind.__name__}")
    options = options_module.from_json(content["options"])
    try:
        parts = [Part(int(start), int(stop)) for start, stop in content["parts"]]
    except (TypeError, ValueError):
        raise ValueError("its parts are not pairs of numbers") from None
    return Record(content["script"], content["config"], options, parts, content["wandb_id"])


def read_experiment(record: Record, script: Any) -> Experiment:
    """The experiment of a record; `script`: the module that trained it. Raises ValueError if they do not fit."""
    config, options = read_config(script.Config, record), record.options
    settings = make_settings(
        read_axes(options.sweep, options.sweep_samples, config), options.sweep_samples, options.seed
    )
    experiment = Experiment(record.script, script.make, config, options, settings)
    check_parts(record.parts, experiment.num_lanes)
    return experiment


def check_parts(parts: list[Part], num_lanes: int) -> None:
    """Raise ValueError unless parts follow each other from lane 0 to the last one. An empty list is not planned yet."""
    edges = [edge for part in parts for edge in part]
    if parts and (edges[0] != 0 or edges[-1] != num_lanes or edges[1:-1:2] != edges[2:-1:2] or edges != sorted(edges)):
        raise ValueError(f"the recorded parts are not those of {num_lanes} lanes (seeds x settings)")


def read_config(config_class: type, record: Record) -> Any:
    """The Config of a record.

    Raises:
        ValueError: its fields are not those of the script, or one has a value that it cannot have.
    """
    hints = typing.get_type_hints(config_class, include_extras=True)
    different = sorted(record.config.keys() ^ hints.keys())
    if different:
        raise ValueError(f"the run was made with another version of the script; fields that differ: {different}")
    fields = {name: tuple(x) if isinstance(x, list) else x for name, x in record.config.items()}
    for name, value in fields.items():
        check_value(name, value, hints[name])
    return config_class(**fields)
