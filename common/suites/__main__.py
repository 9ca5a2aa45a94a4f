"""List environments: python -m common.suites (every suite), or python -m common.suites brax navix"""

import importlib
import sys

import common  # noqa: F401  # before gymnax
from common.environment import make_env
from common.suites import suites


def describe(name: str) -> str:
    """One line: actions, observations, time limit, and the scripts that take the environment."""
    try:
        env = make_env(name)
    except Exception as error:  # of whatever kind a suite raises
        return str(error).splitlines()[0]
    is_discrete = hasattr(env.action_space, "n")
    actions = f"{env.action_space.n} actions" if is_discrete else f"{env.action_space.shape[0]} continuous"
    shape = "x".join(map(str, env.obs_shape)) or "scalar"
    limit = f"{env.max_episode_steps:,} steps" if env.max_episode_steps else "no limit"
    scripts = "ppo dqn" if is_discrete else "ppo sac td3"
    return f"{actions:15} {f'{shape} {env.obs_dtype}':20} {limit:14} {scripts}"


def main() -> None:
    """Print the names of all environments; of the suites that are asked for, also a description of each."""
    chosen = sys.argv[1:]
    unknown = sorted(set(chosen) - set(suites()))
    if unknown:
        print(f"error: unknown suite {', '.join(unknown)}; the suites are {', '.join(suites())}", file=sys.stderr)
        raise SystemExit(2)
    for suite in chosen or suites():
        module = importlib.import_module(f"common.suites.{suite}")
        try:
            names = module.names()
        except ImportError:
            print(f"{suite}: not installed, pip install {module.REQUIREMENT}")
            continue
        print(f"{suite}, {len(names)} environments:")
        names = [name if suite == "gymnax" else f"{suite}/{name}" for name in names]
        for name in names:
            print(f"  {name:40} {describe(name)}" if chosen else f"  {name}", flush=True)


if __name__ == "__main__":
    main()
