"""Scores of the same policies in gymnax and in Gymnasium.

    python benchmarks/gymnasium_scores.py                          # every row of classic control in RESULTS.md
    python benchmarks/gymnasium_scores.py --only ppo/CartPole-v1   # this one

20 seeds are trained with the preset and evaluated over 100 whole episodes each. Every policy is exported to ONNX and
plays 100 episodes in Gymnasium's environment of the same name. Writes results/gymnasium.csv, in which other rows stay,
and the table of docs/environments.md. A finished run is not trained again, and one that was stopped is continued.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rows import FAMILIES, HEADLINE, Pair
from tables import ROOT, markdown, read, with_table
from training import FINAL_EPISODES

from common.environment import make_env
from runner.export.policy import make_model, make_policy
from runner.files.load import load
from runner.files.store import write_table
from runner.report.statistics import bootstrap_interval, iqm, probability_of_improvement

PAIRS = {pair.name: pair for pair in FAMILIES[HEADLINE]}
FILE = ROOT / "benchmarks" / "results" / "gymnasium.csv"
PAGE, BEGIN = ROOT / "docs" / "environments.md", "<!-- made by benchmarks/gymnasium_scores.py -->"
NUM_SEEDS = 20
COLUMNS = ("row", "seed", "gymnax", "gymnasium")


def trained(pair: Pair, out: Path) -> Path:
    """The folder of a finished run."""
    folder = out / pair.script / pair.env / "gymnasium"
    begin = ["--env", pair.env, "--num-seeds", str(NUM_SEEDS), "--out", str(out), "--name", folder.name]
    begin += ["--eval-every", "0", "--eval-episodes", str(FINAL_EPISODES)]
    if not (folder / "summary.json").exists():
        arguments = ["--resume", str(folder)] if (folder / "config.json").exists() else begin
        subprocess.run([sys.executable, pair.file, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


def export(run: Path, seed: int, file: Path) -> None:
    """Write a seed's policy as an ONNX model."""
    config, algorithm, state = load(run, seed)
    file.write_bytes(make_model(make_policy(algorithm, state, make_env(config.env)), {"seed": seed}).content)


def play(env: str, seed: int, file: Path) -> float:
    """Mean return of a seed's policy in Gymnasium; each seed plays other episodes."""
    command = [sys.executable, ROOT / "runner" / "export" / "play.py", file, "--gymnasium", env]
    command += ["--episodes", str(FINAL_EPISODES), "--seed", str(FINAL_EPISODES * seed)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(re.search(r"mean (\S+),", result.stdout)[1])


def scores(pair: Pair, out: Path) -> list[dict[str, str]]:
    """A row of the file for each seed."""
    run = trained(pair, out)
    ours = read(run / "summary.json")["eval_episode_return"]["per_seed"]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        files = [Path(name, f"{seed}.onnx") for seed in range(len(ours))]
        for seed, file in enumerate(files):
            export(run, seed, file)
        theirs = list(pool.map(lambda seed: play(pair.env, seed, files[seed]), range(len(ours))))
    rows = enumerate(zip(ours, theirs, strict=True))
    return [{"row": pair.name, "seed": seed, "gymnax": f"{a:.2f}", "gymnasium": f"{b:.2f}"} for seed, (a, b) in rows]


def table(rows: list[dict[str, str]]) -> list[str]:
    """The table in Markdown, a line for each row of RESULTS.md."""
    titles = ("policies", "IQM in gymnax", "IQM in Gymnasium", "difference", "P(gymnax > Gymnasium)")
    lines = []
    for name in PAIRS:
        pairs = [(float(row["gymnax"]), float(row["gymnasium"])) for row in rows if row["row"] == name]
        if pairs:
            ours, theirs = np.array(pairs).T
            low, high = bootstrap_interval([ours - theirs], np.mean)
            probability = "{:.2f} ({:.2f} to {:.2f})".format(*probability_of_improvement([(ours, theirs)]))
            difference = f"{np.mean(ours - theirs):+.2f} ({low:+.2f} to {high:+.2f})"
            lines.append([f"`{name}`", f"{iqm(ours):.1f}", f"{iqm(theirs):.1f}", difference, probability])
    return markdown(titles, lines)


def read_rows() -> list[dict[str, str]]:
    """The recorded rows."""
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="ROW")
    parser.add_argument("--out", type=Path, default=ROOT / "runs", help="folder of the training runs")
    arguments = parser.parse_args()
    for name in arguments.only:
        kept = [row for row in read_rows() if row["row"] != name] if FILE.exists() else []
        rows = kept + scores(PAIRS[name], arguments.out.resolve())
        write_table(FILE, COLUMNS, (row.values() for row in rows))
        print(*table([row for row in rows if row["row"] == name])[2:], flush=True)
    PAGE.write_text(with_table(PAGE.read_text(), BEGIN, table(read_rows())))


if __name__ == "__main__":
    main()
