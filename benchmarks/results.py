"""Scores of the presets over many seeds: for each script and environment a raw file, a row and a curve.

    python benchmarks/results.py                          # every pair that has no raw file yet
    python benchmarks/results.py --only ppo/CartPole-v1   # this one, again, next to what is recorded
    python benchmarks/results.py --gpu                    # the pairs of GPU size, on a GPU, instead of the others
    python benchmarks/results.py --report                 # pages and pictures, from the raw files alone
    python benchmarks/results.py --stale                  # the rows whose program is another one today
    python benchmarks/results.py --restamp COMMIT         # those of them that compute what that of COMMIT computed

A pair is trained on seeds 0 to 19 with a preset of its script, evaluated 20 times while it trains (32 whole episodes
for each seed) and at the end over 100 whole episodes for each seed. A training run that was stopped is continued, and
one that has ended is not repeated: remove its folder, `runs/<script>/<env>/results`, to train it afresh. The raw file
`results/raw/<script>-<env>.json` has the commands, every seed's curve and final score, and the machine. Folder and
file of a preset with a name end in `-<name>`, those of a changed setting in `-<field>-<value>`.
"""

import argparse
import csv
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullFormatter, PercentFormatter

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "variants"), str(ROOT / "benchmarks")]

import hidden_velocity  # noqa: E402, F401  # registers its environments

from common.environment import make_env  # noqa: E402
from common.presets import preset  # noqa: E402
from runner.cli.parse import to_flags  # noqa: E402
from runner.devices.evaluation import episode_limit, evaluate  # noqa: E402
from runner.report.plots import style  # noqa: E402
from runner.report.statistics import (  # noqa: E402
    aggregate_iqm,
    bootstrap_interval,
    confidence_interval,
    iqm,
    mean_share,
    probability_of_improvement,
    summarize,
)

FOLDER = ROOT / "benchmarks"
RAW = FOLDER / "results" / "raw"
README, BEGIN, END = ROOT / "README.md", "<!-- made by benchmarks/results.py -->", "<!-- end -->"
MADE, NAMED = (FOLDER / "RESULTS.md", FOLDER / "GPU.md"), "<!-- made by benchmarks/results.py: {} -->"
FINAL_EPISODES = 100
RANDOM_EPISODES, MAX_STEPS = 1_000, 10_000
# Of the curves; a script differs from the others in line style and marker, not only in colour (Okabe and Ito).
LOOKS = {
    "ppo": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "dqn": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "sac": {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    "td3": {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    "pqn": {"color": "#56B4E9", "linestyle": (0, (6, 1)), "marker": "v"},
    "reppo": {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "X"},
    "categorical_dqn": {"color": "#000000", "linestyle": (0, (3, 1, 1, 1)), "marker": "P"},
    "ppo_rnn": {"color": "#8C564B", "linestyle": (0, (2, 1)), "marker": "d"},
    "sac_discrete": {"color": "#7F7F7F", "linestyle": (0, (1, 1)), "marker": "<"},
}
PANEL = 2.6, 1.75  # inches; two panels beside each other are still readable on a phone
MIN_EVALUATIONS = 5  # of a curve
SHARES = np.linspace(0.1, 1.0, 19)  # of a budget
EQUAL = ("bit-equal", "equal to rounding")  # what `likeness` says of programs that compute the same
SHORT_ITERATION = 4  # cycles of collecting and learning


@dataclass(frozen=True)
class Pair:
    """A script, an environment, which of its presets, and what is known of them."""

    script: str
    env: str
    bar: float | None = None  # the goal for its return
    published: str = "none"  # the best published number, its env steps and its source
    num_seeds: int = 20
    preset: str = ""  # its name; "": the one without
    best: float | None = None  # the best number in `published`
    changes: tuple[tuple[str, Any], ...] = ()  # fields of the Config that differ from the preset, and their values
    is_sampled: bool = False  # scores are of sampled actions, as the published one

    @property
    def name(self) -> str:
        """`ppo/CartPole-v1`, with a named preset `ppo/brax/reacher/small`, with a change `dqn/CartPole-v1/n_step=1`."""
        changes = ",".join(f"{field}={value}" for field, value in self.changes)
        return "/".join(filter(None, [self.script, self.env, self.preset, changes]))

    @property
    def flags(self) -> str:
        """The changes as they are typed."""
        return " ".join(to_flags(dict(self.changes)))

    @property
    def file(self) -> str:
        """The script's path from the root."""
        return f"{self.script}.py" if (ROOT / f"{self.script}.py").exists() else f"variants/{self.script}.py"

    @property
    def command(self) -> list[str]:
        """What stands behind `python`: the script, and before it the one that registers the environment."""
        return [*["benchmarks/hidden_velocity.py"] * self.env.endswith("-hidden-velocity"), self.file]

    @property
    def path(self) -> Path:
        """The raw file."""
        return RAW / f"{re.sub('[/:=,]', '-', self.name)}.json"


HEADLINE, GPU, OPTIONS = "Classic control", "Presets of GPU size", "Options"
# The settings of PPO and recurrent PPO where one observation is not enough; the same for both.
CHAIN = (("total_timesteps", 100_000), ("num_envs", 16), ("num_steps", 64), ("learning_rate", 2.5e-3))
HIDDEN = (*CHAIN[1:], ("total_timesteps", 200_000), ("normalize_obs", True), ("normalize_reward", True))
CRAFTAX = "craftax/Craftax-Symbolic-v1"
LONG = (("total_timesteps", 5_240_000), ("gamma", 0.99))
REPLAY = (("total_timesteps", 300_000), ("buffer_size", 300_000), ("gamma", 0.99))
CRAFTAX_RNN = "2.3 %, about 5.20, at 1M (Craftax-1M)"
MINATAR = {
    "Asterix-MinAtar": "PPO 15.0 (OPEN), 17.8 (blines), at 10M",
    "Breakout-MinAtar": "PPO 50.1 (OPEN), 43.4 (blines), at 10M",
    "Freeway-MinAtar": "PPO 61.8 (OPEN), 58.8 (blines), at 10M",
    "SpaceInvaders-MinAtar": "PPO 167 (OPEN), 132 (blines), at 10M",
    "Seaquest-MinAtar": "none",
}


def minatar(script: str, preset: str = "") -> list[Pair]:
    """The five games."""
    return [Pair(script, env, None, published, 5, preset) for env, published in MINATAR.items()]


# Zoo: RL Baselines3 Zoo, one agent, deterministic evaluation. SLM: SLM-Lab 5, 4 seeds, training return.
# blines: gymnax-blines, 1 seed, 164 rollouts with sampled actions. OPEN: PPO with tuned Adam, by which
# rl-learned-optimization normalises. The others: RESULTS.md and GPU.md.
FAMILIES = {
    HEADLINE: [
        Pair("ppo", "CartPole-v1", 475.0, "500 at 100k (Zoo)", best=500.0),
        Pair("dqn", "CartPole-v1", 475.0, "500 at 50k (Zoo)", best=500.0),
        Pair("ppo", "Acrobot-v1", -78.0, "-73.5 at 1M (Zoo); -78.9 at 500k (blines)", best=-73.5),
        Pair("dqn", "Acrobot-v1", -77.0, "-76.6 at 100k (Zoo)", best=-76.6),
        Pair("ppo", "MountainCar-v0", -112.0, "-110.4 at 1M (Zoo)", best=-110.4),
        Pair("dqn", "MountainCar-v0", -102.0, "-100.8 at 120k (Zoo)", best=-100.8),
        Pair("ppo", "Pendulum-v1", -160.0, "-172.2 at 100k (Zoo); -174.9 at 300k (SLM)", best=-172.2),
        Pair("sac", "Pendulum-v1", -150.0, "-157.0 at 20k (Zoo); -151.0 at 300k (SLM)", best=-151.0),
        Pair("td3", "Pendulum-v1", -150.0, "-151.9 at 20k (Zoo)", best=-151.9),
        Pair("ppo", "MountainCarContinuous-v0", 92.0, "88.3 at 20k (Zoo, gSDE)", best=88.3),
        Pair("sac", "MountainCarContinuous-v0", 94.0, "94.7 at 50k (Zoo, gSDE)", best=94.7),
        Pair("td3", "MountainCarContinuous-v0", 94.0, "93.5 at 300k (Zoo, Ornstein-Uhlenbeck noise)", best=93.5),
    ],
    "MinAtar, as gymnax has it": [
        *minatar("ppo", "small"),
        *minatar("dqn"),
    ],
    "bsuite and misc, as gymnax has them": [
        Pair("ppo", "Catch-bsuite"),
        Pair("dqn", "Catch-bsuite"),
        Pair("ppo", "DeepSea-bsuite"),
        Pair("dqn", "DeepSea-bsuite"),
        Pair("ppo", "FourRooms-misc"),
        Pair("dqn", "FourRooms-misc"),
        Pair("ppo", "PointRobot-misc"),
        Pair("sac", "PointRobot-misc"),
        Pair("td3", "PointRobot-misc"),
        Pair("ppo", "Reacher-misc"),
        Pair("sac", "Reacher-misc"),
        Pair("td3", "Reacher-misc"),
        Pair("ppo", "Swimmer-misc"),
        Pair("sac", "Swimmer-misc"),
        Pair("td3", "Swimmer-misc"),
    ],
    "Brax": [
        Pair("ppo", "brax/inverted_pendulum", num_seeds=5),
        Pair("sac", "brax/inverted_pendulum", num_seeds=5),
        Pair("td3", "brax/inverted_pendulum", num_seeds=5),
        Pair("ppo", "brax/reacher", num_seeds=5, preset="small"),
        Pair("sac", "brax/reacher", num_seeds=5),
        Pair("td3", "brax/reacher", num_seeds=5),
        Pair("ppo", "brax/hopper:backend=spring", num_seeds=10, preset="small"),
        Pair("sac", "brax/hopper:backend=spring", num_seeds=10),
        Pair("td3", "brax/hopper:backend=spring", num_seeds=10),
        Pair("ppo", "brax/hopper", None, "2522 at 5.24M (synthetic-gymnax)", 5, "small", 2522.0, LONG),
        Pair("sac", "brax/hopper", None, "3119 at 5.24M (synthetic-gymnax)", 4, "", changes=REPLAY),
        Pair("td3", "brax/hopper", None, "3326 at 5.24M (synthetic-gymnax)", 4, "", changes=REPLAY),
        Pair("ppo", "brax/halfcheetah:backend=spring", num_seeds=5, preset="small"),
        Pair("sac", "brax/halfcheetah:backend=spring", num_seeds=5),
        Pair("td3", "brax/halfcheetah:backend=spring", num_seeds=5),
        Pair("ppo", "brax/walker2d:backend=spring", num_seeds=5, preset="small"),
        Pair("sac", "brax/walker2d:backend=spring", num_seeds=5),
        Pair("td3", "brax/walker2d:backend=spring", num_seeds=5),
        Pair("ppo", "brax/ant:backend=spring", num_seeds=5, preset="small"),
        Pair("sac", "brax/ant:backend=spring", num_seeds=5),
        Pair("td3", "brax/ant:backend=spring", num_seeds=5),
    ],
    "Variants": [
        Pair("categorical_dqn", "CartPole-v1", 475.0, "500 at 50k (Zoo, QR-DQN); 491.1 at 500k (CleanRL)", best=500.0),
        Pair(
            "categorical_dqn", "Acrobot-v1", -77.0, "-69.1 at 100k (Zoo, QR-DQN); -86.7 at 500k (CleanRL)", best=-69.1
        ),
        Pair("categorical_dqn", "MountainCar-v0", -102.0, "-106.0 at 120k (Zoo, QR-DQN)", best=-106.0),
        *minatar("categorical_dqn"),
        Pair("categorical_dqn", "Catch-bsuite"),
        Pair("categorical_dqn", "DeepSea-bsuite"),
        Pair("pqn", "CartPole-v1", 475.0, "495.1 at 500k (CleanRL)", best=495.1),
        Pair("pqn", "Acrobot-v1", -85.0, "-95.6 at 500k (CleanRL)", best=-95.6),
        *minatar("pqn", "small"),
        Pair("reppo", "Pendulum-v1", -150.0),
        Pair("reppo", "brax/inverted_pendulum", 1000.0, num_seeds=5),
        Pair("reppo", "brax/hopper:backend=spring", 1440.0, num_seeds=5, preset="small"),
        Pair("sac_discrete", "CartPole-v1", 475.0),
        Pair("ppo_rnn", "MemoryChain-bsuite", 0.9),
        Pair("ppo_rnn", "MemoryChain-bsuite:memory_length=16", 0.9, changes=CHAIN[:1]),
        Pair("ppo", "MemoryChain-bsuite:memory_length=16", changes=CHAIN),
        Pair("ppo_rnn", "CartPole-hidden-velocity", 475.0, changes=HIDDEN),
        Pair("ppo", "CartPole-hidden-velocity", changes=HIDDEN),
    ],
    "Other suites": [
        Pair("ppo", "playground/CartpoleBalance", num_seeds=2, preset="small"),
        Pair("ppo", "navix/Navix-Empty-5x5-v0", num_seeds=5),
        Pair("ppo", "xminigrid/MiniGrid-Empty-5x5", num_seeds=5),
        Pair("ppo", "pgx/minatar-breakout", num_seeds=5, preset="small"),
        Pair("ppo", CRAFTAX, None, "2.2 %, about 4.97, at 1M (Craftax-1M)", 5, "small", 4.97, is_sampled=True),
        Pair("ppo_rnn", CRAFTAX, None, CRAFTAX_RNN, 5, "small", 5.20, is_sampled=True),
        Pair("ppo_rnn", CRAFTAX, None, CRAFTAX_RNN, 5, "small", changes=(("cell", "lstm"),), is_sampled=True),
    ],
    OPTIONS: [  # an option switched on that the preset does not have, or off that it has
        Pair("ppo", "Acrobot-v1", changes=(("layer_norm", False),)),
        Pair("ppo", "Pendulum-v1", changes=(("layer_norm", False),)),
        Pair("dqn", "CartPole-v1", changes=(("layer_norm", False),)),
        Pair("dqn", "CartPole-v1", changes=(("n_step", 1),)),
        Pair("dqn", "Acrobot-v1", num_seeds=10, changes=(("layer_norm", False),)),
        Pair("dqn", "Acrobot-v1", num_seeds=10, changes=(("n_step", 3),)),
        Pair("sac", "MountainCarContinuous-v0", changes=(("noise_steps", 1),)),
        Pair("td3", "MountainCarContinuous-v0", changes=(("noise_steps", 1),)),
    ],
    GPU: [
        Pair("ppo", "playground/CartpoleBalance", None, "1000 (REPPO); 1000 at 60M (Playground)", 3, best=1000.0),
        Pair("ppo", "playground/CheetahRun", None, "748 (REPPO); 825 at 60M (Playground)", 3, best=825.0),
        Pair("ppo", "playground/WalkerWalk", None, "847 (REPPO); 969 at 60M (Playground)", 3, best=969.0),
        Pair("ppo", "brax/ant:backend=positional", None, "about 5,850 at 25M (Brax)", 3),
        Pair("reppo", "playground/CheetahRun", None, "930 (REPPO)", 3, best=930.0),
        Pair("ppo", "craftax/Craftax-Classic-Symbolic-v1", None, "90 % of the optimum at 1,000M (Craftax)", 3),
        Pair("ppo", "Asterix-MinAtar", None, MINATAR["Asterix-MinAtar"], best=17.8),
        Pair("ppo", "Breakout-MinAtar", None, MINATAR["Breakout-MinAtar"], best=50.1),
        Pair("ppo", "Freeway-MinAtar", None, MINATAR["Freeway-MinAtar"], best=61.8),
        Pair("ppo", "SpaceInvaders-MinAtar", None, MINATAR["SpaceInvaders-MinAtar"], best=167.0),
        Pair("ppo", "Seaquest-MinAtar"),
    ],
}
PAIRS = [pair for pairs in FAMILIES.values() for pair in pairs]
HIGHLIGHTS = (  # of README.md
    "ppo/CartPole-v1",
    "ppo/Pendulum-v1",
    "dqn/Acrobot-v1",
    "dqn/MountainCar-v0",
    "sac/Pendulum-v1",
    "td3/MountainCarContinuous-v0",
)


# -- Training --------------------------------------------------------------------------------------


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


def train(pair: Pair, out: Path) -> dict[str, Any]:
    """Train a pair, or continue it, and return what its raw file says."""
    changes = [f"{field}-{value}" for field, value in pair.changes]
    name = "-".join(filter(None, ["results", pair.preset, *changes]))
    folder = out / pair.script / pair.env / name
    train_command = [*pair.command, "--env", pair.env, "--num-seeds", str(pair.num_seeds)]
    if pair.preset:
        train_command += ["--preset", pair.preset]
    train_command += to_flags(dict(pair.changes)) + ["--eval-sampled"] * pair.is_sampled
    record = read(folder / "config.json") if (folder / "config.json").exists() else None
    if record and (record["config"], record["options"]["eval_sampled"]) != (settings(pair), pair.is_sampled):
        sys.exit(f"{folder} was trained with other settings than the preset of today: remove it")
    begin = [*train_command, "--out", str(out), "--name", name]
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
        "program": in_a_process(program, pair.name),
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
    """Of Craftax: the per cent of an iteration's training episodes with each achievement, the mean over the seeds and
    over the last tenth of the iterations; empty for other suites."""
    last = {name: x[:, -max(1, x.shape[1] // 10) :] for name, x in metrics.items() if name.startswith("Achievements/")}
    return {name.partition("/")[2]: round(float(np.nanmean(x)), 1) for name, x in last.items()}


def settings(pair: Pair) -> dict[str, Any]:
    """The settings of a pair, as config.json has them."""
    return json.loads(json.dumps(asdict(make_config(pair))))


def make_config(pair: Pair) -> Any:
    """The Config of a pair: its preset with the changes."""
    return preset(importlib.import_module(pair.script).Config, pair.env, pair.preset, **dict(pair.changes))


def program(name: str) -> str:
    """SHA-256 of what a lane of a pair computes: its `init` and `step` as StableHLO, which depends on JAX' version."""
    (pair,) = (pair for pair in PAIRS if pair.name == name)
    jax.clear_caches()  # after other programs in a process the hash may be another one than alone
    algorithm = importlib.import_module(pair.script).make(make_config(pair))
    key = jax.eval_shape(jax.random.key, 0)
    iteration = jax.ShapeDtypeStruct((), jax.numpy.int32)
    programs = (algorithm.init, key), (algorithm.step, jax.eval_shape(algorithm.init, key), iteration)
    texts = [jax.jit(function).lower(*arguments).as_text() for function, *arguments in programs]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def find_stale(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A line for each row of a program that is not today's, or of which that cannot be told."""
    lines = []
    for pair, raw in raws.items():
        version, device = raw["packages"]["jax"], raw["device"]
        if "program" not in raw:
            lines.append(f"{pair.name}: recorded at {raw['git_commit'][:7]}, before programs were compared")
        elif version != jax.__version__ or device.endswith("cpu") != (jax.default_backend() == "cpu"):
            lines.append(f"{pair.name}: recorded with jax {version} on {device}, compare it there")
        elif program(pair.name) != raw["program"]:
            lines.append(f"{pair.name}: recorded at {raw['git_commit'][:7]}, the program is another one today")
    return lines


def restamp(pair: Pair, raw: dict[str, Any], commit: str, earlier: Path) -> str:
    """Compare today's program of a row with that of `commit`, checked out in `earlier`, by three iterations of both.

    The row gets `restamped`, what was found, in a few words. If that is one of EQUAL it also gets today's `program`,
    and the recorded one as `earlier_program`. Where whole iterations of a replay script differ, those of a few cycles
    are compared: over the thousand updates of an iteration rounding grows without bound.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(raw["config"]))
        before, today = _three_iterations((earlier, ROOT), pair.script, config)
        if str(before["program"]) != raw["program"]:
            return f"its program is not that of {commit}"
        found = likeness(before, today)
        if found not in EQUAL and "steps_per_iteration" in raw["config"]:
            found = likeness(*_three_iterations((earlier, ROOT), pair.script, config, cycles=SHORT_ITERATION))
    raw |= {"restamped": found}
    if found in EQUAL:
        raw |= {"program": str(today["program"]), "earlier_program": raw.get("earlier_program", raw["program"])}
    pair.path.write_text(dump(raw))
    return found


def _three_iterations(
    roots: tuple[Path, ...], script: str, config: Path, cycles: int = 0
) -> list[dict[str, np.ndarray]]:
    """What benchmarks/three_iterations.py finds of the program in each working tree, side by side."""
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


def in_a_process(function: Callable[[str], float], argument: str) -> float:
    """Call a function in a process of its own: on a GPU JAX takes most of the memory until its process ends."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


def call(command: list[str]) -> None:
    """Run a script; its output is shown."""
    print("python", *command, flush=True)
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)


# -- Report ----------------------------------------------------------------------------------------


def table(raws: dict[Pair, dict[str, Any]], folder: Path, columns: tuple[str, ...] = ()) -> list[str]:
    """A Markdown table of these columns (all if none is named), with links as they are from `folder`."""
    rows = [cells(pair, raw, folder) for pair, raw in raws.items()]
    columns = columns or tuple(rows[0])
    return markdown(columns, ([row[column] for column in columns] for row in rows))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows]]


def cells(pair: Pair, raw: dict[str, Any], folder: Path) -> dict[str, str]:
    """The row of a pair, by column."""
    scores = np.array(raw["final_episode_return"])
    x = summarize(scores)
    digits = 1 if np.abs(scores).max() >= 10 else 2
    seeds = f"{len(scores)}"
    sampled = "sampled actions" if pair.is_sampled else ""
    earlier = "" if "program" in raw else ", earlier program"
    if pair.bar is not None:
        seeds = f"{(scores >= pair.bar).sum()} of {seeds} reach {pair.bar:g}"
    return {
        "script": f"[`{pair.file}`]({os.path.relpath(pair.path, folder)})",
        "environment": ", ".join(filter(None, [pair.env, pair.preset, pair.flags and f"`{pair.flags}`", sampled])),
        "env steps per seed": f"{raw['eval_env_steps'][-1]:,}",
        "IQM": f"{x['iqm']:.{digits}f}",
        "95 % interval": f"{x['ci_low']:.{digits}f} to {x['ci_high']:.{digits}f}",
        "mean": f"{x['mean']:.{digits}f}",
        "worst quarter": f"{x['worst_quarter']:.{digits}f}",
        "worst seed": f"{x['min']:.{digits}f}",
        "failed seeds": str(count_failed(raw)),
        "seeds": seeds,
        "random actions": f"{raw['random_episode_return']:.{digits}f}",
        "best published": pair.published,
        "time": (f"{raw['timing']['wall_seconds']:.0f} s" if raw["timing"] else "not timed") + earlier,
    }


def count_failed(raw: dict[str, Any]) -> int:
    """Seeds that end below half of the way from random actions to the IQM of the row."""
    scores, random = np.array(raw["final_episode_return"]), raw["random_episode_return"]
    return int(np.sum(scores < (random + iqm(scores)) / 2))


SHORT = (
    "script",
    "environment",
    "env steps per seed",
    "IQM",
    "95 % interval",
    "worst seed",
    "best published",
)


def blocks(raws: dict[Pair, dict[str, Any]]) -> dict[str, list[str]]:
    """What is made between the comments of RESULTS.md and GPU.md: name of the comment -> lines."""
    others = {pair: raw for pair, raw in raws.items() if pair not in FAMILIES[GPU]}
    counted = [pair for pair in others if pair.bar is not None or not pair.changes]
    seeds = [(count_failed(raws[pair]), len(raws[pair]["final_episode_return"])) for pair in counted]
    made = {slug(family): family_table(family, raws) for family in FAMILIES}
    which = "without the rows of GPU.md and those that change a preset and have no bar"
    made["failed"] = ["{} of {} seeds have failed, {}.".format(*np.sum(seeds, axis=0), which)]
    made |= {"achievements": achievement_table(others), "beside-dqn": beside_dqn(raws), "bars": bars(raws)}
    return made | {"programs": restamped(raws), "aggregate": aggregate_table(raws), "speed": speed_table()}


def filled(page: Path, raws: dict[Pair, dict[str, Any]]) -> str:
    """The text of a page with what is made today between its comments."""
    text = page.read_text()
    for name, lines in blocks(raws).items():
        if (begin := NAMED.format(name)) in text:
            text = with_table(text, begin, lines)
    return text


def family_table(family: str, raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """The table of a family, its picture, and which of its rows are not measured."""
    measured = {pair: raws[pair] for pair in FAMILIES[family] if pair in raws}
    missing = [pair.name for pair in FAMILIES[family] if pair not in raws]
    picture = f"![Evaluation curves](results/{picture_of(family)})"
    lines = [*table(measured, FOLDER), "", picture] if measured and family != OPTIONS else []
    if family == OPTIONS:
        lines = option_table(measured, raws)
    return [*lines, "", f"Not measured yet: {', '.join(missing)}."] if missing else lines


def restamped(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """How many rows were recorded with a program that computes what today's does, and which were not.

    A row that was not compared has today's program; where it does not, --stale says so.
    """
    rows = {pair: raw.get("restamped") for pair, raw in raws.items() if raw["device"].endswith("cpu")}
    equal, rounded, today = (sum(found == kind for found in rows.values()) for kind in (*EQUAL, None))
    others = [f"`{pair.name}`" for pair, found in rows.items() if found not in (*EQUAL, None)]
    counts = f"{equal} rows are bit-equal, {rounded} equal to rounding, {today} recorded with today's program."
    return [counts, f"Another program: {', '.join(others) or 'none'}."]


def achievement_table(measured: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of what was achieved at all, most often first, with a column for each row that has it."""
    columns = {pair: raw["achievements"] for pair, raw in measured.items() if "achievements" in raw}
    best = {name: max(x.get(name, 0.0) for x in columns.values()) for x in columns.values() for name in x}
    names = sorted((name for name in best if best[name] > 0), key=lambda name: -best[name])
    titles = [f"`{' '.join(filter(None, [pair.file, pair.flags]))}`" for pair in columns]
    rows = [(name.replace("_", " "), *(f"{x.get(name, 0.0):.1f}" for x in columns.values())) for name in names]
    return markdown(("achievement", *titles), rows)


def option_table(measured: dict[Pair, dict[str, Any]], raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of the options: each beside the first seeds of the row of its preset, as many as it has."""
    measures = "IQM", "worst seed", "seeds"
    columns = ("script", "environment", "changed", "IQM of the preset", *measures, "P(changed > preset)")
    lines = []
    for pair, raw in measured.items():
        row, base = cells(pair, raw, FOLDER), replace(pair, changes=())
        (preset,) = (raws[other] for other in raws if other.name == base.name)
        scores = preset["final_episode_return"][: len(raw["final_episode_return"])]
        preset = preset | {"final_episode_return": scores}
        line = [row["script"], pair.env, f"`{pair.flags}`", cells(base, preset, FOLDER)["IQM"]]
        lines.append([*line, *(row[name] for name in measures), improvement(raw, preset)])
    return markdown(columns, lines)


def beside_dqn(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of categorical DQN's rows: each beside that of DQN, of the same env steps and seeds."""
    lines, scores = [], ("IQM", "worst seed")
    for pair, raw in raws.items():
        dqn = replace(pair, script="dqn").name
        for base in (other for other in raws if pair.script == "categorical_dqn" and other.name == dqn):
            found = [cells(x, raws[x], FOLDER)[column] for x in (base, pair) for column in scores]
            lines.append([pair.env, *found, improvement(raw, raws[base])])
    titles = ("DQN, IQM", "worst seed", "categorical DQN, IQM", "worst seed", "P(categorical DQN > DQN)")
    return markdown(("environment", *titles), lines)


def improvement(raw: dict[str, Any], base: dict[str, Any]) -> str:
    """The probability that a seed of a row scores higher than one of another row, with its interval."""
    scores = [np.array(x["final_episode_return"]) for x in (raw, base)]
    return "{:.2f}, {:.2f} to {:.2f}".format(*probability_of_improvement([scores]))


def bars(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of all rows with a goal or a published number."""
    columns, lines = ("script", "environment", "env steps per seed", "IQM"), []
    for pair, raw in raws.items():
        if pair.bar is not None or pair.best is not None:
            row, x = cells(pair, raw, FOLDER), summarize(np.array(raw["final_episode_return"]))
            lines.append([*(row[column] for column in columns), *reached(x, pair.bar), *reached(x, pair.best)])
    return markdown((*columns, "goal", "reached", "best published", "reached"), lines)


def reached(scores: dict[str, float], goal: float | None) -> list[str]:
    """The cells of a goal: its value, and whether an IQM reaches it, rounded as the goals are."""
    if goal is None:
        return ["", ""]
    decimals = max(1, len(f"{goal:g}".partition(".")[2]))
    if round(scores["iqm"], decimals) >= goal:
        return [f"{goal:g}", "yes"]
    return [f"{goal:g}", "within" if scores["ci_high"] >= goal else "no"]


def aggregate_table(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of the normalised returns over all environments of a script, and the picture of their curves."""
    rows = []
    for script, samples in normalized_returns(raws).items():
        finals = [x[:, -1] for x in samples]
        values = [(f"{x:.3f}", f"{low:.3f} to {high:.3f}") for x, low, high in (aggregate_iqm(finals), beats(finals))]
        rows.append((f"`{script}.py`", f"{len(samples)}", *values[0], *values[1]))
    columns = ("script", "environments", "IQM", "95 % interval", "P(ours > published)", "95 % interval")
    return [*markdown(columns, rows), "", "![IQM over seeds and environments](results/aggregate.png)"]


def speed_table() -> list[str]:
    """A Markdown table of speed-gpu.csv."""
    with (FOLDER / "results" / "speed-gpu.csv").open(newline="") as file:
        lines = [list(row.values()) for row in csv.DictReader(file)]
    rows = [(f"`{case}`", name, n, f"{float(rate):,.0f}", ratio) for case, name, n, _, rate, ratio, *_ in lines]
    return markdown(("case", "library", "lanes", "env steps/s", "ours over theirs"), rows)


def with_table(text: str, begin: str, lines: list[str]) -> str:
    """A page with other lines between the comments `begin` and END."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    return "\n".join([before + begin, *lines, END + after])


def pages() -> dict[Path, list[Pair]]:
    """README.md and the page of each script: the rows of their tables."""
    scripts = dict.fromkeys(pair.script for pair in PAIRS)
    by_script = {script: [x for x in PAIRS if x.script == script and not x.changes] for script in scripts}
    return {README: [pair for pair in PAIRS if pair.name in HIGHLIGHTS]} | {
        ROOT / "docs" / f"{script}.md": pairs for script, pairs in by_script.items()
    }


def draw(raws: dict[Pair, dict[str, Any]]) -> None:
    """The pictures of RESULTS.md and GPU.md, of the rows that have a curve."""
    curves = {pair: raw for pair, raw in raws.items() if len(raw["eval_env_steps"]) >= MIN_EVALUATIONS}
    for family, pairs in FAMILIES.items():
        shown = {pair: curves[pair] for pair in pairs if pair in curves}
        if shown and family != OPTIONS:
            plot(FOLDER / "results" / picture_of(family), shown)
    plot_aggregate(FOLDER / "results" / "aggregate.png", normalized_returns(curves))


def picture_of(family: str) -> str:
    """Name of the file with a family's curves."""
    return f"curves-{slug(family)}.png"


def slug(family: str) -> str:
    """ "MinAtar, as gymnax has it" -> minatar."""
    return family.split(",")[0].lower().replace(" ", "-")


def normalized_returns(raws: dict[Pair, dict[str, Any]]) -> dict[str, list[np.ndarray]]:
    """Evaluation curves at the shares SHARES of their budgets, 0: random actions, 1: the best published number; script
    -> [num_seeds, len(SHARES)] for each environment that has one. At the end stands the final evaluation."""
    samples = {script: [] for script in LOOKS}
    for pair, raw in raws.items():
        if pair.best is not None:
            steps, low = np.array(raw["eval_env_steps"]), raw["random_episode_return"]
            curves = [np.interp(SHARES, steps / steps[-1], row) for row in raw["eval_episode_return"]]
            returns = np.column_stack([np.array(curves)[:, :-1], raw["final_episode_return"]])
            samples[pair.script].append((returns - low) / (pair.best - low))
    return {script: arrays for script, arrays in samples.items() if arrays}


def beats(scores: list[np.ndarray]) -> tuple[float, float, float]:
    """Probability that a random seed scores above 1, the mean over environments, and its 95 % interval; [num_seeds]
    for each environment."""
    wins = [np.where(np.isclose(x, 1.0), 0.5, x > 1.0) for x in scores]
    low, high = bootstrap_interval(wins, mean_share)
    return float(mean_share(*wins)), float(low), float(high)


@rc_context({"font.size": 9})
def plot_aggregate(path: Path, samples: dict[str, list[np.ndarray]]) -> None:
    """IQM over the environments with a published number, and its 95 % interval, against env steps."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for script, arrays in samples.items():
        points = [aggregate_iqm([x[:, i] for x in arrays]) for i in range(len(SHARES))]
        label = f"{script}, {len(arrays)} environment{'s' if len(arrays) > 1 else ''}"
        draw_curve(axes, script, SHARES, *np.array(points).T, label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.annotate("best published", (SHARES[0], 1.0), xytext=(0, 3), textcoords="offset points", fontsize="small")
    axes.set(xlabel="share of the environment steps", ylabel="normalised return, IQM")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    style(axes)
    axes.legend(frameon=False, fontsize="small", loc="lower right")
    figure.savefig(path, dpi=200)


@rc_context({"font.size": 9})
def plot(path: Path, raws: dict[Pair, dict[str, Any]]) -> None:
    """A grid of evaluation curves, a panel for each environment: IQM and 95 % interval over seeds.

    The evaluation before training is a marker at 0 without a line: nothing is known between it and the next one.
    """
    envs = list(dict.fromkeys(pair.env for pair in raws))
    num_columns = min(2 if len(envs) <= 6 else 3, len(envs))
    num_rows = -(-len(envs) // num_columns)
    figure = Figure(figsize=(PANEL[0] * num_columns, PANEL[1] * num_rows + 0.5), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    handles = {}
    for axes, env in zip(panels, envs, strict=False):
        shown = {pair: raw for pair, raw in raws.items() if pair.env == env}
        for pair, raw in shown.items():
            steps, returns = np.array(raw["eval_env_steps"]), np.array(raw["eval_episode_return"])
            middle, (low, high) = iqm(returns), confidence_interval(returns)
            for part in filter(np.any, (steps == 0, steps > 0)):
                band = (x[part] for x in (middle, low, high))
                handles[pair.script] = draw_curve(axes, pair.script, steps[part], *band, pair.script)
        axes.set_title(env, fontsize="medium" if len(env) <= 24 else "small")  # a longer one is cut off
        scale_steps(axes, [step for raw in shown.values() for step in raw["eval_env_steps"] if step > 0])
        axes.locator_params(axis="y", nbins=5)
        style(axes)
    for axes in panels[len(envs) :]:
        axes.set_visible(False)
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=5, frameon=False)
    figure.supxlabel("environment steps per seed (log scale)", fontsize="medium")
    figure.supylabel("episode return, IQM over seeds", fontsize="medium")
    figure.savefig(path, dpi=200)


def draw_curve(
    axes: Axes, script: str, x: np.ndarray, middle: np.ndarray, low: np.ndarray, high: np.ndarray, label: str
) -> Line2D:
    """A line in the look of its script, and the band around it."""
    look = LOOKS[script]
    axes.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
    (line,) = axes.plot(x, middle, **look, label=label, linewidth=1.4, markersize=4, markeredgewidth=0, clip_on=False)
    return line


def scale_steps(axes: Axes, steps: list[int]) -> None:
    """A logarithmic axis from the first of these env steps on, with a place for 0 before it.

    Budgets differ by a factor of ten. Powers of ten have a number, with those of 2 and 5 where these are at most three.
    """
    first, last = min(steps), 1.05 * max(steps)
    ticks = [digit * 10**power for power in range(9) for digit in range(1, 10)]
    inside = [tick for tick in ticks if first <= tick <= last]
    for digits in ("125", "15", "1"):
        labelled = [tick for tick in inside if str(tick)[0] in digits]
        if len(labelled) <= 3:
            break
    axes.set_xscale("symlog", linthresh=first, linscale=0.4)
    axes.set_xticks([0, *labelled])
    axes.set_xticks([tick for tick in inside if tick not in labelled], minor=True)
    axes.set_xlim(left=0, right=last)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="pairs such as dqn/Acrobot-v1, trained again")
    parser.add_argument("--gpu", action="store_true", help="train the pairs of GPU size instead of the others")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--stale", action="store_true", help="list the rows whose program is another one today")
    parser.add_argument("--restamp", metavar="COMMIT", help="renew the program of stale rows that compute the same")
    parser.add_argument("--out", type=Path, default=ROOT / "runs", help="folder of the training runs")
    arguments = parser.parse_args()
    try:
        pairs = pairs_to_train(arguments.only, arguments.gpu)
    except ValueError as error:
        parser.error(str(error))
    if arguments.stale:
        print(*find_stale({pair: read(pair.path) for pair in PAIRS if pair.path.exists()}), sep="\n")
        return
    if arguments.restamp:
        restamp_all(arguments.restamp, arguments.only)
    RAW.mkdir(parents=True, exist_ok=True)
    for pair in pairs if not (arguments.report or arguments.restamp) else ():
        recorded = read(pair.path) if pair.path.exists() else None
        raw = train(pair, arguments.out.resolve())
        pair.path.write_text(dump(raw))
        show(pair, raw, recorded)
    raws = {pair: read(pair.path) for pair in PAIRS if pair.path.exists()}
    for page in MADE:
        page.write_text(filled(page, raws))
    for page, pairs in pages().items():
        rows = {pair: raws[pair] for pair in pairs if pair in raws}
        page.write_text(with_table(page.read_text(), BEGIN, table(rows, page.parent, SHORT)))
    draw(raws)


def restamp_all(commit: str, only: list[str]) -> None:
    """`restamp` the stale rows, or those of them that are named, and print what was found."""
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder, "earlier")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", earlier, commit], cwd=ROOT, check=True)
        try:
            for pair in PAIRS:
                if pair.path.exists() and (not only or pair.name in only):
                    raw = read(pair.path)
                    lines = find_stale({pair: raw})
                    if lines and lines[0].endswith("another one today"):
                        print(f"{pair.name}: {restamp(pair, raw, commit, earlier)}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", earlier], cwd=ROOT, check=True)


def read(path: Path) -> dict[str, Any]:
    """A file of JSON."""
    return json.loads(path.read_text())


def dump(raw: dict[str, Any]) -> str:
    """JSON with a line for each field, and for each seed of a curve."""
    fields = []
    for name, x in raw.items():
        is_table = isinstance(x, list) and x and isinstance(x[0], list)
        text = "[\n  " + ",\n  ".join(map(json.dumps, x)) + "\n]" if is_table else json.dumps(x)
        fields.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def show(pair: Pair, raw: dict[str, Any], recorded: dict[str, Any] | None) -> None:
    """Print the new score, and whether it is within the recorded interval."""
    new = summarize(np.array(raw["final_episode_return"]))
    interval = f"{new['ci_low']:.1f} to {new['ci_high']:.1f}"
    print(f"{pair.name}: IQM {new['iqm']:.1f} ({interval}), worst seed {new['min']:.1f}")
    if recorded:
        old = summarize(np.array(recorded["final_episode_return"]))
        within = "within" if old["ci_low"] <= new["iqm"] <= old["ci_high"] else "OUTSIDE"
        interval = f"{old['ci_low']:.1f} to {old['ci_high']:.1f}"
        print(f"recorded: IQM {old['iqm']:.1f}; the new one is {within} its interval of {interval}")


if __name__ == "__main__":
    main()
