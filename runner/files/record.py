"""The record of a run, config.json: what resumes the run, and what trains the same again. It outlives the code."""

import contextlib
import dataclasses
import importlib.metadata
import os
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
from runner.experiment import Experiment, Part, Rung
from runner.files.store import RECORD, read_json, write_json
from runner.options.fields import PROCESS, Options, check_options
from runner.options.sweep import count_settings, make_settings, read_axes

MAX_TRIALS = 2**22  # of a record, so that a sweep in it does not fill the memory
PACKAGES = ("jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "safetensors", "numpy")
SIMULATORS = ("gymnasium", "mujoco", "mujoco-mjx", "brax", "playground", "craftax", "navix", "xminigrid", "pgx")
# The fields that are read again, with their types.
FIELDS = {"script": str, "config": dict, "options": dict, "parts": list, "wandb_id": str}


@dataclass(frozen=True)
class Record:
    """The fields of config.json that are read again."""

    path: Path  # of config.json
    script: str  # path
    config: dict[str, Any]
    options: dict[str, Any]
    parts: list[Part]  # empty: not known yet, or the rungs have their own
    rungs: list[Rung]  # of a sweep that is halved, else empty
    wandb_id: str  # from which the ids of the wandb runs are made

    @property
    def algorithm(self) -> str:
        """Name of the script."""
        return Path(self.script).stem

    @property
    def is_sampled(self) -> bool:
        """Whether evaluations of the run sampled actions."""
        return self.options.get("eval_sampled") is True


# -- Writing -----------------------------------------------------------------------------------------------------------


def write_record(directory: Path, experiment: Experiment, rungs: list[Rung], wandb_id: str) -> None:
    """Write config.json; process 0 does it for all."""
    if jax.process_index() > 0:
        return
    script, options = Path(experiment.script).absolute(), dataclasses.asdict(experiment.options)
    content = {
        "algorithm": experiment.algorithm,
        "script": str(script),
        "config": dataclasses.asdict(experiment.config),
        "options": {name: x for name, x in options.items() if name not in PROCESS},
        "settings": {name: [float(str(x)) for x in values] for name, values in experiment.settings.items()},
        "parts": [] if experiment.is_halved else rungs[-1].parts,
        **({"rungs": [rung._asdict() for rung in rungs]} if experiment.is_halved else {}),
        "wandb_id": wandb_id,
        "command": shlex.join(["python", *sys.argv]),
        "git_commit": _git_commit(script.parent),
    }
    write_json(directory / RECORD, content | describe_machine(experiment.options.devices))


def describe_machine(num_devices: int) -> dict[str, Any]:
    """Devices and versions on which a speed depends; 0: all devices."""
    return {
        "device": f"{num_devices or jax.local_device_count()} x {jax.local_devices()[0].device_kind}",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that decide what a run computes; of simulators, those that are installed."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    for name in SIMULATORS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _git_commit(folder: Path) -> str | None:
    try:
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


# -- Reading -----------------------------------------------------------------------------------------------------------


def read_record(directory: Path) -> Record:
    """Read config.json. Raises ValueError if it is missing or damaged."""
    path = directory / RECORD
    name = os.path.basename(os.path.realpath(directory))
    if not name.isprintable():  # it is shown, as the name of a method in a comparison
        raise ValueError(f"{directory} has a name that cannot be printed; rename the folder")
    try:
        content = read_json(path)
        for name, kind in FIELDS.items():
            if not isinstance(content, dict) or not isinstance(content.get(name), kind):
                raise ValueError(f"it needs a field {name!r} of type {kind.__name__}")
        _check_options(content["options"])
        parts, rungs = _read_parts(content["parts"]), _read_rungs(content.get("rungs", []))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"no run in {directory}: it has no {RECORD}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    return Record(path, content["script"], content["config"], content["options"], parts, rungs, content["wandb_id"])


def _check_options(options: dict[str, Any]) -> None:
    """Raise ValueError if an option that this version has cannot have its value."""
    hints = typing.get_type_hints(Options, include_extras=True)
    for name in hints.keys() & options.keys():
        check_value(name, tuple(x) if isinstance(x := options[name], list) else x, hints[name])


def _read_parts(content: Any) -> list[Part]:
    for part in content:
        if not isinstance(part, list) or [type(edge) for edge in part] != [int, int]:
            raise ValueError("each of its 'parts' must be two integers")
    return [Part(*part) for part in content]


def _read_rungs(content: Any) -> list[Rung]:
    try:
        rungs = [Rung(tuple(x["settings"]), x["stop"], _read_parts(x["parts"])) for x in content]
        numbers = [number for rung in rungs for number in (rung.stop, *rung.settings)]
    except (TypeError, LookupError) as error:
        raise ValueError("each of its 'rungs' must have 'settings', 'stop' and 'parts'") from error
    if any(type(number) is not int for number in numbers):
        raise ValueError("'settings' and 'stop' of its 'rungs' must be integers")
    return rungs


def read_config(record: Record, config_class: type, to_resume: bool = False) -> Any:
    """The Config of a record. A field that it lacks has its default, and one that is unknown is left out: both is said.

    Args:
        to_resume: whether the run is to be trained on, which an unknown field forbids.

    Raises:
        ValueError: a field with a value that it cannot have, or to_resume with an unknown field.
    """
    hints = typing.get_type_hints(config_class, include_extras=True)
    unknown = sorted(record.config.keys() - hints.keys())
    if to_resume and unknown:
        raise ValueError(
            f"{record.path} has settings that this version of {record.algorithm}.py does not know, so it cannot "
            f"train on: {', '.join(unknown)}"
        )
    fields = _known_fields(record, record.config, dataclasses.asdict(config_class()))
    try:
        for name, value in fields.items():
            check_value(name, value, hints[name])
    except ValueError as error:
        raise ValueError(f"{record.path}: {error}") from error
    return config_class(**fields)


def read_options(record: Record) -> Options:
    """The options of a record, with defaults as `read_config` has them. Raises ValueError if one has a wrong value."""
    defaults = {name: x for name, x in dataclasses.asdict(Options()).items() if name not in PROCESS}
    options = Options(**_known_fields(record, record.options, defaults))
    try:
        check_options(dataclasses.replace(options, resume=str(record.path)))  # as --resume took them
    except ValueError as error:
        raise ValueError(f"{record.path}: {error}") from error
    return options


def _known_fields(record: Record, content: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields that `defaults` has, from `content` where it has them too."""
    if missing := {name: x for name, x in defaults.items() if name not in content and x != ""}:  # "": not used
        values = ", ".join(f"{name} = {x}" for name, x in missing.items())
        print(f"note: {record.path} is of another version and lacks {values} (the default)", file=sys.stderr)
    if unknown := sorted(content.keys() - defaults.keys()):
        print(f"note: {record.path} is of another version; not used: {', '.join(unknown)}", file=sys.stderr)
    known = defaults | {name: x for name, x in content.items() if name in defaults}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in known.items()}


def read_experiment(record: Record, script: Any) -> Experiment:
    """The experiment of a record; `script`: the module that trained it. Raises ValueError if they do not fit."""
    config, options = read_config(record, script.Config), read_options(record)
    axes = read_axes(options.sweep, options.sweep_samples, config)
    if (num_trials := count_settings(axes, options.sweep_samples) * options.num_seeds) > MAX_TRIALS:
        raise ValueError(
            f"{record.path} has {num_trials:,} trials (seeds x settings); at most {MAX_TRIALS:,} can be read"
        )
    settings = make_settings(axes, options.sweep_samples, options.seed)
    experiment = Experiment(record.script, script.make, config, options, settings)
    check_rungs(record, experiment)
    return experiment


def check_rungs(record: Record, experiment: Experiment) -> None:
    """Raise ValueError unless the recorded parts cover all trials, and a rung's parts all trials of its settings."""
    check_parts(record.parts, experiment.num_trials)
    for rung in record.rungs:
        if not set(rung.settings) <= set(range(experiment.num_settings)):
            raise ValueError(f"the recorded rungs are not those of {experiment.num_settings} settings")
        check_parts(rung.parts, len(rung.settings) * experiment.options.num_seeds)


def check_parts(parts: list[Part], num_trials: int) -> None:
    """Raise ValueError unless parts follow each other from trial 0 to the last. An empty list is not planned yet."""
    starts, stops = [part.start for part in parts], [part.stop for part in parts]
    is_whole = [*starts, num_trials] == [0, *stops] and all(part.start < part.stop for part in parts)
    if parts and not is_whole:
        raise ValueError(f"the recorded parts are not those of {num_trials} trials (seeds x settings)")
