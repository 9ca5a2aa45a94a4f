"""The cost of environments: python benchmarks/environments.py [--only brax/hopper ...]

For each environment: env steps per CPU-second of random actions in `--num-envs` environments, with the starts that the
suite chooses and with a fresh start at every step; the time of a reset in steps; and CPU-seconds of compilation. Prints
the rows of README.md and writes them to results/environments.csv, in which the rows of other environments stay.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # the folder of `common`
from common.environment import Environment, make_env
from runner.files.store import write_table

ENVIRONMENTS = (
    *("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar"),
    *("brax/inverted_pendulum", "brax/inverted_pendulum:backend=spring", "brax/hopper", "brax/hopper:backend=spring"),
    *("craftax/Craftax-Classic-Symbolic-v1", "craftax/Craftax-Symbolic-v1"),
    *("navix/Navix-DoorKey-8x8-v0", "xminigrid/MiniGrid-DoorKey-8x8", "pgx/minatar-breakout"),
    *("playground/CartpoleBalance", "playground/WalkerWalk", "playground/CheetahRun"),
)
COLUMNS = ("environment", "reset_period", "steps_per_s", "steps_per_s_fresh", "gain", "reset_in_steps", "compile_s")


def cpu_seconds(function) -> tuple:
    """CPU-seconds of a call, and its result when it is there."""
    started = time.process_time()
    result = jax.block_until_ready(function())
    return time.process_time() - started, result


def speed(env: Environment, num_envs: int, seconds: float) -> tuple[float, float]:
    """Env steps per CPU-second and CPU-seconds of compilation, under `jax.vmap`, as several seeds run."""
    keys = jax.random.split(jax.random.key(0), (1, num_envs))

    def play(env_state, key, num_steps):
        def step(i, carry):
            env_state, total = carry
            keys = jax.random.split(jax.random.fold_in(key, i), num_envs)
            actions = jax.vmap(env.action_space.sample)(keys)
            _, env_state, reward, *_ = env.step(keys, env_state, actions)
            return env_state, total + reward.sum()

        return jax.lax.fori_loop(0, num_steps, step, (env_state, 0.0))

    _, (_, env_state) = cpu_seconds(lambda: jax.jit(jax.vmap(env.reset))(keys))
    lowered = jax.jit(jax.vmap(play, in_axes=(0, 0, None))).lower(env_state, keys[:, 0], np.int32(1))
    compiling, program = cpu_seconds(lowered.compile)
    num_steps, rates = 1, []
    while len(rates) < 3:
        used, _ = cpu_seconds(lambda: program(env_state, keys[:, 0], np.int32(num_steps)))  # noqa: B023
        if used < seconds:
            num_steps = int(np.clip(num_steps * 1.2 * seconds / max(used, 1e-3), num_steps + 1, 100 * num_steps))
        else:
            rates.append(num_envs * num_steps / used)
    return float(np.median(rates)), compiling


def line(row: dict[str, str]) -> str:
    """The row of a table in Markdown: a fresh start at every step stands there only where starts are kept."""
    name, period, chosen, fresh, gain, reset_in_steps, compiling = row.values()
    fresh, gain = ("=", "") if period == "0" else (f"{float(fresh):,.0f}", gain)
    return f"| {name} | {period} | {float(chosen):,.0f} | {fresh} | {gain} | {reset_in_steps} | {compiling} |"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=ENVIRONMENTS)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU-seconds of each of three measurements")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "environments.csv")
    arguments = parser.parse_args()
    rows = {}
    if arguments.out.exists():
        with arguments.out.open(newline="") as file:
            rows = {row["environment"]: row for row in csv.DictReader(file)}
    for name in arguments.only:
        env = make_env(name)
        periods = {env.reset_period, 0, 10**9}  # what the suite chooses, a fresh start at every step, none
        rate, compiling = {}, {}
        for period in periods:
            copies = Environment(env.suite, env.max_episode_steps, period)
            rate[period], compiling[period] = speed(copies, arguments.num_envs, arguments.seconds)
        chosen, fresh = rate[env.reset_period], rate[0]
        gain, reset_in_steps = chosen / fresh, rate[10**9] / fresh - 1
        cells = [name, f"{env.reset_period}", *(f"{x:.3g}" for x in (chosen, fresh, gain))]
        cells += [f"{max(reset_in_steps, 0.0):.1f}", f"{compiling[env.reset_period]:.1f}"]
        rows[name] = dict(zip(COLUMNS, cells, strict=True))
        print(line(rows[name]), flush=True)
        write_table(arguments.out, COLUMNS, (row.values() for row in rows.values()))


if __name__ == "__main__":
    main()
