"""The files of a run: their names, and how they are written and read. parts/ has checkpoints and metrics of its own."""

import contextlib
import csv
import json
import math
import os
import stat
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import printable
from runner.experiment import EVAL_METRICS, EVAL_STEPS, Part, until

RECORD, CHECKPOINT, METRICS, EVALUATION = "config.json", "checkpoint.safetensors", "metrics.npz", "evaluation.npz"
LOCK = "training.lock"  # while the run is trained
SUMMARY, CURVE_TABLE = "summary.json", "curve.csv"
CURVE_PLOT, METRICS_PLOT, SWEEP_PLOT = "curve.png", "metrics.png", "sweep.png"
MAX_JSON = 2**28  # bytes of a .json file
MAX_SPARSE = 2**28  # bytes of an .npz file that may be holes, which take no disk and read as zeros


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it becomes `path` when the block ends. After a kill `path` is the old file or the new one.

    All that a run, a report or a drawing writes is written here. The temporary file is a new one: a leftover of its
    name is removed, and a link of that name, in a folder of another user, is not followed. Neither is `path`.
    """
    temporary = path.with_name(f".new-{path.name}")  # with the ending, by which libraries choose the format
    try:
        temporary.unlink(missing_ok=True)
        temporary.touch(exist_ok=False)
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
        finite = _map_json(lambda x: None if isinstance(x, float) and not math.isfinite(x) else x, content)
        temporary.write_text(json.dumps(finite, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON. Its texts are `printable`.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged or too large.
    """
    check_file(path)
    if path.stat().st_size > MAX_JSON:
        raise ValueError(f"it has more than {MAX_JSON:,} bytes")
    try:
        return _map_json(lambda x: printable(x) if isinstance(x, str) else x, json.loads(path.read_text()))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def check_file(path: Path) -> None:
    """Raise ValueError unless a path is a file, as a pipe or a device may never end. OSError: there is nothing."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no file")


def _map_json(convert: Callable, x: Any) -> Any:
    """Apply a function to each key and each value of JSON."""
    if isinstance(x, dict):
        return {convert(key): _map_json(convert, value) for key, value in x.items()}
    return [_map_json(convert, value) for value in x] if isinstance(x, list | tuple) else convert(x)


def part_folder(directory: Path, parts: list[Part], part: Part) -> Path:
    """The folder of a part; a run, or a rung, of a single part has everything in its own folder."""
    return directory if len(parts) == 1 else directory / "parts" / f"trials-{part.start}-to-{part.stop - 1}"


def rung_folder(directory: Path, index: int) -> Path:
    """The folder of a rung of a sweep that is halved; index counts from 0."""
    return directory / "rungs" / str(index + 1)


def write_metrics(
    directory: Path,
    env_steps: np.ndarray,
    trials: dict[str, np.ndarray],
    metrics: dict[str, np.ndarray],
    evaluations: dict[str, np.ndarray],
) -> None:
    """Write metrics.npz.

    Args:
        env_steps: [num_iterations].
        trials: what each trial is, `seed` and swept fields, [num_trials].
        metrics: [num_trials, num_iterations].
        evaluations: EVAL_STEPS [num_evaluations], EVAL_METRICS [num_trials, num_evaluations]; or empty.
    """
    write_arrays(directory / METRICS, {"env_steps": env_steps} | trials | metrics | evaluations)


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz file; bfloat16, which the format does not have, becomes float32."""
    known = {name: x.astype(np.float32) if x.dtype.kind == "V" else x for name, x in arrays.items()}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **known)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file of numbers, as `write_arrays` writes it. Raises ValueError if it is missing or damaged."""
    with _opened_arrays(path) as file:
        arrays = dict(file)
    lengths, seeds = arrays.get("num_iterations", np.empty(0)), arrays.get("seed", np.empty(0))
    of_trials = [x for name, x in arrays.items() if name in ("num_iterations", "is_healthy") or name[:6] == "sweep_"]
    if "seed" in arrays and any(x.shape != (len(seeds),) for x in of_trials):  # evaluation.npz has none
        raise ValueError(f"{path} is damaged: it has {len(seeds)} seeds, and other numbers of trials")
    if len(lengths) and lengths.dtype.kind not in "iu":
        raise ValueError(f"{path} is damaged: its num_iterations are no integers")
    if (lengths < 1).any() or (lengths > len(arrays.get("env_steps", ()))).any():
        raise ValueError(f"{path} is damaged: its num_iterations are not those of env_steps")
    return arrays


def read_scores(directory: Path, num_trials: int) -> dict[str, np.ndarray]:
    """Read evaluation.npz, the scores of a part. Raises ValueError if it is missing, damaged or of other trials."""
    path = directory / EVALUATION
    scores = read_arrays(path)
    if "is_healthy" not in scores or any(x.shape != (num_trials,) for x in scores.values()):
        raise ValueError(f"{path} does not have the scores of {num_trials} trials")
    return scores


def check_metrics(directory: Path, names: Iterable[str]) -> None:
    """Raise ValueError unless every metrics.npz of a run has metrics of these names."""
    for path in sorted(directory.rglob(METRICS)):
        with _opened_arrays(path) as file:
            missing = sorted(set(names) - set(file.files))
        if missing:
            raise ValueError(
                f"{path} has no {' and no '.join(missing)}, which this version of the script measures: a run goes on "
                "with the metrics that it began with; train anew, or take them out"
            )


@contextlib.contextmanager
def _opened_arrays(path: Path) -> Iterator[Any]:
    """The arrays of an .npz file by their names; none is read yet."""
    try:
        check_file(path)
        status = path.stat()
        if status.st_size > MAX_SPARSE and 512 * status.st_blocks < status.st_size // 100:
            raise ValueError("it is sparse: what it lacks on the disk would be memory")
        with np.load(path) as file:
            for member in file.zip.infolist():
                _check_header(file.zip, member)
            yield file
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: the run has saved nothing yet") from None
    except Exception as error:  # numpy and zipfile raise a wide variety
        raise ValueError(f"{path} is damaged: it is not a complete .npz file") from error


def _check_header(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError unless a member is an array of numbers as long as it says, under a name that can be printed."""
    with file.open(member) as array:
        version = np.lib.format.read_magic(array)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(array)
        size = array.tell() + math.prod(shape) * dtype.itemsize
    is_whole = (member.compress_type, member.file_size) == (zipfile.ZIP_STORED, size)
    if not (is_whole and dtype.kind in "biuf" and len(shape) in (1, 2) and member.filename.isprintable()):
        raise ValueError(f"{member.filename} is no array of numbers")


def read_metrics(
    directory: Path, env_steps: np.ndarray, trials: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The metrics and the evaluations of the first iterations of a run, as for `write_metrics`.

    Args:
        env_steps, trials: what the file must say, as for `write_metrics`; it may have more iterations.

    Raises:
        ValueError: metrics.npz is missing, damaged, too short or of another run.
    """
    path, num_iterations = directory / METRICS, len(env_steps)
    arrays = read_arrays(path)
    if len(arrays.get("env_steps", ())) < num_iterations:
        raise ValueError(f"{path} has fewer than the {num_iterations} iterations of the checkpoint")
    expected = {"env_steps": env_steps} | trials
    is_same = all(name in arrays and np.array_equal(arrays[name][: len(x)], x) for name, x in expected.items())
    evaluations = {name: arrays.pop(name) for name in (EVAL_STEPS, *EVAL_METRICS) if name in arrays}
    metrics = {name: x[:, :num_iterations] for name, x in arrays.items() if x.ndim == 2}
    num_trials = len(trials.get("seed", ()))
    shape = num_trials, len(evaluations.get(EVAL_STEPS, ()))
    if evaluations and [evaluations.get(name, np.empty(0)).shape for name in EVAL_METRICS] != [shape] * 2:
        is_same = False
    if not is_same or any(x.shape != (num_trials, num_iterations) for x in metrics.values()):
        raise ValueError(f"{path} belongs to another run")
    return metrics, until(evaluations, int(np.max(env_steps, initial=0)))


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file."""
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
