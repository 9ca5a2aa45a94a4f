"""The files that a run leaves in its folder: config.json, metrics.npz, curve.csv, summary.json."""

import csv
import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common.statistics import Curve

PACKAGES = ("jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "orbax-checkpoint", "numpy")


def write_atomically(path: Path, data: bytes) -> None:
    """Write aside and rename: after a kill `path` is the old file or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON; NaN, which JSON does not have, becomes null."""
    write_atomically(path, (json.dumps(_without_nan(content), indent=2) + "\n").encode())


def _without_nan(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _without_nan(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_without_nan(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def write_record(directory: Path, script: str, config: Any, lanes: dict[str, Any]) -> None:
    """config.json: all that is needed to run the same thing again. `lanes`: the seeds, the sweep and the parts."""
    record = {
        "algorithm": Path(script).stem,
        "script": str(Path(script).absolute()),
        "config": dataclasses.asdict(config),
        **lanes,
        "command": shlex.join(["python", *sys.argv]),
        "git_commit": _git_commit(Path(script).absolute().parent),
        "device": f"{jax.local_device_count()} x {jax.local_devices()[0].device_kind}",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    write_json(directory / "config.json", record)


def _git_commit(folder: Path) -> str | None:
    try:
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz file aside and rename it."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    np.savez(aside, **arrays)
    os.replace(aside, path)


def write_metrics(
    directory: Path, env_steps: np.ndarray, lanes: dict[str, np.ndarray], metrics: dict[str, np.ndarray]
) -> None:
    """metrics.npz: env_steps [num_iterations], what a lane is [num_lanes], metrics [num_lanes, num_iterations]."""
    write_arrays(directory / "metrics.npz", {"env_steps": env_steps} | lanes | metrics)


def read_metrics(directory: Path, num_iterations: int) -> dict[str, np.ndarray]:
    """The metrics of the first iterations of a run.

    Raises:
        ValueError: metrics.npz is missing, damaged or too short.
    """
    path = directory / "metrics.npz"
    try:
        with np.load(path) as file:
            metrics = {name: file[name][:, :num_iterations] for name in file.files if file[name].ndim == 2}
    except Exception as error:  # numpy and zipfile raise a wide variety
        raise ValueError(f"{path} is missing or damaged: {error}") from error
    if any(x.shape[1] < num_iterations for x in metrics.values()):
        raise ValueError(f"{path} has fewer than the {num_iterations} iterations of the checkpoint")
    return metrics


def append_metrics(metrics: dict[str, np.ndarray], records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Join [num_lanes, n] and [num_lanes, m] of each metric; `metrics` may be empty."""
    return {name: np.concatenate([metrics[name], x], axis=1) if metrics else x for name, x in records.items()}


def write_curves(path: Path, settings: dict[str, np.ndarray], curves: list[Curve]) -> None:
    """The learning curve over the seeds of each setting as CSV; settings name -> [num_settings], or empty."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*settings, "env_step", "mean", "iqm", "ci_low", "ci_high"])
        for index, curve in enumerate(curves):
            setting = [str(values[index]) for values in settings.values()]
            for row in zip(curve.env_steps, curve.mean, curve.iqm, curve.ci_low, curve.ci_high, strict=True):
                writer.writerow([*setting, int(row[0]), *(f"{x:.6g}" for x in row[1:])])
