"""The files of a run: their names, and how they are written and read. parts/ has checkpoints and metrics of its own."""

import contextlib
import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from runner.experiment import EVAL_METRICS, EVAL_STEPS, Part, until

RECORD, CHECKPOINT, METRICS, EVALUATION = "config.json", "checkpoint.safetensors", "metrics.npz", "evaluation.npz"
LOCK = "training.lock"  # while the run is trained
SUMMARY, CURVE_TABLE = "summary.json", "curve.csv"
CURVE_PLOT, METRICS_PLOT, SWEEP_PLOT = "curve.png", "metrics.png", "sweep.png"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it becomes `path` when the block ends. After a kill `path` is the old file or the new one.

    A leftover temporary file is overwritten by the next write.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def attempt(write: Callable, path: Path, *content: Any) -> bool:
    """Write a file without which the run goes on; an error is printed. Returns whether it was written."""
    try:
        write(path, *content)
    except OSError as error:
        print(f"error: {path} is not written: {error}", file=sys.stderr)
        return False
    return True


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON; NaN, which JSON does not have, becomes null."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(_without_nan(content), indent=2) + "\n")


def _without_nan(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _without_nan(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_without_nan(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def part_folder(directory: Path, parts: list[Part], part: Part) -> Path:
    """The folder of a part; a run, or a rung, of a single part has everything in its own folder."""
    return directory if len(parts) == 1 else directory / "parts" / f"lanes-{part.start}-to-{part.stop - 1}"


def rung_folder(directory: Path, index: int) -> Path:
    """The folder of a rung of a sweep that is halved; index counts from 0."""
    return directory / "rungs" / str(index + 1)


def write_metrics(
    directory: Path,
    env_steps: np.ndarray,
    lanes: dict[str, np.ndarray],
    metrics: dict[str, np.ndarray],
    evaluations: dict[str, np.ndarray],
) -> None:
    """Write metrics.npz.

    Args:
        env_steps: [num_iterations].
        lanes: what each lane is, `seed` and swept fields, [num_lanes].
        metrics: [num_lanes, num_iterations].
        evaluations: EVAL_STEPS [num_evaluations], EVAL_METRICS [num_lanes, num_evaluations]; or empty.
    """
    write_arrays(directory / METRICS, {"env_steps": env_steps} | lanes | metrics | evaluations)


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz file."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file. Raises ValueError if it is missing or damaged."""
    try:
        with np.load(path) as file:
            return dict(file)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: the run has saved nothing yet") from None
    except Exception as error:  # numpy and zipfile raise a wide variety
        raise ValueError(f"{path} is damaged: it is not a complete .npz file") from error


def read_metrics(
    directory: Path, env_steps: np.ndarray, lanes: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The metrics and the evaluations of the first iterations of a run, as for `write_metrics`.

    Args:
        env_steps, lanes: what the file must say, as for `write_metrics`; it may have more iterations.

    Raises:
        ValueError: metrics.npz is missing, damaged, too short or of another run.
    """
    path, num_iterations = directory / METRICS, len(env_steps)
    arrays = read_arrays(path)
    if len(arrays.get("env_steps", ())) < num_iterations:
        raise ValueError(f"{path} has fewer than the {num_iterations} iterations of the checkpoint")
    expected = {"env_steps": env_steps} | lanes
    is_same = all(name in arrays and np.array_equal(arrays[name][: len(x)], x) for name, x in expected.items())
    evaluations = {name: arrays.pop(name) for name in (EVAL_STEPS, *EVAL_METRICS) if name in arrays}
    metrics = {name: x[:, :num_iterations] for name, x in arrays.items() if x.ndim == 2}
    num_lanes = len(lanes.get("seed", ()))
    if not is_same or any(x.shape != (num_lanes, num_iterations) for x in metrics.values()):
        raise ValueError(f"{path} belongs to another run")
    return metrics, until(evaluations, int(np.max(env_steps, initial=0)))


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file."""
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
