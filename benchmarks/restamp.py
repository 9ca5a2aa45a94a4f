"""Whether the program of a row is still today's, or computes the same as today's."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rows import Pair, read_raws
from tables import FOLDER, ROOT, dump
from training import program

EQUAL = ("bit-equal", "equal to rounding")  # what `likeness` says of programs that compute the same
SHORT_ITERATION = 4  # cycles of collecting and learning


def find_stale(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A line for each row of a program that is not today's, or of which that cannot be told."""
    lines = []
    for pair, raw in raws.items():
        version, device = raw["packages"]["jax"], raw["device"]
        if "program" not in raw:
            lines.append(f"{pair.name}: recorded at {raw['git_commit'][:7]}, before programs were compared")
        elif version != jax.__version__ or device.endswith("cpu") != (jax.default_backend() == "cpu"):
            lines.append(f"{pair.name}: recorded with jax {version} on {device}, compare it there")
        elif program(pair) != raw["program"]:
            lines.append(f"{pair.name}: recorded at {raw['git_commit'][:7]}, the program is another one today")
    return lines


def restamp_all(commit: str, only: list[str]) -> None:
    """`restamp` the stale rows, or those of them that are named, and print what was found."""
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder, "earlier")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", earlier, commit], cwd=ROOT, check=True)
        try:
            for pair, raw in read_raws().items():
                if not only or pair.name in only:
                    lines = find_stale({pair: raw})
                    if lines and lines[0].endswith("another one today"):
                        print(f"{pair.name}: {restamp(pair, raw, commit, earlier)}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", earlier], cwd=ROOT, check=True)


def restamp(pair: Pair, raw: dict[str, Any], commit: str, earlier: Path) -> str:
    """Compare today's program of a row with that of `commit`, checked out in `earlier`, by three iterations of both.

    The row gets `restamped`, what was found, in a few words. If that is one of EQUAL it also gets today's `program`,
    and the recorded one as `earlier_program`. Where whole iterations of a replay script differ, those of a few cycles
    are compared: over the thousand updates of an iteration rounding grows without bound.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(raw["config"]))
        before, today = three_iterations((earlier, ROOT), pair.script, config)
        if str(before["program"]) != raw["program"]:
            return f"its program is not that of {commit}"
        found = likeness(before, today)
        if found not in EQUAL and "steps_per_iteration" in raw["config"]:
            found = likeness(*three_iterations((earlier, ROOT), pair.script, config, cycles=SHORT_ITERATION))
    raw |= {"restamped": found}
    if found in EQUAL:
        raw |= {"program": str(today["program"]), "earlier_program": raw.get("earlier_program", raw["program"])}
    pair.path.write_text(dump(raw))
    return found


def three_iterations(
    roots: tuple[Path, ...], script: str, config: Path, cycles: int = 0
) -> list[dict[str, np.ndarray]]:
    """Run benchmarks/three_iterations.py on each working tree, side by side, and return their arrays."""
    files = [config.with_name(f"{number}.npz") for number, _ in enumerate(roots)]
    program = FOLDER / "three_iterations.py"
    commands = [
        [sys.executable, program, root, script, config, file, str(cycles)]
        for root, file in zip(roots, files, strict=True)
    ]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"  # compiles in half the time
    processes = [subprocess.Popen(command, env=os.environ | {"XLA_FLAGS": flags}) for command in commands]
    for process, command in zip(processes, commands, strict=True):
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    return [dict(np.load(file)) for file in files]


def likeness(before: dict[str, np.ndarray], today: dict[str, np.ndarray]) -> str:
    """Whether two programs compute the same: "bit-equal", "equal to rounding", or which array differs.

    To rounding: whole numbers and keys agree, floats within 1e-5 relative after `init` and the first iteration. Arrays
    and columns that only today's program has are not compared, nor metrics that are gone.
    """
    names = [name for name in before if name != "program" and (name in today or "metrics" not in name)]
    for name in names:
        if ".buffer.arrays" in name and name in today:
            today = today | {name: today[name][..., : before[name].shape[-1]]}
        x, y = before[name], today.get(name)
        if y is None or x.shape != y.shape or x.dtype != y.dtype:
            return f"{name} is another array"
    if all(before[name].tobytes() == today[name].tobytes() for name in names):
        return EQUAL[0]
    for name in (name for name in names if name.startswith(("init", "0"))):  # later, rounding may have grown
        x, y = before[name], today[name]
        tolerance = 1e-5 if np.issubdtype(x.dtype, np.floating) else 0.0
        scale = np.abs(x[np.isfinite(x)]).max(initial=0.0) if tolerance else 0.0
        if not np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return f"{name} differs"
    return EQUAL[1]
