"""Environment steps per second, training included, of the four scripts and of Rejax at the same settings.

    python benchmarks/speed.py                                  # ours alone
    python benchmarks/speed.py --peers PYTHON                   # and Rejax, with the python of its own environment:
                                                                # pip install rejax==0.1.3 gymnax==0.0.9
    python benchmarks/speed.py --only dqn-10k sac --rounds 9    # some of the cases

The contenders of a case are compiled first and then run in turns, so that whatever else the machine does meets all of
them. Reported are medians over the rounds; ratios are the median of the rounds' own ratios.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
COLUMNS = ("case", "contender", "lanes", "cores", "env_steps_per_s", "ratio", "compile_s", "peak_mib", "share_of_peak")


@dataclass(frozen=True)
class Contender:
    """What a worker is told to run."""

    name: str
    script: str  # or rejax:ALGO
    settings: dict
    flops_per_step: float = 0.0  # floating-point operations of the updates per env step, where they are counted


@dataclass(frozen=True)
class Case:
    """Contenders that run in turns; ratios are over the last one."""

    name: str
    lanes: int
    cores: int
    contenders: list[Contender] = field(default_factory=list)


def mlp_flops(*sizes: int) -> int:
    """Multiplications and additions of one row through dense layers."""
    return 2 * sum(a * b for a, b in itertools.pairwise(sizes))


def sac_flops(obs: int, action: int, hidden: int, batch: int) -> float:
    """One update. Critics: both forward and backward (twice the forward), both targets, the actor at the next
    observation; actor: forward and backward, through both critics, whose weights need no gradient."""
    actor = mlp_flops(obs, hidden, hidden, 2 * action)
    critics = 2 * mlp_flops(obs + action, hidden, hidden, 1)
    return batch * ((3 * critics + critics + actor) + (3 * actor + 2 * critics))


PPO = {
    "env": "CartPole-v1",
    "num_envs": 4,
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 2.5e-4,
    "max_grad_norm": 0.5,
}
DQN = {"env": "CartPole-v1", "num_envs": 10, "batch_size": 128, "learning_rate": 2.5e-4}
ACTOR_CRITIC = {"env": "Pendulum-v1", "num_envs": 1, "batch_size": 256}
RATES = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4}
SMALL = {"hidden_sizes": (64, 64)}


def ppo(lanes: int, cores: int) -> Case:
    """The settings of PureJaxRL's benchmark."""
    steps = 512 * max(20, 800 // lanes)
    return Case(
        f"ppo-{lanes}",
        lanes,
        cores,
        [
            Contender("ours", "ppo", {**PPO, **SMALL, "total_timesteps": steps}),
            Contender("Rejax", "rejax:ppo", {**PPO, "total_timesteps": steps}),
        ],
    )


def dqn(name: str, buffer_size: int, steps: int) -> Case:
    """Ten environments, one update per ten env steps."""
    replay = {"buffer_size": buffer_size}
    intervals = {"train_interval": 10, "target_interval": 500, "steps_per_iteration": 1_000, "learning_starts": 1_000}
    peer = {"fill_buffer": 1_000, "target_update_freq": 500, "polyak": 0.0}
    return Case(
        name,
        1,
        1,
        [
            Contender("ours", "dqn", {**DQN, **SMALL, **replay, **intervals, "total_timesteps": steps + 1_000}),
            Contender("Rejax", "rejax:dqn", {**DQN, **replay, **peer, "total_timesteps": steps}),
        ],
    )


def actor_critic(script: str, **settings) -> Case:
    """One environment, one update per env step."""
    replay = {"buffer_size": 100_000}
    mine = {**ACTOR_CRITIC, **RATES, **SMALL, **replay, "total_timesteps": 11_000}
    peer = {**ACTOR_CRITIC, **replay, "fill_buffer": 1_000, "learning_rate": 3e-4, "total_timesteps": 10_000}
    return Case(script, 1, 1, [Contender("ours", script, mine | settings), Contender("Rejax", f"rejax:{script}", peer)])


def sac_buffers(lanes: int) -> Case:
    """What a large buffer costs."""
    settings = {**ACTOR_CRITIC, **RATES, **SMALL, "total_timesteps": 6_000, "steps_per_iteration": 500}
    return Case(
        f"sac-buffer-{lanes}",
        lanes,
        1,
        [Contender(f"buffer of {size:,}", "sac", {**settings, "buffer_size": size}) for size in (1_000_000, 10_000)],
    )


CASES = [
    ppo(1, 1),
    ppo(16, 2),
    ppo(128, 2),
    dqn("dqn-10k", 10_000, 200_000),
    dqn("dqn-100k", 100_000, 100_000),
    actor_critic("sac"),
    actor_critic("td3"),
    Case(
        "sac-256",
        1,
        1,
        [
            Contender(
                "ours",
                "sac",
                {**ACTOR_CRITIC, **RATES, "buffer_size": 100_000, "total_timesteps": 2_000, "steps_per_iteration": 500},
                sac_flops(3, 1, 256, 256),
            )
        ],
    ),
    sac_buffers(1),
    sac_buffers(4),
]


class Worker:
    """A contender in a process of its own."""

    def __init__(self, contender: Contender, case: Case, python: str):
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


def measure(case: Case, rounds: int, peers: str) -> list[dict]:
    """Rows of the table."""
    contenders = [x for x in case.contenders if peers or not x.script.startswith("rejax:")]
    workers = [Worker(x, case, peers if x.script.startswith("rejax:") else sys.executable) for x in contenders]
    for _ in range(rounds):
        for worker in workers:
            worker.run()
    rows = []
    for worker in workers:
        steps, last = worker.ready["num_steps"], workers[-1]
        speeds = [steps / run["seconds"] for run in worker.runs]
        others = [last.ready["num_steps"] / run["seconds"] for run in last.runs]
        flops = worker.contender.flops_per_step
        shares = [flops * speed / run["matmul"] for speed, run in zip(speeds, worker.runs, strict=True)]
        rows.append(
            {
                "case": case.name,
                "contender": worker.contender.name,
                "lanes": case.lanes,
                "cores": case.cores,
                "env_steps_per_s": round(statistics.median(speeds)),
                "ratio": round(statistics.median(a / b for a, b in zip(speeds, others, strict=True)), 2),
                "compile_s": round(worker.ready["compile"], 1),
                "peak_mib": round(worker.median("peak_kib") / 1024),
                "share_of_peak": round(statistics.median(shares), 2) if flops else "",
            }
        )
        worker.close()
    return rows


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default="", metavar="PYTHON", help="python of an environment that has Rejax")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], help="cases, all by default")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender")
    parser.add_argument("--out", default=str(FOLDER / "results" / "speed.csv"), help="table that is written")
    arguments = parser.parse_args()
    rows = []
    print(("{:>20}" * len(COLUMNS)).format(*COLUMNS))
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        for row in measure(case, arguments.rounds, arguments.peers):
            print(("{:>20}" * len(COLUMNS)).format(*row.values()), flush=True)
            rows.append(row)
    with Path(arguments.out).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
