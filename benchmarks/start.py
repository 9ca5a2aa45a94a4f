"""Seconds from the prompt to the learning curve: of the first start, and of the second, which compiles nothing.

    python benchmarks/start.py --peers purejaxrl=PYTHON rejax=PYTHON  # environments as in speed.py
    python benchmarks/start.py --only ppo-1 --rounds 1
    python benchmarks/start.py --report                               # the table of NOTES.md, from results/start.csv

Ours is the command with the evaluation of 32 episodes, until the scores are printed; a peer's is a call of its library
with the same settings, until training has ended. One command at a time, the contenders in turns; medians. Peers keep
programs in JAX' cache as ours does. JAX says how long it traces and compiles; where it does both at once, that counts
as tracing.
"""

import argparse
import csv
import dataclasses
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

from speed import CASES, FOLDER, VARIABLES, Case, Contender
from tables import ROOT, markdown, with_table

from runner.files.store import write_table

TABLE, PAGE, BEGIN = FOLDER / "results" / "start.csv", FOLDER / "NOTES.md", "<!-- made by benchmarks/start.py -->"
CHOSEN = ("ppo-1", "dqn-10k", "sac-1", "td3-1")
PHASES = ("imports", "trace", "compile", "train", "rest", "total")
COLUMNS = ("case", "contender", "start", *(f"{phase}_s" for phase in PHASES))
TRACED = re.compile(r"Finished (?:tracing|jaxpr to MLIR module conversion) .* in ([\d.e-]+) sec")
COMPILED = re.compile(r"Finished XLA compilation of .* in ([\d.e-]+) sec")


def command(contender: Contender, python: str) -> list[str]:
    """The command of a contender."""
    if contender.peer:
        return [python, str(FOLDER / "worker.py"), contender.script, "1", json.dumps(contender.settings)]
    words = [python, str(ROOT / f"{contender.script}.py")]
    config = importlib.import_module(contender.script).Config(**contender.settings)
    for name, x in dataclasses.asdict(config).items():  # all fields, since a preset would set some
        flag = name.replace("_", "-")
        if isinstance(x, bool):
            words.append(f"--{flag}" if x else f"--no-{flag}")
        elif x != ():
            words += [f"--{flag}", *map(str, x if isinstance(x, tuple) else [x])]
    return words


def length(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that are in at least one interval."""
    total, end = 0.0, 0.0
    for start, stop in sorted(intervals):
        total, end = total + max(0.0, stop - max(start, end)), max(end, stop)
    return total


def measure(contender: Contender, python: str, cache: str) -> dict[str, float]:
    """Run a command once. Returns the seconds of its phases."""
    programs = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    told = {"JAX_LOG_COMPILES": "1", "PYTHONUNBUFFERED": "1", "CORES": str(os.cpu_count())}
    traced, compiled, stamps = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        process = subprocess.Popen(
            command(contender, python),
            env={**os.environ, **VARIABLES, **programs, **told},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if contender.peer:  # one run
            process.stdin.write("go\n")
        process.stdin.close()
        lines = []
        for line in process.stdout:
            now = time.perf_counter() - started
            lines.append(line)
            for pattern, found in ((TRACED, traced), (COMPILED, compiled)):
                if match := pattern.search(line):
                    found.append((now - float(match.group(1)), now))
            if line.startswith(("compiled in", '{"compile"')):
                stamps["compiled"] = now
            elif re.match(r"[\d ,]+/ [\d,]+ steps", line.strip()) or line.startswith('{"seconds"'):
                stamps["trained"] = now
            if line.startswith(("greedy evaluation", '{"seconds"')):
                stamps["total"] = now
    if process.wait():
        raise SystemExit("".join(lines[-20:]))
    traced, compiled = ([x for x in found if x[1] <= stamps["compiled"]] for found in (traced, compiled))
    imports, trace = min(start for start, _ in traced), length(traced)
    compile_only, train = length(traced + compiled) - trace, stamps["trained"] - stamps["compiled"]
    rest = stamps["total"] - imports - trace - compile_only - train
    return dict(zip(PHASES, (imports, trace, compile_only, train, rest, stamps["total"]), strict=True))


def measure_case(case: Case, pythons: dict[str, str], rounds: int) -> list[dict]:
    """Rows of the table."""
    contenders = [x for x in case.contenders if x.peer in pythons]
    seconds = {(x.name, start): [] for x in contenders for start in ("first", "second")}
    for _ in range(rounds):
        for contender in contenders:
            with tempfile.TemporaryDirectory() as cache:
                for start in ("first", "second"):
                    seconds[contender.name, start].append(measure(contender, pythons[contender.peer], cache))
    rows = []
    for (name, start), measured in seconds.items():
        medians = {f"{phase}_s": round(statistics.median(x[phase] for x in measured), 1) for phase in PHASES}
        rows.append({"case": case.name, "contender": name, "start": start} | medians)
    return rows


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME=PYTHON", help="purejaxrl and rejax")
    parser.add_argument("--only", nargs="+", choices=CHOSEN, default=CHOSEN, help="some of the cases")
    parser.add_argument("--rounds", type=int, default=5, help="first and second starts of each contender")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    pythons = {"": sys.executable} | dict(peer.split("=", 1) for peer in arguments.peers)
    if unknown := set(pythons) - {"", "purejaxrl", "rejax"}:
        parser.error(f"--peers: {unknown.pop()} is neither purejaxrl nor rejax")
    tables = {name: [] for name in CHOSEN}
    if TABLE.exists():
        with TABLE.open(newline="") as file:
            for row in csv.DictReader(file):
                tables[row["case"]].append(row)
    for case in CASES:
        if case.name in arguments.only and not arguments.report:
            tables[case.name] = measure_case(case, pythons, arguments.rounds)
            for row in tables[case.name]:
                print(" ".join(f"{row[name]:>10}" for name in COLUMNS), flush=True)
            rows = [row for table in tables.values() for row in table]
            write_table(TABLE, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))
    rows = [[str(row[name]) for name in COLUMNS] for table in tables.values() for row in table]
    PAGE.write_text(with_table(PAGE.read_text(), BEGIN, markdown([x.removesuffix("_s") for x in COLUMNS], rows)))


if __name__ == "__main__":
    main()
