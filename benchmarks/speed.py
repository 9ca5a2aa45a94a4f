"""Environment steps per second, training included, of the four scripts and of other libraries at the same settings.

    python benchmarks/speed.py                                  # ours alone
    python benchmarks/speed.py --peers rejax=PYTHON sb3=PYTHON  # and others, each with the python of an environment
                                                                # that has it: pip install rejax==0.1.3 gymnax==0.0.9,
                                                                # or pip install stable-baselines3==2.9.2 sbx-rl==0.28.0
    python benchmarks/speed.py --only dqn-10k sac-1 --rounds 9  # some of the cases

The contenders of a case are compiled first and then run in turns, so that whatever else the machine does meets all of
them. Reported are medians over the rounds; `ratio` is the median, over the rounds, of the first contender's speed over
that of the one in the row.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
COLUMNS = {
    "case": "{:>14}",
    "contender": "{:>20}",
    "lanes": "{:>6}",
    "cores": "{:>6}",
    "env_steps_per_s": "{:>16}",
    "ratio": "{:>8}",
    "compile_s": "{:>10}",  # imports and compilation; SBX compiles in its first run
    "process_s": "{:>10}",  # from the start of the process to the end of the first run
    "peak_mib": "{:>9}",
    "share_of_peak": "{:>14}",  # floating-point operations of the updates over the rate of a matrix product
}
PEERS = ("rejax", "sb3", "sbx")


@dataclass(frozen=True)
class Contender:
    """What a worker is told to run."""

    name: str
    script: str  # or PEER:ALGORITHM
    settings: dict
    flops_per_step: float = 0.0  # floating-point operations of the updates per env step, where they are counted

    @property
    def peer(self) -> str:
        """Empty for ours."""
        return self.script.partition(":")[0] if ":" in self.script else ""


@dataclass(frozen=True)
class Case:
    """Contenders that run in turns."""

    name: str
    lanes: int
    cores: int
    contenders: list[Contender] = field(default_factory=list)


def mlp_flops(*sizes: int) -> int:
    """Multiplications and additions of one row through dense layers. Forward and backward together are three times
    that."""
    return 2 * sum(a * b for a, b in itertools.pairwise(sizes))


def ppo_flops(obs: int, actions: int, hidden: int, epochs: int) -> float:
    """Policy and value, once forward and backward in each epoch."""
    return 3 * epochs * (mlp_flops(obs, hidden, hidden, actions) + mlp_flops(obs, hidden, hidden, 1))


def dqn_flops(obs: int, actions: int, hidden: int, batch: int) -> float:
    """One update: forward and backward, and target and online network at the next observation."""
    return 5 * batch * mlp_flops(obs, hidden, hidden, actions)


def sac_flops(obs: int, action: int, hidden: int, batch: int) -> float:
    """One update. Critics: both forward and backward, both targets, the actor at the next observation; actor: forward
    and backward, through both critics, whose weights need no gradient."""
    actor = mlp_flops(obs, hidden, hidden, 2 * action)
    critics = 2 * mlp_flops(obs + action, hidden, hidden, 1)
    return batch * ((3 * critics + critics + actor) + (3 * actor + 2 * critics))


def td3_flops(obs: int, action: int, hidden: int, batch: int) -> float:
    """One update of the critics and half an update of the actor, which sees one critic."""
    actor = mlp_flops(obs, hidden, hidden, action)
    critics = 2 * mlp_flops(obs + action, hidden, hidden, 1)
    return batch * ((3 * critics + critics + actor) + 0.5 * (3 * actor + critics))


CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
PPO = {"env": CARTPOLE, "num_envs": 4, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4, "learning_rate": 2.5e-4}
DQN = {"env": CARTPOLE, "num_envs": 10, "batch_size": 128, "learning_rate": 2.5e-4}
ACTOR_CRITIC = {"env": PENDULUM, "num_envs": 1, "batch_size": 256}
RATES = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4}
SMALL = {"hidden_sizes": (64, 64)}
TANH, RELU = {"activation": "tanh"}, {"activation": "relu"}  # what ours has; Rejax would take swish


def ppo(lanes: int, cores: int) -> Case:
    """The settings of PureJaxRL's benchmark."""
    steps = {"total_timesteps": 512 * max(20, 800 // lanes)}
    stable = {"n_steps": 128, "batch_size": 128, "n_epochs": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01}
    contenders = [
        Contender("ours", "ppo", {**PPO, **SMALL, **steps}, ppo_flops(4, 2, 64, 4)),
        Contender("Rejax", "rejax:ppo", {**PPO, "max_grad_norm": 0.5, **steps, "agent_kwargs": TANH}),
    ]
    if lanes == 1:
        settings = {"env": CARTPOLE, "num_envs": 4, "total_timesteps": 512 * 20, **stable}
        contenders += [Contender("Stable-Baselines3", "sb3:PPO", settings), Contender("SBX", "sbx:PPO", settings)]
    return Case(f"ppo-{lanes}", lanes, cores, contenders)


def dqn(name: str, lanes: int, cores: int, buffer_size: int, steps: int) -> Case:
    """Ten environments, one update per ten env steps."""
    replay = {"buffer_size": buffer_size}
    intervals = {"train_interval": 10, "target_interval": 500, "steps_per_iteration": 1_000, "learning_starts": 1_000}
    peer = {"fill_buffer": 1_000, "target_update_freq": 500, "polyak": 0.0, "agent_kwargs": RELU}
    mine = {**DQN, **SMALL, **replay, **intervals, "total_timesteps": steps + 1_000}
    return Case(
        name,
        lanes,
        cores,
        [
            Contender("ours", "dqn", mine, dqn_flops(4, 2, 64, 128) / 10),
            Contender("Rejax", "rejax:dqn", {**DQN, **replay, **peer, "total_timesteps": steps + 1_000}),
        ],
    )


def actor_critic(script: str, lanes: int, cores: int, flops: float) -> Case:
    """One environment, one update per env step."""
    replay, start, steps = {"buffer_size": 100_000}, 256, 256 * max(1, 40 // lanes)
    mine = {"total_timesteps": start + steps, "learning_starts": start, "steps_per_iteration": 256}
    peer = {"total_timesteps": start + steps, "fill_buffer": start, "learning_rate": 3e-4}
    kwargs = {"agent_kwargs": RELU} if script == "sac" else {"actor_kwargs": RELU, "critic_kwargs": RELU}
    contenders = [
        Contender("ours", script, {**ACTOR_CRITIC, **RATES, **SMALL, **replay, **mine}, flops),
        Contender("Rejax", f"rejax:{script}", {**ACTOR_CRITIC, **replay, **peer, **kwargs}),
    ]
    return Case(f"{script}-{lanes}", lanes, cores, contenders)


def sac_buffers(lanes: int) -> Case:
    """What a large buffer costs."""
    settings = {**ACTOR_CRITIC, **RATES, **SMALL, "total_timesteps": 6_000, "steps_per_iteration": 500}
    return Case(
        f"sac-buffer-{lanes}",
        lanes,
        1,
        [Contender(f"buffer of {size:,}", "sac", {**settings, "buffer_size": size}) for size in (1_000_000, 10_000)],
    )


WIDE = {**ACTOR_CRITIC, **RATES, "buffer_size": 100_000, "total_timesteps": 2_000, "steps_per_iteration": 500}
CASES = [
    *(ppo(lanes, cores) for lanes, cores in ((1, 1), (16, 2), (128, 2))),
    dqn("dqn-10k", 1, 1, 10_000, 200_000),
    dqn("dqn-100k", 1, 1, 100_000, 100_000),
    *(dqn(f"dqn-{lanes}", lanes, 2, 10_000, 1_000 * max(2, 100 // lanes)) for lanes in (16, 128)),
    *(actor_critic("sac", lanes, cores, sac_flops(3, 1, 64, 256)) for lanes, cores in ((1, 1), (16, 2), (128, 2))),
    *(actor_critic("td3", lanes, cores, td3_flops(3, 1, 64, 256)) for lanes, cores in ((1, 1), (16, 2), (128, 2))),
    Case("sac-256", 1, 1, [Contender("ours", "sac", WIDE, sac_flops(3, 1, 256, 256))]),
    sac_buffers(1),
    sac_buffers(4),
]
GPU_CASES = [ppo(lanes, 2) for lanes in (1_024, 2_048)]


class Worker:
    """A contender in a process of its own."""

    def __init__(self, contender: Contender, case: Case, python: str):
        self.started = time.perf_counter()
        command = [python, str(FOLDER / "worker.py"), contender.script, str(case.lanes), json.dumps(contender.settings)]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "CORES": str(case.cores)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.contender, self.ready = contender, self.answer()
        self.process_seconds = time.perf_counter() - self.started
        self.runs = []

    def answer(self) -> dict:
        """The next line of JSON."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: the worker died: {' '.join(self.process.args)}")
        return json.loads(line)

    def run(self) -> None:
        """Train once."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.runs.append(self.answer())

    def median(self, name: str) -> float:
        """Over the rounds."""
        return statistics.median(run[name] for run in self.runs)

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def measure(case: Case, rounds: int, pythons: dict[str, str]) -> list[dict]:
    """Rows of the table; pythons: of ours, under the empty name, and of the peers that take part."""
    workers = [Worker(x, case, pythons[x.peer]) for x in case.contenders if x.peer in pythons]
    for _ in range(rounds):
        for worker in workers:
            worker.run()
    rows = []
    for worker in workers:
        steps, first = worker.ready["num_steps"], workers[0]
        speeds = [steps / run["seconds"] for run in worker.runs]
        firsts = [first.ready["num_steps"] / run["seconds"] for run in first.runs]
        flops = worker.contender.flops_per_step
        shares = [flops * speed / run["matmul"] for speed, run in zip(speeds, worker.runs, strict=True) if flops]
        rows.append(
            {
                "case": case.name,
                "contender": worker.contender.name,
                "lanes": case.lanes,
                "cores": case.cores,
                "env_steps_per_s": round(statistics.median(speeds)),
                "ratio": round(statistics.median(a / b for a, b in zip(firsts, speeds, strict=True)), 2),
                "compile_s": round(worker.ready["compile"], 1),
                "process_s": round(worker.process_seconds, 1),
                "peak_mib": round(worker.median("peak_kib") / 1024),
                "share_of_peak": round(statistics.median(shares), 2) if flops else "",
            }
        )
        worker.close()
    return rows


def plot(rows: list[dict], path: Path) -> None:
    """Env steps per second of every contender, a group of bars for each case."""
    figure = Figure(figsize=(9, 0.35 * len(rows) + 1), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(row["contender"] for row in rows))
    for i, row in enumerate(rows):
        axes.barh(i, float(row["env_steps_per_s"]), color=f"C{names.index(row['contender'])}")
        axes.annotate(f"{float(row['env_steps_per_s']):,.0f}", (float(row["env_steps_per_s"]), i), va="center")
    axes.set_yticks(range(len(rows)), [f"{row['case']}, {row['contender']}" for row in rows])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="env steps per second, of all lanes")
    axes.margins(x=0.15, y=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peers", nargs="+", default=[], metavar="NAME=PYTHON", help=f"who else runs, of {', '.join(PEERS)}"
    )
    every = [case.name for case in CASES + GPU_CASES]
    parser.add_argument("--only", nargs="+", choices=every, help="cases, by default all that a CPU can do")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender")
    parser.add_argument(
        "--out",
        default=str(FOLDER / "results" / "speed.csv"),
        help="table in which all rows of these cases are replaced, and its picture",
    )
    arguments = parser.parse_args()
    pythons = {"": sys.executable}
    for peer in arguments.peers:
        name, _, python = peer.partition("=")
        if name not in PEERS or not Path(python).is_file():
            parser.error(f"--peers {peer}: give NAME=PYTHON, with a name of {', '.join(PEERS)}")
        pythons[name] = python
    out, form = Path(arguments.out), "".join(COLUMNS.values())
    tables = {case.name: [] for case in CASES + GPU_CASES}
    if out.exists():
        with out.open(newline="") as file:
            for row in csv.DictReader(file):
                tables.setdefault(row["case"], []).append(row)
    print(form.format(*COLUMNS))
    for case in CASES + GPU_CASES:
        if case.name in (arguments.only or [case.name for case in CASES]):
            tables[case.name] = measure(case, arguments.rounds, pythons)
            for row in tables[case.name]:
                print(form.format(*row.values()), flush=True)
            rows = list(itertools.chain(*tables.values()))
            with out.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
                writer.writeheader()
                writer.writerows(rows)
            plot(rows, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
