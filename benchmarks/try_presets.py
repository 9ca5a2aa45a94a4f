"""Two iterations of each preset of GPU size, on a CPU: with fewer environments, a small batch and a small buffer.

    python benchmarks/try_presets.py                    # all of them; each of Playground compiles for minutes
    python benchmarks/try_presets.py --only ppo/brax/ant

It shows that the settings fit the environment, and that every loss and parameter stays finite. A preset is of GPU
size if its environment has another one, named `small`.
"""

import argparse
import dataclasses
import importlib
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.environment import episode_metrics  # noqa: E402
from common.presets import read_presets  # noqa: E402

SCRIPTS = ("ppo", "sac", "td3")
NUM_ENVS, BATCH_SIZE, BUFFER_SIZE = 8, 64, 4_096  # of SAC and TD3


def shrink(config: Any) -> Any:
    """The Config with two iterations of fewer env steps: PPO's minibatches have num_steps rows."""
    if hasattr(config, "num_minibatches"):
        config = dataclasses.replace(config, num_envs=config.num_minibatches)
    else:
        config = dataclasses.replace(
            config,
            num_envs=NUM_ENVS,
            train_interval=NUM_ENVS,
            steps_per_iteration=4 * NUM_ENVS,
            learning_starts=BATCH_SIZE,
            batch_size=BATCH_SIZE,
            buffer_size=BUFFER_SIZE,
        )
    return dataclasses.replace(config, total_timesteps=config.env_steps(2))


def try_preset(script: str, env: str) -> str:
    """Train for two iterations. Returns a row of the table."""
    module, started = importlib.import_module(script), time.perf_counter()
    config = shrink(read_presets(script, module.Config)[env])
    try:
        state, metrics = jax.jit(module.make_train(config))(jax.random.key(0))
    except ValueError as error:
        return f"| {script} | {env} | error: {error} | |"
    for name in episode_metrics(state.env_state):
        del metrics[name]  # NaN where no episode has ended
    finite = {name: jnp.isfinite(x).all() for name, x in metrics.items()}
    finite |= {"params": jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(state.params)]).all()}
    wrong = ", ".join(name for name, is_finite in finite.items() if not is_finite)
    result = f"error: not finite: {wrong}" if wrong else "ok"
    return f"| {script} | {env} | {result} | {time.perf_counter() - started:.0f} |"


def main() -> None:
    """Each preset in a process of its own, whose memory is free afterwards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="presets such as ppo/brax/ant; by default all")
    arguments = parser.parse_args()
    classes = {script: importlib.import_module(script).Config for script in SCRIPTS}
    presets = [(script, env) for script in SCRIPTS for env in read_presets(script, classes[script], "small")]
    if unknown := set(arguments.only) - {"/".join(preset) for preset in presets}:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join('/'.join(preset) for preset in presets)}")
    print("| script | environment | two iterations | s |\n|---|---|---|---|", flush=True)
    is_wrong = False
    spawn = multiprocessing.get_context("spawn")
    for preset in presets:
        if not arguments.only or "/".join(preset) in arguments.only:
            with ProcessPoolExecutor(1, spawn) as pool:
                row = pool.submit(try_preset, *preset).result()
            print(row, flush=True)
            is_wrong |= "error" in row
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
