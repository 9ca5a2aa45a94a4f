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
import numpy as np

from common.config import check_value
from common.runner import options as options_module
from common.runner.experiment import Experiment, Part
from common.runner.options import Options

PACKAGES = ("jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "safetensors", "numpy")
# The fields that are read again, with their types.
FIELDS = {"script": str, "config": dict, "options": dict, "settings": dict, "parts": list, "wandb_id": str}


@dataclass(frozen=True)
class Record:
    """What a record says, as far as it is read again."""

    script: str  # path
    config: dict[str, Any]
    options: Options
    settings: dict[str, np.ndarray]  # swept field -> float32 [num_settings]
    parts: list[Part]  # empty: not known yet
    wandb_id: str  # from which the ids of the wandb runs are made

    @property
    def algorithm(self) -> str:
        """Name of the script."""
        return Path(self.script).stem


def make_record(experiment: Experiment, parts: list[Part], wandb_id: str) -> dict[str, Any]:
    """The record of a run, as JSON takes it."""
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
    """Check what JSON gave. Raises ValueError if a field is missing, of another type or contradicts another one."""
    for name, kind in FIELDS.items():
        if not isinstance(content, dict) or not isinstance(content.get(name), kind):
            raise ValueError(f"it needs a field {name!r} of type {kind.__name__}")
    options = options_module.from_json(content["options"])
    try:
        settings = {name: np.array(values, np.float32) for name, values in content["settings"].items()}
        parts = [Part(int(start), int(stop)) for start, stop in content["parts"]]
    except (TypeError, ValueError):
        raise ValueError("its settings or parts are not numbers") from None
    shapes = {x.shape for x in settings.values()}
    if bool(settings) != bool(options.sweep) or len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        raise ValueError("its settings are not those of its sweep")
    num_lanes = options.num_seeds * (shapes.pop()[0] if shapes else 1)
    edges = [edge for part in parts for edge in part]
    if parts and (edges[0] != 0 or edges[-1] != num_lanes or edges[1:-1:2] != edges[2:-1:2] or edges != sorted(edges)):
        raise ValueError(f"its parts are not those of {num_lanes} lanes (seeds x settings)")
    return Record(content["script"], content["config"], options, settings, parts, content["wandb_id"])


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
    if not record.settings.keys() <= fields.keys():
        raise ValueError(f"it sweeps fields that the script does not have: {sorted(record.settings)}")
    return config_class(**fields)
