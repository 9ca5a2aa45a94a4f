"""Environment steps per second, training included, of the four scripts and of other libraries at the same settings.

    python benchmarks/speed.py                                  # ours alone
    python benchmarks/speed.py --peers rejax=PYTHON sb3=PYTHON  # and others, each with the python of an environment
    python benchmarks/speed.py --only dqn-10k sac-1 --rounds 9  # some of the cases
    python benchmarks/speed.py --gpu                            # cases for a GPU, to results/speed-gpu.csv

The peers are rejax, purejaxrl, sb3, sbx and rltools. Their environments:

    pip install rejax==0.1.3 gymnax==0.0.9 "jax<0.12"           # rejax and purejaxrl; for a GPU "jax[cuda13]<0.12"
    pip install stable-baselines3==2.9.2 sbx-rl==0.28.0         # sb3 and sbx
    pip install mkl-devel                                       # rltools, in C++, compiled with g++ and Intel's BLAS

purejaxrl also needs a clone of https://github.com/luchris429/purejaxrl, and in PYTHONPATH both the clone and the folder
`purejaxrl` in it, whose modules import each other without the name of the package. rltools needs a clone of
https://github.com/rl-tools/rl-tools, and its folder in RLTOOLS.

How long a start takes is measured by start.py. The contenders of the cases of one algorithm compile side by side. Then
those of a case run in turns, one at a time, so that whatever else the machine does meets all of them; their first runs
do not count. All multiply matrices in float32. Reported are medians over the rounds; `ratio` is the median, over the
rounds, of the first contender's speed over that of the one in the row.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from runner.files.store import write_table  # noqa: E402
from runner.report.plots import style  # noqa: E402

LOOKS = {  # of the bars, with another hatch each; colours of Okabe and Ito
    "ours": {"color": "#0072B2"},
    "PureJaxRL": {"color": "#CC79A7", "hatch": "...."},
    "Rejax": {"color": "#E69F00", "hatch": "////"},
}
COLUMNS = {
    "case": "{:>14}",
    "contender": "{:>20}",
    "seeds": "{:>6}",
    "cores": "{:>6}",
    "env_steps_per_s": "{:>16}",
    "ratio": "{:>8}",
    "peak_mib": "{:>9}",
    "share_of_peak": "{:>14}",  # floating-point operations of the updates over the rate of a matrix product
    "commit": "{:>8}",
}
PEERS = ("purejaxrl", "rejax", "rltools", "sb3", "sbx")
# The same products for all, on a GPU too, where the contenders of some cases share the memory.
VARIABLES = {"JAX_DEFAULT_MATMUL_PRECISION": "float32", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclass(frozen=True)
class Contender:
    """A script of ours or a peer's algorithm, with the settings that a worker runs."""

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
    seeds: int
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
PUREJAXRL = {  # PPO, as PureJaxRL names it, with what is default in ours
    "ENV_NAME": CARTPOLE,
    "NUM_ENVS": 4,
    "NUM_STEPS": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "LR": 2.5e-4,
    "ANNEAL_LR": True,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
}
TANH, RELU = {"activation": "tanh"}, {"activation": "relu"}  # what ours has; Rejax would take swish


def ppo(seeds: int, cores: int, iterations: int, is_gpu: bool = False) -> Case:
    """The settings of PureJaxRL's benchmark."""
    steps = {"total_timesteps": 512 * iterations}
    stable = {"n_steps": 128, "batch_size": 128, "n_epochs": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01}
    pure = Contender("PureJaxRL", "purejaxrl:ppo", {**PUREJAXRL, "TOTAL_TIMESTEPS": 512 * iterations})
    contenders = [
        Contender("ours", "ppo", {**PPO, **SMALL, **steps}, ppo_flops(4, 2, 64, 4)),
        *([pure] if is_gpu or seeds == 1 else []),  # its program for several seeds hangs on a CPU
        Contender("Rejax", "rejax:ppo", {**PPO, "max_grad_norm": 0.5, **steps, "agent_kwargs": TANH}),
    ]
    if seeds == 1:
        settings = {"env": CARTPOLE, "num_envs": 4, "total_timesteps": 512 * 20, **stable}
        contenders += [Contender("Stable-Baselines3", "sb3:PPO", settings), Contender("SBX", "sbx:PPO", settings)]
    return Case(f"ppo-{seeds}", seeds, cores, contenders)


def dqn(name: str, seeds: int, cores: int, buffer_size: int, steps: int) -> Case:
    """Ten environments, one update per ten env steps."""
    replay = {"buffer_size": buffer_size}
    intervals = {"train_interval": 10, "target_interval": 500, "steps_per_iteration": 1_000, "learning_starts": 1_000}
    peer = {"fill_buffer": 1_000, "target_update_freq": 500, "polyak": 0.0, "agent_kwargs": RELU}
    mine = {**DQN, **SMALL, **replay, **intervals, "total_timesteps": steps + 1_000}
    return Case(
        name,
        seeds,
        cores,
        [
            Contender("ours", "dqn", mine, dqn_flops(4, 2, 64, 128) / 10),
            Contender("Rejax", "rejax:dqn", {**DQN, **replay, **peer, "total_timesteps": steps + 1_000}),
        ],
    )


def actor_critic(script: str, seeds: int, cores: int, steps: int) -> Case:
    """One environment, one update per env step."""
    replay, start = {"buffer_size": 100_000}, 256
    mine = {"total_timesteps": start + steps, "learning_starts": start, "steps_per_iteration": 256}
    peer = {"total_timesteps": start + steps, "fill_buffer": start, "learning_rate": 3e-4}
    kwargs = {"agent_kwargs": RELU} if script == "sac" else {"actor_kwargs": RELU, "critic_kwargs": RELU}
    flops = {"sac": sac_flops, "td3": td3_flops}[script](3, 1, 64, 256)
    contenders = [
        Contender("ours", script, {**ACTOR_CRITIC, **RATES, **SMALL, **replay, **mine}, flops),
        Contender("Rejax", f"rejax:{script}", {**ACTOR_CRITIC, **replay, **peer, **kwargs}),
    ]
    if script == "sac" and seeds == 1:
        contenders += [Contender("RLtools", "rltools:sac", {"batch_size": 256})]
    return Case(f"{script}-{seeds}", seeds, cores, contenders)


def sac_buffers(seeds: int) -> Case:
    """The cost of a large buffer."""
    settings = {**ACTOR_CRITIC, **RATES, **SMALL, "total_timesteps": 6_000, "steps_per_iteration": 500}
    return Case(
        f"sac-buffer-{seeds}",
        seeds,
        1,
        [Contender(f"buffer of {size:,}", "sac", {**settings, "buffer_size": size}) for size in (1_000_000, 10_000)],
    )


def breakout(seeds: int) -> Case:
    """PPO on Breakout, of the size of its preset, 20 iterations."""
    settings = {"env": "Breakout-MinAtar", "num_envs": 64, "num_minibatches": 8, "learning_rate": 1e-3}
    contender = Contender("ours", "ppo", {**settings, "activation": "relu", "total_timesteps": 64 * 128 * 20})
    return Case(f"breakout-{seeds}", seeds, HOST, [contender])


def robot(name: str, env: str) -> Case:
    """The PPO baseline of REPPO's authors. 16 iterations are 1,024 steps: each episode of 1,000 ends once."""
    settings = {
        "env": env,
        "total_timesteps": 2_048 * 64 * 16,
        "num_envs": 2_048,
        "num_steps": 64,
        "num_epochs": 16,
        "num_minibatches": 32,
        "learning_rate": 3e-4,
        "anneal_learning_rate": False,
        "ent_coef": 0.0,
        "normalize_obs": True,
        "hidden_sizes": (256, 256),
        "activation": "swish",
    }
    return Case(name, 1, HOST, [Contender("ours", "ppo", settings)])


HOST = os.cpu_count()
WIDE = {**ACTOR_CRITIC, **RATES, "buffer_size": 100_000, "total_timesteps": 2_000, "steps_per_iteration": 500}
SEEDS = ((1, 1), (16, 2), (128, 2))  # and cores
CASES = [
    *(ppo(seeds, cores, max(20, 800 // seeds)) for seeds, cores in SEEDS),
    dqn("dqn-10k", 1, 1, 10_000, 200_000),
    dqn("dqn-100k", 1, 1, 100_000, 100_000),
    *(dqn(f"dqn-{seeds}", seeds, 2, 10_000, 1_000 * max(2, 100 // seeds)) for seeds in (16, 128)),
    *(actor_critic(script, n, cores, 256 * max(1, 40 // n)) for script in ("sac", "td3") for n, cores in SEEDS),
    Case("sac-256", 1, 1, [Contender("ours", "sac", WIDE, sac_flops(3, 1, 256, 256))]),
    sac_buffers(1),
    sac_buffers(4),
]
GPU_CASES = [
    *(ppo(seeds, HOST, 200, is_gpu=True) for seeds in (1, 16, 128)),
    ppo(2_048, HOST, 50, is_gpu=True),
    *(dqn(f"dqn-{seeds}", seeds, HOST, 10_000, 100_000) for seeds in (1, 128, 1_024)),
    *(actor_critic(script, seeds, HOST, 4_096) for script in ("sac", "td3") for seeds in (1, 128, 1_024)),
    *(breakout(seeds) for seeds in (1, 20, 128)),
    robot("cheetah", "playground/CheetahRun"),
    robot("ant", "brax/ant"),
]


class Worker:
    """A contender in a process of its own, which compiles until `wait` is called."""

    def __init__(self, contender: Contender, case: Case, python: str):
        command = [python, str(FOLDER / "worker.py"), contender.script, str(case.seeds), json.dumps(contender.settings)]
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # a file never fills up as a pipe does
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **VARIABLES, "CORES": str(case.cores)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )
        self.contender, self.ready, self.runs = contender, {}, []

    def wait(self) -> None:
        """Wait until it has compiled."""
        self.ready = self.answer()

    def answer(self) -> dict:
        """The next line of JSON."""
        line = self.process.stdout.readline()
        if not line:
            self.stderr.seek(0)
            raise SystemExit(f"{self.stderr.read()}error: the worker died: {' '.join(self.process.args)}")
        return json.loads(line)

    def run(self) -> None:
        """Train once."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.runs.append(self.answer())

    def median(self, name: str) -> float:
        """The median over the rounds of an entry of the answers."""
        return statistics.median(run[name] for run in self.runs)

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def start(case: Case, pythons: dict[str, str]) -> list[Worker]:
    """Start the contenders; pythons: of ours, under the empty name, and of the peers that take part."""
    return [Worker(x, case, pythons[x.peer]) for x in case.contenders if x.peer in pythons]


def measure(case: Case, workers: list[Worker], rounds: int) -> list[dict]:
    """Rows of the table."""
    for _ in range(1 + rounds):
        for worker in workers:
            worker.run()
    for worker in workers:
        del worker.runs[0]  # the first is slower
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER, text=True).strip()
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
                "seeds": case.seeds,
                "cores": case.cores,
                "env_steps_per_s": round(statistics.median(speeds)),
                "ratio": round(statistics.median(a / b for a, b in zip(firsts, speeds, strict=True)), 2),
                "peak_mib": round(worker.median("peak_kib") / 1024),
                "share_of_peak": round(statistics.median(shares), 2) if flops else "",
                "commit": commit,
            }
        )
        worker.close()
    return rows


@rc_context({"font.size": 9})
def plot(rows: list[dict], path: Path) -> None:
    """Env steps per second of the libraries in JAX: a panel for each algorithm, bars for each number of seeds.

    Where several cases have as many seeds, the first is shown. The numbers are ratios, ours over Rejax.
    """
    rows = [row for row in rows if row["contender"] in LOOKS]
    algorithms = dict.fromkeys(row["case"].partition("-")[0] for row in rows)
    num_rows = -(-len(algorithms) // 2)
    figure = Figure(figsize=(5.2, 1.9 * num_rows + 0.7), layout="constrained")
    panels = figure.subplots(num_rows, 2, squeeze=False).ravel()
    handles = {}
    for axes, algorithm in zip(panels, algorithms, strict=False):
        groups = {}  # seeds -> contender -> row
        for row in rows:
            if row["case"].startswith(f"{algorithm}-"):
                groups.setdefault(int(row["seeds"]), {}).setdefault(row["contender"], row)
        for n, group in enumerate(groups.values()):
            shown = [contender for contender in LOOKS if contender in group]
            width = 0.8 / len(shown)
            for i, contender in enumerate(shown):
                place, speed = n + (i - (len(shown) - 1) / 2) * width, float(group[contender]["env_steps_per_s"])
                look = LOOKS[contender] | {"edgecolor": "white", "label": contender}
                handles[contender] = axes.bar(place, speed, width, **look)
                if contender == "ours" and "Rejax" in group:
                    text = f"{float(group['Rejax']['ratio']):.1f}"
                    axes.annotate(text, (place, speed), xytext=(0, 2), textcoords="offset points", ha="center")
        axes.set_xticks(range(len(groups)), [str(seeds) for seeds in groups])
        axes.set_title(algorithm.upper(), fontsize="medium")
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(y=0.15)
        style(axes)
        axes.grid(visible=False, axis="x")
    for axes in panels[len(algorithms) :]:
        axes.set_visible(False)
    title = "a number over a bar: times Rejax's speed"
    figure.legend(handles=list(handles.values()), title=title, loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("seeds trained in parallel", fontsize="medium")
    figure.supylabel("env steps per second", fontsize="medium")
    figure.savefig(path, dpi=200)


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peers", nargs="+", default=[], metavar="NAME=PYTHON", help=f"who else runs, of {', '.join(PEERS)}"
    )
    parser.add_argument("--gpu", action="store_true", help="measure the cases for a GPU instead of those for a CPU")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="some of the cases, by default all")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender")
    parser.add_argument(
        "--out",
        help="table in which all rows of these cases are replaced, beside its picture; by default "
        "results/speed.csv, with --gpu results/speed-gpu.csv",
    )
    arguments = parser.parse_args()
    pythons = {"": sys.executable}
    for peer in arguments.peers:
        name, _, python = peer.partition("=")
        if name not in PEERS or not Path(python).is_file():
            parser.error(f"--peers {peer}: give NAME=PYTHON, with a name of {', '.join(PEERS)}")
        pythons[name] = python
    cases = GPU_CASES if arguments.gpu else CASES
    names = [case.name for case in cases]
    chosen = arguments.only or names
    if not set(chosen) <= set(names):
        parser.error(f"--only: the cases are {', '.join(names)}")
    out = Path(arguments.out or FOLDER / "results" / ("speed-gpu.csv" if arguments.gpu else "speed.csv"))
    form, tables = "".join(COLUMNS.values()), {name: [] for name in names}
    if out.exists():
        with out.open(newline="") as file:
            for row in csv.DictReader(file):
                tables.setdefault(row["case"], []).append(row)
    print(form.format(*COLUMNS))
    algorithms = itertools.groupby((x for x in cases if x.name in chosen), lambda x: x.name.partition("-")[0])
    for _, group in algorithms:
        started = [(case, start(case, pythons)) for case in group]
        for worker in itertools.chain(*(workers for _, workers in started)):
            worker.wait()
        for case, workers in started:
            tables[case.name] = measure(case, workers, arguments.rounds)
            for row in tables[case.name]:
                print(form.format(*row.values()), flush=True)
            rows = list(itertools.chain(*tables.values()))
            write_table(out, COLUMNS, ([row.get(name, "") for name in COLUMNS] for row in rows))
            plot(rows, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
