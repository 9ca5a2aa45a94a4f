"""What a reset costs, in steps, by depth and by width: python benchmarks/resets.py [--only brax/hopper ...]

Depth: kernels one after another of a reset and of a step of `--num-envs` environments, compiled for an H100 that need
not be there; a GPU that they do not fill takes as long as that. Width: CPU time of both. The period is the one at which
both cost at most SHARE of the steps between two renewals, 0 where a reset is CHEAP. The head of kernels.py says how to
make its environment, into which requirements-environments.txt goes too. A loop of unknown length counts once.
"""

import argparse
import time

import kernels  # sets the platforms, before JAX is imported

# isort: split

import jax
import numpy as np
from environments import ENVIRONMENTS
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from common.environment import make_env

SHARE = 0.05  # of resets in the cost of steps, where starts are kept
CHEAP = 2  # steps; a reset that costs no more by either measure may be computed at every step
OTHERS = ("brax/ant", "playground/CartpoleSwingup", "pgx/2048", "craftax/Craftax-Classic-Pixels-v1")


def count_kernels(function, *arguments) -> int:
    """Kernels of a function of abstract arrays, compiled for an H100."""
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="gpu", topology="1x1x1", target_config=kernels.TARGET
    )
    sharding = NamedSharding(Mesh(np.array(topology.devices[:1]), ("env",)), PartitionSpec())
    place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
    text = jax.jit(function).lower(*jax.tree.map(place, arguments)).compile().as_text()
    return sum(len(lines) * rounds for _, _, lines, rounds in kernels.count(*kernels.read_computations(text)))


def seconds(function, state, keys) -> float:
    """CPU-seconds of `function(keys, state) -> state` in a loop, the least of three measurements."""

    def repeat(state, keys, times):
        def body(i, state):
            new = function(jax.vmap(jax.random.fold_in, (0, None))(keys, i), state)
            return jax.tree.map(lambda x, old: x.astype(old.dtype), new, state)

        return jax.lax.fori_loop(0, times, body, state)

    program, times, used = jax.jit(repeat).lower(state, keys, np.int32(1)).compile(), 1, []
    while len(used) < 3:
        started = time.process_time()
        jax.block_until_ready(program(state, keys, np.int32(times)))
        passed = time.process_time() - started
        if passed < 0.2:  # a call takes as long as some steps
            times = int(np.clip(0.3 * times / max(passed, 1e-3), times + 1, 100 * times))
        else:
            used.append(passed / times)
    return min(used)


def measure(name: str, num_envs: int) -> list:
    """One row of the table."""
    env = make_env(name)
    reset, step = jax.vmap(env.suite.reset), jax.vmap(env.suite.step)
    keys = jax.random.split(jax.random.key(0), num_envs)
    actions = jax.vmap(env.action_space.sample)(keys)
    _, state = jax.jit(reset)(keys)
    deep = [count_kernels(reset, keys), count_kernels(step, keys, state, actions)]
    wide = [seconds(lambda keys, _: reset(keys)[1], state, keys)]
    wide += [seconds(lambda keys, state: step(keys, state, actions)[1], state, keys)]
    ratios = [deep[0] / deep[1], wide[0] / wide[1]]
    most = max(ratios)
    period = int(2 ** np.ceil(np.log2(most / SHARE))) if most > CHEAP else 0
    return [name, *deep, *ratios, env.reset_period, period]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*ENVIRONMENTS, *OTHERS])
    parser.add_argument("--num-envs", type=int, default=256)
    arguments = parser.parse_args()
    print("| environment | kernels of a reset | of a step | ratio | CPU time, ratio | period today | by both |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.only:
        row = measure(name, arguments.num_envs)
        print("| " + " | ".join(f"{x:.2g}" if isinstance(x, float) else f"{x}" for x in row) + " |", flush=True)


if __name__ == "__main__":
    main()
