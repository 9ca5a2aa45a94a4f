"""Whether a copy still is the script: python -m runner.same my_ppo.py ppo.py --set rnd_coef=0

Both train a few iterations with the same settings and keys, and what the copy adds is turned off. Metrics are then
equal bit for bit, or to rounding where the copy's program is another one; rounding grows with the updates.
"""

import argparse
import ast
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from common.presets import preset
from runner.errors import exit_on_errors
from runner.files.load import check_script, import_script

ROUNDING = 1e-4  # largest relative difference that is called rounding


def read_settings(texts: list[str], hints: set[str]) -> dict[str, Any]:
    """`["rnd_coef=0", "head='b'"]` -> fields of a Config. Raises ValueError if it has no such field, or no value."""
    fields = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or (name := name.replace("-", "_")) not in hints:
            raise ValueError(f"--set {text}: give NAME=VALUE, with a field of the copy's Config")
        try:
            fields[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            fields[name] = value
    return fields


def train(make: Callable, config: Any, num_iterations: int) -> dict[str, np.ndarray]:
    """The metrics of the first iterations of seed 0, [num_iterations] each."""
    algorithm = make(config)
    state, step, records = jax.jit(algorithm.init)(jax.random.key(0)), jax.jit(algorithm.step), []
    for iteration in range(num_iterations):
        state, metrics = step(state, iteration)
        records.append(jax.device_get(metrics))
    return {name: np.array([record[name] for record in records]) for name in records[0]}


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest number: none where both are NaN, infinite where one is."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    if np.array_equal(one, other, equal_nan=True):
        return 0.0
    scale = max(np.nanmax(np.abs(one), initial=0), np.nanmax(np.abs(other), initial=0))
    apart = np.where(np.isnan(one) & np.isnan(other), 0.0, np.abs(one - other))
    return float(np.nan_to_num(apart.max() / scale, nan=np.inf))


def compare(arguments: argparse.Namespace) -> bool:
    """Train both and print each metric's difference. Returns whether they are the same."""
    copy, original = (check_script(import_script(path)) for path in (arguments.copy, arguments.original))
    if arguments.iterations < 1:
        raise ValueError(f"--iterations must be at least 1, not {arguments.iterations}")
    hints = {field.name for field in dataclasses.fields(copy.Config)}
    given, config = read_settings(arguments.set, hints), preset(original.Config, arguments.env or original.Config().env)
    config = dataclasses.replace(config, **{name: x for name, x in given.items() if name in vars(config)})
    of_copy = copy.Config(**{name: x for name, x in vars(config).items() if name in hints} | given)
    print(f"{arguments.copy} and {arguments.original}, {arguments.iterations} iterations of {config.env}:")
    both = [train(x.make, y, arguments.iterations) for x, y in ((copy, of_copy), (original, config))]
    width, largest = max(map(len, both[0] | both[1])), np.zeros(arguments.iterations)
    for name in both[0] | both[1]:
        if not all(name in metrics for metrics in both):
            print(f"  {name:{width}}  only in {arguments.copy if name in both[0] else arguments.original}")
            continue
        apart = [difference(*(x[name][:n] for x in both)) for n in range(1, arguments.iterations + 1)]
        largest = np.maximum(largest, apart)
        print(f"  {name:{width}}  {f'differs by {apart[-1]:.1e} of its size' if apart[-1] else 'equal'}")
    growth = ", ".join(f"{x:.1e} after {n}" for n, x in enumerate(largest, start=1))
    is_same = largest[-1] <= ROUNDING
    if is_same:
        print(f"the same to rounding: {growth}" if largest[-1] else "the same bit for bit")
    else:
        print(f"not the same: {growth}; rounding is below 1e-6 after 1, and grows")
    return bool(is_same)


@exit_on_errors()
def main() -> None:
    """The command line. Exits with status 1 if the scripts differ, with 2 and one line where the input is bad."""
    parser = argparse.ArgumentParser(prog="python -m runner.same", description=__doc__.partition("\n\n")[2])
    parser.add_argument("copy", help="file of the copy")
    parser.add_argument("original", help="file of the script that it was made from")
    parser.add_argument("--env", default="", help="environment, whose preset of the original is trained")
    parser.add_argument("--iterations", type=int, default=3, help="iterations to compare (3)")
    parser.add_argument(
        "--set",
        nargs="*",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="fields that turn the change off; those that both have, in both",
    )
    raise SystemExit(not compare(parser.parse_args()))


if __name__ == "__main__":
    main()
