"""Measures the diffs of docs/papers.md on small tasks, each copy beside its script.

    python benchmarks/papers.py                        # every study that is not recorded yet
    python benchmarks/papers.py --only RND-1 PER-1     # these, again
    python benchmarks/papers.py --report               # the table of the page, from the recorded scores alone
    python benchmarks/papers.py --copy RND my_ppo.py   # the copy of a script with a diff, and its presets

20 seeds that no result of RESULTS.md uses, 1000 and up, evaluated after training over 100 whole episodes each. The
scores of all seeds are kept in results/papers.json.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tables import FOLDER, ROOT, dump, markdown, read, with_table

from runner.report.statistics import confidence_interval, iqm, probability_of_improvement

PAGE, RAW = ROOT / "docs" / "papers.md", FOLDER / "results" / "papers.json"
BEGIN = "<!-- made by benchmarks/papers.py -->"
ENVIRONMENTS = "benchmarks/paper_environments.py"
COMMON = "--num-seeds 20 --seed 1000 --eval-every 0 --eval-episodes 100"
FEW_STEPS, FEWER_STEPS = "--total-timesteps 5000", "--total-timesteps 2500"
SHORT_ROLLOUTS = "--num-envs 16 --num-minibatches 8"  # more iterations than with the preset of DeepSea


@dataclass(frozen=True)
class Study:
    """A copy and what it is compared with, which has its flags but for `off` in place of `on`."""

    paper: str
    flags: str
    on: str = ""
    off: str | None = None  # None: the script itself
    held_out: str = ""  # the environment of the scores; "": the one of the training


STUDIES = {
    "DPO-1": Study("DPO", "--env CartPole-v1"),
    "DPO-2": Study("DPO", "--env Acrobot-v1"),
    "DPO-3": Study("DPO", "--env Pendulum-v1"),
    "RND-1": Study("RND", f"--env DeepSea-bsuite:size=10 {SHORT_ROLLOUTS}"),
    "RND-2": Study("RND", f"--env DeepSea-bsuite:size=14 {SHORT_ROLLOUTS}"),
    "RND-3": Study("RND", f"--env DeepSea-bsuite:size=20 {SHORT_ROLLOUTS}"),
    "PLR-1": Study(
        "PLR",
        "--env Poles-varied --num-envs 32 --num-steps 512 --total-timesteps 1000000",
        off="--replay-prob 0",
        held_out="Poles-extreme",
    ),
    "ReDo-1": Study("ReDo", "--env Acrobot-v1 --activation relu"),
    "S5-1": Study("S5", "--env MemoryChain-bsuite:memory_length=16"),
    "S5-2": Study("S5", "--env MemoryChain-bsuite:memory_length=48"),
    "PER-1": Study("PER", "--env MountainCar-v0", "--learning-rate 2.5e-4"),
    "PER-2": Study("PER", "--env DeepSea-bsuite:size=10", "--learning-rate 2.5e-4"),
    "HER-1": Study("HER", "--env BitFlip-v0:num_bits=10 --total-timesteps 50000 --gamma 0.98"),
    "RLPD-1": Study("RLPD", f"--env Pendulum-v1 --layer-norm {FEW_STEPS}"),
    "RLPD-2": Study("RLPD", f"--env Pendulum-v1 --layer-norm {FEWER_STEPS}"),
    "REDQ-1": Study("REDQ", f"--env Pendulum-v1 --gradient-steps 5 {FEW_STEPS}"),
    "REDQ-2": Study("REDQ", f"--env Pendulum-v1 --gradient-steps 5 {FEWER_STEPS}"),
    "CrossQ-1": Study("CrossQ", f"--env Pendulum-v1 {FEW_STEPS}"),
    "CrossQ-2": Study("CrossQ", f"--env Pendulum-v1 {FEWER_STEPS}"),
}


# -- Copies ------------------------------------------------------------------------------------------------------------


def read_papers() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Name of each paper -> its script, and its changes as (lines as they are, lines as they become)."""
    papers = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        for block in re.findall(r"^```diff\n# (.*?)^```", section, re.DOTALL | re.MULTILINE):
            script, *hunks = re.split(r"^@@.*\n", block, flags=re.MULTILINE)
            sides = [[side(hunk, mark) for mark in "+-"] for hunk in hunks]
            papers[section.partition(":")[0]] = script.strip(), [tuple(x) for x in sides]
    return papers


def side(hunk: str, left_out: str) -> str:
    """The lines of a hunk but for those with this mark."""
    return "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] != left_out)


def copy_of(paper: str) -> tuple[str, str]:
    """The script of a paper, and its text with the diff."""
    script, changes = read_papers()[paper]
    text = (ROOT / script).read_text()
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{script} has {text.count(old)} places for this part of {paper}:\n{old}")
        text = text.replace(old, new)
    return script, text


def write_copy(paper: str, path: Path) -> None:
    """Write a script with a diff, and its presets without the settings that are gone, if `presets/` is beside it."""
    script, text = copy_of(paper)
    path.write_text(text)
    if (folder := path.parent / "presets").is_dir():
        before, after = (set(re.findall(r"^    (\w+): ", x, re.MULTILINE)) for x in ((ROOT / script).read_text(), text))
        presets = (ROOT / "presets" / f"{Path(script).stem}.toml").read_text().splitlines(keepends=True)
        kept = [line for line in presets if line.partition(" = ")[0] not in before - after]
        (folder / f"{path.stem}.toml").write_text("".join(kept))


# -- Training ----------------------------------------------------------------------------------------------------------


def train(study: Study, folder: Path) -> dict[str, Any]:
    """Train a study in a folder with copies of all that a script needs: commands and the scores of the seeds."""
    for name in ("common", "runner", "presets"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "benchmarks").mkdir()
    shutil.copy(ROOT / ENVIRONMENTS, folder / "benchmarks")
    script, _ = copy_of(study.paper)
    copy = f"my_{Path(script).name}"
    shutil.copy(ROOT / script, folder / Path(script).name)
    write_copy(study.paper, folder / copy)
    if study.paper == "RLPD":
        write_dataset(folder)
    flags = {
        "script": [Path(script).name, study.flags] if study.off is None else [copy, f"{study.flags} {study.off}"],
        "copy": [copy, f"{study.flags} {study.on}"],
    }
    result = {}
    for name, (file, words) in flags.items():
        command = f"{file} {words.strip()} {COMMON}"
        call([ENVIRONMENTS, *command.split(), "--name", name], folder)
        (run,) = folder.glob(f"runs/*/*/{name}")
        scores = read(run / "summary.json")["eval_episode_return"]["per_seed"]
        if study.held_out:
            call([ENVIRONMENTS, "runner/evaluate.py", str(run), "--env", study.held_out], folder)
            (found,) = run.glob("evaluation-*.json")
            scores = read(found)["eval_episode_return"]["per_seed"]
        result[name] = {"command": f"python {command}", "returns": [round(x, 2) for x in scores]}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return result | {"git_commit": commit.stdout.strip()}


def write_dataset(folder: Path) -> None:
    """The file of transitions that the page writes for RLPD."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    call(["-c", block], folder)


def call(command: list[str], folder: Path) -> None:
    """Run Python in a folder."""
    print("python", *command, flush=True)
    subprocess.run([sys.executable, *command], cwd=folder, check=True)


# -- The page ----------------------------------------------------------------------------------------------------------


def table(raws: dict[str, Any]) -> list[str]:
    """The effects in Markdown."""
    titles = ("paper", "flags", "compared with", "IQM without", "IQM with", "P(with > without)")
    rows, papers = [], read_papers()
    for name, study in STUDIES.items():
        if name in raws:
            without, with_it = (np.array(raws[name][x]["returns"]) for x in ("script", "copy"))
            probability = "{:.2f} ({:.2f} to {:.2f})".format(*probability_of_improvement([(with_it, without)]))
            flags = f"`{study.flags} {study.on}".strip() + "`"
            flags += f", scored in {study.held_out}" if study.held_out else ""
            other = papers[study.paper][0] if study.off is None else f"`{study.off}`"
            rows.append([study.paper, flags, other, *map(score, (without, with_it)), probability])
    return ["", *markdown(titles, rows), ""]


def score(returns: np.ndarray) -> str:
    """The IQM with its 95 % interval."""
    return "{:.2f} ({:.2f} to {:.2f})".format(iqm(returns), *confidence_interval(returns))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=STUDIES, help="studies, trained again")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--copy", nargs=2, metavar=("PAPER", "FILE"), help="write a copy")
    arguments = parser.parse_args()
    if arguments.copy:
        write_copy(arguments.copy[0], Path(arguments.copy[1]))
        return
    raws = read(RAW) if RAW.exists() else {}
    for name in () if arguments.report else arguments.only or [name for name in STUDIES if name not in raws]:
        with tempfile.TemporaryDirectory() as folder:
            raws[name] = train(STUDIES[name], Path(folder))
        RAW.write_text(dump(dict(sorted(raws.items()))))
    PAGE.write_text(with_table(PAGE.read_text(), BEGIN, table(raws)))


if __name__ == "__main__":
    main()
