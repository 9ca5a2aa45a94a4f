"""Replay a saved policy: python -m runner.render runs/ppo/CartPole-v1/NAME --seed-index 3 --out episode.gif"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import tyro
from rich.progress import track

from common.environment import make_env
from runner.devices.evaluation import MAX_FRAMES, episode_limit, greedy_policy, play_episode
from runner.errors import exit_on_errors
from runner.files.load import load
from runner.files.record import read_record
from runner.files.store import replacing
from runner.options.parse import registry


@dataclass(frozen=True)
class Arguments:
    """Replay one greedy episode of a saved policy as an animation."""

    run: Annotated[str, tyro.conf.Positional]  # folder that a training run wrote
    seed_index: int = 0  # which of its seeds, counted from 0
    # which setting of a sweep, counted from 0 in the order of config.json; None: the best one
    setting_index: int | None = None
    script: str = ""  # file of the script that trained it, if it is not one of this checkout
    out: str = ""  # file to write, .gif, for brax .html, for 2048 .svg; empty: episode with that ending
    episode_seed: int = 0  # seed of the episode
    max_steps: int = MAX_FRAMES  # the animation stops here if the episode goes on


@exit_on_errors()
def main() -> None:
    """The command line. Exits with status 2 and one line where the input is bad, with 130 after Ctrl-C."""
    arguments = tyro.cli(Arguments, prog="python -m runner.render", registry=registry())
    if arguments.max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, not {arguments.max_steps}")
    if not 0 <= arguments.episode_seed < 2**32:
        raise ValueError(f"episode_seed must be between 0 and 2**32 - 1, not {arguments.episode_seed}")
    trial = arguments.seed_index, arguments.setting_index
    config, algorithm, state = load(arguments.run, *trial, arguments.script or None)
    env = make_env(config.env)
    try:
        ending, render = env.suite.renderer()
    except ValueError as error:
        raise ValueError(f"{config.env}: {error}") from error
    path = Path(arguments.out or f"episode{ending}")
    if path.suffix.lower() != ending:
        raise ValueError(f"--out must end in {ending} for this environment, not {path}")
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    if read_record(Path(arguments.run)).is_sampled:
        print("note: the run was evaluated with sampled actions; this episode is greedy", file=sys.stderr)
    print(f"playing an episode of {config.env}", flush=True)
    key, limit = jax.random.key(arguments.episode_seed), episode_limit(env, arguments.max_steps)
    states, returns = play_episode(env, *greedy_policy(algorithm, state, 1), key, limit)
    print(f"drawing {len(states):,} frames", flush=True)
    with replacing(path) as temporary:
        render(track(states, "drawing", disable=not sys.stdout.isatty()), returns, str(temporary))
    print(f"{len(states)} steps, return {returns[-1]:.1f}, written to {path}")


if __name__ == "__main__":
    main()
