"""Grids and random samples of float settings, to be trained as lanes of one compiled program."""

import dataclasses
import difflib
import itertools
import typing
from typing import Any

import numpy as np

FORMS = "values like 1e-4,3e-4, or log:LOW:HIGH:COUNT, or lin:LOW:HIGH:COUNT"


def make_settings(sweeps: tuple[str, ...], num_samples: int, seed: int, config: Any) -> dict[str, np.ndarray]:
    """Every setting of a sweep.

    Args:
        sweeps: `name=a,b,c`, `name=log:low:high:count` (spaced by a factor) or `name=lin:low:high:count`. More than one
            make the grid of all combinations, the last name changing fastest.
        num_samples: not 0: so many random settings instead; each value is drawn from the list or from the range, whose
            count is left out then.
        seed: of the random settings.
        config: the Config whose fields are swept.

    Returns:
        field name -> float32 [num_settings]; empty without sweeps.

    Raises:
        ValueError: a name that is unknown, static or given twice, or a range that cannot be read.
    """
    if num_samples < 0 or (num_samples and not sweeps):
        raise ValueError(f"sweep_samples = {num_samples} needs a --sweep to draw from, and may not be negative")
    ranges = {}
    for text in sweeps:
        name, _, values = text.partition("=")
        name = name.strip().replace("-", "_")
        check_field(name, values, config)
        if name in ranges:
            raise ValueError(f"--sweep {name} is given twice; write all values behind one")
        ranges[name] = values.strip()
    if num_samples:
        rng = np.random.default_rng(seed)
        return {name: draw(name, values, num_samples, rng) for name, values in ranges.items()}
    grid = itertools.product(*(spread(name, values) for name, values in ranges.items()))
    return dict(zip(ranges, np.array(list(grid), np.float32).T, strict=True)) if ranges else {}


def check_field(name: str, values: str, config: Any) -> None:
    """Raises ValueError unless `name` is a float field of the config."""
    hints = typing.get_type_hints(type(config))
    if name not in hints:
        near = difflib.get_close_matches(name, hints, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"--sweep {name}: there is no such setting{hint}")
    if hints[name] is not float:
        floats = ", ".join(field.name for field in dataclasses.fields(config) if hints[field.name] is float)
        flag = f"--{name.replace('_', '-')}"
        raise ValueError(
            f"--sweep {name}: it shapes the program, so each value needs a run of its own ({flag} in each of them); "
            f"what can be swept is {floats}"
        )


def read(name: str, values: str, has_count: bool) -> tuple[str, list[float]]:
    """`log:1:2:3` -> ("log", [1, 2, 3]); `1,2` -> ("list", [1, 2]). Raises ValueError where it cannot be read."""
    kind, *parts = values.split(":")
    try:
        if kind not in ("log", "lin"):
            kind, parts = "list", values.split(",")
        numbers = [float(part) for part in parts]
        if not np.isfinite(np.array(numbers, np.float32)).all():
            raise ValueError("not finite")
    except ValueError:
        raise ValueError(f"--sweep {name}={values} cannot be read; give {FORMS}") from None
    if kind != "list":
        if len(numbers) != 2 + has_count:
            count = "LOW:HIGH:COUNT" if has_count else "LOW:HIGH, as --sweep-samples is the count"
            raise ValueError(f"--sweep {name}={values} must be {kind}:{count}")
        if numbers[0] >= numbers[1] or (kind == "log" and numbers[0] <= 0):
            raise ValueError(f"--sweep {name}={values}: LOW must be less than HIGH" + ", and above 0" * (kind == "log"))
        if has_count and (numbers[2] < 2 or numbers[2] % 1):
            raise ValueError(f"--sweep {name}={values}: COUNT must be a whole number of at least 2")
    return kind, numbers


def spread(name: str, values: str) -> np.ndarray:
    """The values of one axis of the grid."""
    kind, numbers = read(name, values, has_count=True)
    if kind == "list":
        return np.array(numbers)
    low, high, count = numbers
    return (np.geomspace if kind == "log" else np.linspace)(low, high, int(count))


def draw(name: str, values: str, num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Random values of one field, float32 [num_samples]."""
    kind, numbers = read(name, values, has_count=False)
    if kind == "list":
        return rng.choice(np.array(numbers, np.float32), num_samples)
    low, high = np.log(numbers) if kind == "log" else numbers
    drawn = rng.uniform(low, high, num_samples)
    return (np.exp(drawn) if kind == "log" else drawn).astype(np.float32)


def count_settings(settings: dict[str, Any]) -> int:
    """How many settings a sweep has; 1 without one."""
    return len(next(iter(settings.values()), [None]))


def describe(settings: dict[str, np.ndarray], index: int) -> str:
    """`learning_rate=0.001 gamma=0.99`; the numbers read back as the same float32."""
    return " ".join(f"{name}={float(str(values[index]))}" for name, values in settings.items())
