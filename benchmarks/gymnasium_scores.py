"""Scores of the same policies here and in Gymnasium.

    python benchmarks/gymnasium_scores.py                          # the rows of classic control and MuJoCo
    python benchmarks/gymnasium_scores.py --only ppo/CartPole-v1   # this one

The policies are those of results.py, by whose code a row without a run is trained; of more seeds the first 20. Every
policy is exported to ONNX and plays 100 episodes in Gymnasium's environment of the same name, as many as it was
evaluated over. Writes results/gymnasium.csv, in which other rows stay, and the table of docs/environments.md.
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
from training import FINAL_EPISODES, folder_of, train

from common.environment import make_env
from runner.export.policy import make_model, make_policy
from runner.files.load import load
from runner.files.store import write_table
from runner.report.statistics import bootstrap_interval, iqm, probability_of_improvement

PAIRS = {pair.name: pair for pair in [*FAMILIES[HEADLINE], *FAMILIES["MuJoCo"]]}
FILE = ROOT / "benchmarks" / "results" / "gymnasium.csv"
PAGE, BEGIN = ROOT / "docs" / "environments.md", "<!-- made by benchmarks/gymnasium_scores.py -->"
MAX_SEEDS = 20
COLUMNS = ("row", "seed", "here", "gymnasium")


def export(run: Path, seed: int, file: Path) -> None:
    """Write a seed's policy as an ONNX model."""
    config, algorithm, state = load(run, seed)
    file.write_bytes(make_model(make_policy(algorithm, state, make_env(config.env)), {"seed": seed}).content)


def play(env: str, seed: int, file: Path) -> float:
    """Mean return of a seed's policy in Gymnasium; each seed plays other episodes."""
    command = [sys.executable, ROOT / "runner" / "export" / "play.py", file, "--gymnasium", env.rpartition("/")[2]]
    command += ["--episodes", str(FINAL_EPISODES), "--seed", str(FINAL_EPISODES * seed)]
    # In the file's folder, since MuJoCo writes MUJOCO_LOG.TXT into the current one.
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=file.parent)
    return float(re.search(r"mean (\S+),", result.stdout)[1])


def scores(pair: Pair, out: Path) -> list[dict[str, str]]:
    """A row of the file for each seed."""
    run = folder_of(pair, out)
    if not (run / "timing.json").exists():
        train(pair, out)
    ours = read(run / "summary.json")["eval_episode_return"]["per_seed"][:MAX_SEEDS]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        files = [Path(name, f"{seed}.onnx") for seed in range(len(ours))]
        for seed, file in enumerate(files):
            export(run, seed, file)
        theirs = list(pool.map(lambda seed: play(pair.env, seed, files[seed]), range(len(ours))))
    rows = enumerate(zip(ours, theirs, strict=True))
    return [{"row": pair.name, "seed": seed, "here": f"{a:.2f}", "gymnasium": f"{b:.2f}"} for seed, (a, b) in rows]


def table(rows: list[dict[str, str]]) -> list[str]:
    """The table in Markdown, a line for each row of RESULTS.md."""
    titles = ("policies", "IQM here", "IQM in Gymnasium", "difference", "P(here > Gymnasium)")
    lines = []
    for name in PAIRS:
        pairs = [(float(row["here"]), float(row["gymnasium"])) for row in rows if row["row"] == name]
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
