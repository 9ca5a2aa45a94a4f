"""How the time and the memory of a run grow with its lanes, its steps and its replay buffer.

    python benchmarks/scaling.py

Writes results/scaling.csv and results/scaling.png. Every point is a process of its own, compiled, then run `--rounds`
times; the time is the median, the memory the peak of the process.
"""

import argparse
import csv
import os
import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from speed import ACTOR_CRITIC, PPO, RATES, SMALL, Case, Contender, Worker

FOLDER = Path(__file__).parent / "results"
COLUMNS = ("what", "value", "seconds", "peak_mib")


def points() -> list[tuple[str, int, int, Contender]]:
    """What grows, its value, lanes and what is run."""
    ppo = {**PPO, **SMALL}
    sac = {**ACTOR_CRITIC, **RATES, **SMALL, "total_timesteps": 4_000, "steps_per_iteration": 500}
    lanes = [
        ("lanes", n, n, Contender("ppo", "ppo", {**ppo, "total_timesteps": 512 * 20})) for n in (1, 4, 16, 64, 256)
    ]
    steps = [
        ("env steps", 512 * n, 1, Contender("ppo", "ppo", {**ppo, "total_timesteps": 512 * n}))
        for n in (50, 100, 200, 400, 800)
    ]
    sizes = (10_000, 30_000, 100_000, 300_000, 1_000_000)
    buffers = [("buffer size", size, 1, Contender("sac", "sac", {**sac, "buffer_size": size})) for size in sizes]
    return lanes + steps + buffers


def plot(rows: list[dict], path: Path) -> None:
    """A column for each thing that grows, time above memory."""
    names = list(dict.fromkeys(row["what"] for row in rows))
    figure = Figure(figsize=(10, 5), layout="constrained")
    panels = figure.subplots(2, len(names), sharex="col")
    for column, name in enumerate(names):
        own = [row for row in rows if row["what"] == name]
        for axes, y in zip(panels[:, column], ("seconds", "peak_mib"), strict=True):
            axes.plot([row["value"] for row in own], [row[y] for row in own], "o-", color="tab:blue")
            axes.set_xscale("log")
            axes.set_xticks([row["value"] for row in own], minor=False)
            axes.set_xticks([], minor=True)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            highest, lowest = (f(row[y] for row in own) for f in (max, min))
            if highest > 4 * lowest:
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, 1.1 * highest)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        panels[1, column].set_xlabel(name)
    panels[0, 0].set_ylabel("seconds of a run")
    panels[1, 0].set_ylabel("peak memory, MiB")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each point")
    arguments = parser.parse_args()
    rows = []
    print(("{:>14}" * len(COLUMNS)).format(*COLUMNS))
    for what, value, lanes, contender in points():
        worker = Worker(contender, Case(what, lanes, os.cpu_count()), sys.executable)
        worker.wait()
        for _ in range(arguments.rounds):
            worker.run()
        seconds, memory = round(worker.median("seconds"), 3), round(worker.median("peak_kib") / 1024)
        worker.close()
        rows.append(dict(zip(COLUMNS, (what, value, seconds, memory), strict=True)))
        print(("{:>14}" * len(COLUMNS)).format(*rows[-1].values()), flush=True)
    with (FOLDER / "scaling.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    plot(rows, FOLDER / "scaling.png")


if __name__ == "__main__":
    main()
