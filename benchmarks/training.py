"""Training of a row: its commands, its raw file, and the return of random actions."""

import importlib
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rows import FAMILIES, GPU, PAIRS, Pair, make_config, settings
from tables import ROOT, read
from three_iterations import hash_program

from common.environment import make_env
from runner.devices.evaluation import episode_limit, evaluate
from runner.options.parse import to_flags
from runner.report.statistics import summarize

FINAL_EPISODES = 100
RANDOM_EPISODES, MAX_STEPS = 1_000, 10_000


def pairs_to_train(only: list[str], gpu: bool) -> list[Pair]:
    """The pairs of these names, or all that have no raw file yet; either those of GPU size or the others.

    Raises:
        ValueError: a name that none of them has.
    """
    pairs = [pair for pair in PAIRS if (pair in FAMILIES[GPU]) == gpu]
    if unknown := set(only) - {pair.name for pair in pairs}:
        hint = "; add --gpu" if unknown <= {pair.name for pair in FAMILIES[GPU]} else ""
        raise ValueError(f"unknown: {', '.join(unknown)}{hint}; there are {', '.join(pair.name for pair in pairs)}")
    return [pair for pair in pairs if pair.name in only or (not only and not pair.path.exists())]


def folder_of(pair: Pair, out: Path) -> Path:
    """The folder of a pair's run."""
    changes = [f"{field}-{value}" for field, value in pair.changes]
    return out / pair.script / pair.env / "-".join(filter(None, ["results", pair.preset, *changes]))


def train(pair: Pair, out: Path) -> dict[str, Any]:
    """Train a pair, or continue it, and return what its raw file says."""
    folder = folder_of(pair, out)
    train_command = [*pair.command, "--env", pair.env, "--num-seeds", str(pair.num_seeds)]
    if pair.preset:
        train_command += ["--preset", pair.preset]
    train_command += to_flags(dict(pair.changes)) + ["--eval-sampled"] * pair.is_sampled
    train_command += ["--eval-episodes", str(pair.eval_episodes)] * (pair.eval_episodes != Pair.eval_episodes)
    record = read(folder / "config.json") if (folder / "config.json").exists() else None
    if record and (record["config"], record["options"]["eval_sampled"]) != (settings(pair), pair.is_sampled):
        sys.exit(f"{folder} was trained with other settings than the preset of today: remove it")
    begin = [*train_command, "--out", str(out), "--name", folder.name]
    if not (folder / "timing.json").exists():
        stopped = (folder / "config.json").exists()
        call([*pair.command, "--resume", str(folder)] if stopped else begin)
        timing = {} if stopped else read(folder / "summary.json")["timing"]  # a command times its own part alone
        (folder / "timing.json").write_text(json.dumps(timing))
    call([*pair.command, "--resume", str(folder), "--eval-episodes", str(FINAL_EPISODES)])
    timing, summary, record = (read(folder / f"{name}.json") for name in ("timing", "summary", "config"))
    with np.load(folder / "metrics.npz") as metrics:
        steps, returns = metrics["eval_env_steps"], metrics["eval_episode_return"]
        achieved = achievements(dict(metrics))
    return {
        "script": pair.script,
        "env": pair.env,
        "program": in_a_process(program, pair),
        "command": "python " + " ".join(train_command),
        "final_evaluation": f"--resume RUN --eval-episodes {FINAL_EPISODES}",
        "date": date.today().isoformat(),
        "git_commit": record["git_commit"],
        "config": record["config"],
        "timing": timing,
        **{name: summary[name] for name in ("device", "platform", "python", "packages")},
        "eval_env_steps": steps.tolist(),
        "eval_episode_return": [[round(float(x), 3) for x in row] for row in returns],  # [num_seeds, num_evaluations]
        "final_episode_return": [round(x, 3) for x in summary["eval_episode_return"]["per_seed"]],  # [num_seeds]
        "random_episode_return": round(in_a_process(random_return, pair.env), 3),
        **({"achievements": achieved} if achieved else {}),
    }


def achievements(metrics: dict[str, np.ndarray]) -> dict[str, float]:
    """The per cent of Craftax' training episodes with each achievement, the mean over the seeds and the last tenth of
    the iterations; empty for other suites."""
    last = {name: x[:, -max(1, x.shape[1] // 10) :] for name, x in metrics.items() if name.startswith("Achievements/")}
    return {name.partition("/")[2]: round(float(np.nanmean(x)), 1) for name, x in last.items()}


def program(pair: Pair) -> str:
    """The hash of what a seed of a pair computes."""
    return hash_program(importlib.import_module(pair.script).make(make_config(pair)))


def random_return(name: str) -> float:
    """Mean return of RANDOM_EPISODES whole episodes of uniformly random actions."""
    env = make_env(name)

    def act(obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, action_key = jax.random.split(key)
        return jax.vmap(env.action_space.sample)(jax.random.split(action_key, len(obs))), key

    @jax.jit
    def play(act_key: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        return evaluate(env, act, act_key, key, RANDOM_EPISODES, episode_limit(env, MAX_STEPS))

    return float(play(jax.random.key(0), jax.random.key(1))["episode_return"].mean())


def in_a_process(function: Callable, argument: Any) -> Any:
    """Call a function in a process of its own: on a GPU JAX takes most of the memory until its process ends."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


def call(command: list[str]) -> None:
    """Run a script; its output is shown."""
    print("python", *command, flush=True)
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)


def show(pair: Pair, raw: dict[str, Any], recorded: dict[str, Any] | None) -> None:
    """Print the new score, and whether it is within the recorded interval."""
    new = digits(summarize(np.array(raw["final_episode_return"])))
    print("{}: IQM {iqm} ({ci_low} to {ci_high}), worst seed {min}".format(pair.name, **new))
    if recorded:
        old = digits(summarize(np.array(recorded["final_episode_return"])))
        within = "within" if old["ci_low"] <= new["iqm"] <= old["ci_high"] else "OUTSIDE"
        print("recorded: IQM {iqm}; the new one is {} its interval of {ci_low} to {ci_high}".format(within, **old))


def digits(summary: dict[str, float]) -> dict[str, float]:
    """Four digits of each number: those behind them differ with the order of a sum."""
    return {name: float(f"{x:.4g}") for name, x in summary.items()}
