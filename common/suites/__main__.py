"""List environments: python -m common.suites; of a suite: python -m common.suites brax; describe one: ... brax/ant"""

import argparse
import signal
import sys

import jax

import common  # noqa: F401  # before gymnax
from common.environment import make_env
from common.spaces import actor_obs
from common.suites import import_suite, suites


def describe(name: str) -> str:
    """One line: actions, observations and time limit.

    Raises:
        ValueError: it cannot be made.
    """
    env = make_env(name)
    is_discrete = hasattr(env.action_space, "n")
    actions = f"{env.action_space.n} actions" if is_discrete else f"{env.action_space.shape[0]} continuous"
    shapes = jax.tree.leaves_with_path(env.obs_shape, is_leaf=lambda x: isinstance(x, tuple))
    parts = [(jax.tree_util.keystr(path, simple=True, separator="."), shape) for path, shape in shapes]
    obs = ", ".join(f"{part} {'x'.join(map(str, shape)) or 'scalar'}".strip() for part, shape in parts)
    dtype = jax.tree.leaves(actor_obs(env.obs_dtype))[0]
    limit = f"{env.max_episode_steps:,} steps" if env.max_episode_steps else "no limit"
    return f"{actions:15} {f'{obs} {dtype}':20} {limit}"


def list_suite(suite: str, is_described: bool) -> None:
    """Print the names of a suite's environments, and before them its description; no environment is made."""
    try:
        module, names = import_suite(suite)
    except ImportError as error:
        print(f"{suite} {error}")
        return
    if is_described and module.__doc__:
        print(f"{module.__doc__.strip()}\n")
    print(f"{suite}, {len(names)} environments:")
    for name in names:
        print(f"  {name if suite == 'gymnax' else f'{suite}/{name}'}")


def main() -> None:
    """List the environments of all suites or of those that are asked for, and describe those that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m common.suites", description="List environments.")
    known = ", ".join(suites())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"suite ({known}) or environment; none: all suites")
    chosen = parser.parse_args().names
    for name in chosen or suites():
        if name in suites():
            list_suite(name, is_described=bool(chosen))
            continue
        try:
            print(f"{name:40} {describe(name)}", flush=True)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it in silence, as it ends ls
    main()
