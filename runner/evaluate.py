"""Scores of a policy, also in another environment: python -m runner.evaluate RUN --env CartPole-v1:length=1.0"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from common.environment import Environment, make_env
from common.suites import canonical_name
from runner.devices.evaluation import episode_limit, evaluate, greedy_policy, sampled_policy
from runner.devices.placement import is_finite
from runner.errors import exit_on_errors
from runner.files.load import load
from runner.files.record import read_record
from runner.files.store import write_json
from runner.options.parse import registry
from runner.report.results import COLUMNS, INTERVAL, count, numbers, row
from runner.report.statistics import summarize


@dataclass(frozen=True)
class Arguments:
    """Evaluate all seeds of a run over whole episodes, such as in levels that were held out or with other physics."""

    run: Annotated[str, tyro.conf.Positional]  # folder that a training run wrote
    env: str = ""  # environment with the same observations and actions; empty: the one of the run
    episodes: int = 100  # whole episodes of each seed
    max_steps: int = 10_000  # steps after which an episode is cut; the limit of the environment holds
    sampled: bool = False  # sampled actions instead of greedy ones
    setting_index: int | None = None  # which setting of a sweep, counted from 0; None: the best one
    script: str = ""  # file of the script that trained it, if it is not one of this checkout


def check_alike(trained: Environment, other: Environment) -> None:
    """Raise ValueError unless two environments have the same observations and actions."""
    one, two = ((env.obs_shape, env.obs_dtype, describe_space(env.action_space)) for env in (trained, other))
    for what, x, y in zip(("observations", "types of observations", "actions"), one, two, strict=True):
        if x != y:
            raise ValueError(f"the policy was trained with {what} {x}, and the environment has {y}")


def describe_space(space: Any) -> str:
    """`3 actions`, or the bounds of continuous ones."""
    if hasattr(space, "n"):
        return f"{space.n} actions"
    low, high = (np.broadcast_to(x, space.shape).tolist() for x in (space.low, space.high))
    return f"from {low} to {high}"


def play(arguments: Arguments) -> dict[str, Any]:
    """Evaluate all seeds; the entries of the file."""
    config, algorithm, states = load(arguments.run, None, arguments.setting_index, arguments.script or None)
    swept = [text.partition("=")[0].replace("-", "_") for text in read_record(Path(arguments.run)).options["sweep"]]
    setting = {name: float(str(np.float32(getattr(config, name)))) for name in swept}
    name = canonical_name(arguments.env or config.env)
    env = make_env(name)
    check_alike(make_env(config.env), env)
    limit, num_seeds = episode_limit(env, arguments.max_steps), len(jax.tree.leaves(states)[0])

    def play_seed(state, key):
        key, action_key = jax.random.split(key)
        policy = (algorithm, state, arguments.episodes)
        act, memory = sampled_policy(*policy, action_key) if arguments.sampled else greedy_policy(*policy)
        return evaluate(env, act, memory, key, arguments.episodes, limit)

    keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), np.uint32(2**32 - 1)))(jnp.arange(num_seeds))
    named = "".join(f" at {field}={value}" for field, value in setting.items())
    print(f"evaluating {count(num_seeds, 'seed')}{named} in {name}", flush=True)
    episodes = jax.tree.map(np.asarray, jax.jit(jax.vmap(play_seed))(states, keys))
    scores, lengths = (episodes[key].mean(axis=1) for key in ("episode_return", "episode_length"))
    healthy = np.asarray(is_finite(states.params))
    kept = healthy if healthy.any() else ~healthy
    return {
        "diverged": np.flatnonzero(~healthy).tolist(),
        "env": name,
        "setting": setting,
        "episodes": arguments.episodes,
        "sampled": arguments.sampled,
        "cut_episodes": int(episodes["is_cut"].sum()),
        "eval_episode_return": summarize(scores[kept]) | {"per_seed": scores.tolist()},
        "eval_episode_length": summarize(lengths[kept]) | {"per_seed": lengths.tolist()},
    }


@exit_on_errors()
def main() -> None:
    """The command line. Exits with status 2 and one line where the input is bad, with 130 after Ctrl-C."""
    arguments = tyro.cli(Arguments, prog="python -m runner.evaluate", registry=registry())
    for name in ("episodes", "max_steps"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(arguments, name)}")
    result = play(arguments)
    parts = [result["env"], *(f"{name}={value}" for name, value in result["setting"].items())]
    name = re.sub(r"[^A-Za-z0-9.=,_-]", "-", "-".join([*parts, *["sampled"] * arguments.sampled]))
    path = Path(arguments.run, f"evaluation-{name}.json")
    write_json(path, result)
    names, scores = ["mean", "iqm", "min", "max"], result["eval_episode_return"]
    seeds, kind = count(len(scores["per_seed"]), "seed"), "sampled" if arguments.sampled else "greedy"
    print(f"\n{kind} evaluation of {seeds}, {count(arguments.episodes, 'whole episode')} each:")
    print(f"{row(COLUMNS, names, INTERVAL)}\n{numbers(scores, names)}")
    if result["diverged"]:
        print(f"diverged (a parameter is not finite), in no number above: seed indices {result['diverged']}")
    if result["cut_episodes"]:
        print(f"{result['cut_episodes']:,} episodes had not ended and were cut")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
