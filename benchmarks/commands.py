"""What whole commands take, from the start of the process to its end: python benchmarks/commands.py [--rounds 3]

Each command runs with an empty compilation cache, then once more with what it left there; all of them in turns. Prints
the table of README.md and writes it to results/commands.csv: medians of the seconds until the first line of progress
and until the end of the first start, of the seconds of the second start, and of the peak memory of the first process.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
LANES = "ppo.py --env CartPole-v1 --total-timesteps 20480 --eval-episodes 0"
BUFFER = "sac.py --env Pendulum-v1 --total-timesteps 3000 --no-checkpoint-buffer --eval-episodes 0"
COMMANDS = (
    "ppo.py --env CartPole-v1",
    f"{LANES} --num-seeds 256",
    f"{LANES} --num-seeds 4 --sweep learning-rate=log:1e-4:1e-2:64",
    f"{BUFFER} --buffer-size 20_000",
    f"{BUFFER} --buffer-size 40_000_000",
)
COLUMNS = ("command", "first_progress_s", "end_s", "again_s", "peak_mib")


def start(command: str, folder: str) -> tuple[float, float, float]:
    """Seconds until the first line of progress, seconds until the end, and MiB of memory at most.

    Raises:
        RuntimeError: the command fails, or shows no progress.
    """
    script, *options = command.split()
    environment = {**os.environ, "XDG_CACHE_HOME": folder, "JAX_COMPILATION_CACHE_DIR": ""}
    words = [sys.executable, str(ROOT / script), *options, "--out", folder]
    started, first = time.perf_counter(), None
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) as process:
        for line in process.stdout:
            if first is None and "steps/s" in line:
                first = time.perf_counter() - started
        _, status, usage = os.wait4(process.pid, 0)  # `Popen.wait` does not tell the memory
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or first is None:
        raise RuntimeError(f"{command}: exit status {process.returncode}, first progress {first}")
    return first, time.perf_counter() - started, usage.ru_maxrss / 1024


def measure(command: str) -> tuple[float, float, float, float]:
    """The numbers of COLUMNS, of one first and one second start."""
    with tempfile.TemporaryDirectory() as folder:
        first, end, memory = start(command, folder)
        _, again, _ = start(command, folder)
    return first, end, again, memory


def line(row: dict[str, str]) -> str:
    """The row of a table in Markdown."""
    command, *seconds, memory = row.values()
    return f"| `python {command}` | {' | '.join(seconds)} | {int(memory):,} |"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=COMMANDS, metavar="COMMAND")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "commands.csv")
    arguments = parser.parse_args()
    rounds = [[measure(command) for command in arguments.only] for _ in range(arguments.rounds)]
    rows = []
    for command, measured in zip(arguments.only, zip(*rounds, strict=True), strict=True):
        *seconds, memory = (median(values) for values in zip(*measured, strict=True))
        cells = (command, *(f"{x:.1f}" for x in seconds), f"{memory:.0f}")
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
        print(line(rows[-1]))
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
