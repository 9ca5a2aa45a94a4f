"""Grids and random samples of float settings, which are trained as trials of one compiled program."""

import dataclasses
import difflib
import itertools
import math
import typing
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.config import check_value

FORMS = "values like 1e-4,3e-4, or log:LOW:HIGH:COUNT, or lin:LOW:HIGH:COUNT"


@dataclass(frozen=True)
class Axis:
    """One --sweep: a list or a range."""

    kind: str  # list, log or lin
    numbers: tuple[float, ...]  # of a list its values, else LOW and HIGH
    count: int  # values on a grid; 0 where settings are drawn from a range

    def grid(self) -> np.ndarray:
        """All values, [count]."""
        if self.kind == "list":
            return np.array(self.numbers)
        return (np.geomspace if self.kind == "log" else np.linspace)(*self.numbers, self.count)

    def draw(self, num_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Random values, float32 [num_samples]."""
        if self.kind == "list":
            return rng.choice(np.array(self.numbers, np.float32), num_samples)
        low, high = np.log(self.numbers) if self.kind == "log" else self.numbers
        drawn = rng.uniform(low, high, num_samples)
        return (np.exp(drawn) if self.kind == "log" else drawn).astype(np.float32)


def read_axes(sweeps: tuple[str, ...], num_samples: int, config: Any) -> dict[str, Axis]:
    """Read and check every `--sweep`, without making its values.

    Args:
        sweeps: `name=a,b,c`, `name=log:low:high:count` (equal ratios) or `name=lin:low:high:count` (equal steps).
        num_samples: if not 0, settings are drawn at random, and ranges have no count.
        config: the Config whose fields are swept.

    Raises:
        ValueError: a name that is unknown, static or given twice, a range that cannot be read, or a value that the
            field cannot have.
    """
    if num_samples and not sweeps:
        raise ValueError(f"sweep_samples = {num_samples} needs a --sweep to draw from")
    axes = {}
    for text in sweeps:
        name, _, values = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        _check_field(name, config)
        if name in axes:
            raise ValueError(f"--sweep {name} is given twice; list all values in one")
        axes[name] = _read_axis(name, values, has_count=not num_samples)
        hint = typing.get_type_hints(type(config), include_extras=True)[name]
        for number in axes[name].numbers:
            check_value(f"--sweep {name}", number, hint)
    return axes


def _check_field(name: str, config: Any) -> None:
    hints = typing.get_type_hints(type(config))
    floats = ", ".join(field.name for field in dataclasses.fields(config) if hints[field.name] is float)
    if name not in hints:
        near = difflib.get_close_matches(name, hints, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {floats}"
        raise ValueError(f"--sweep {name}: there is no such setting; {hint}")
    if hints[name] is not float:
        raise ValueError(
            f"--sweep {name}: only float settings can be swept ({floats}); "
            f"start one run per value with --{name.replace('_', '-')}"
        )


def _read_axis(name: str, values: str, has_count: bool) -> Axis:
    kind, *parts = values.split(":")
    try:
        if kind not in ("log", "lin"):
            kind, parts = "list", values.split(",")
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        raise ValueError(f"--sweep {name}={values} cannot be read; give {FORMS}") from None
    if kind == "list":
        return Axis(kind, numbers, len(numbers))
    if len(numbers) != 2 + has_count:
        count = "LOW:HIGH:COUNT" if has_count else "LOW:HIGH, as --sweep-samples is the count"
        raise ValueError(f"--sweep {name}={values} must be {kind}:{count}")
    if not numbers[0] < numbers[1] or (kind == "log" and numbers[0] <= 0):
        raise ValueError(f"--sweep {name}={values}: LOW must be less than HIGH" + ", and above 0" * (kind == "log"))
    if has_count and not (2 <= numbers[2] < math.inf and numbers[2] % 1 == 0):
        raise ValueError(f"--sweep {name}={values}: COUNT must be an integer of at least 2")
    return Axis(kind, numbers[:2], int(numbers[2]) if has_count else 0)


def count_settings(axes: dict[str, Axis], num_samples: int) -> int:
    """How many settings a sweep has; 1 without one."""
    return num_samples or math.prod(axis.count for axis in axes.values())


def check_distinct(axes: dict[str, Axis]) -> None:
    """Raise ValueError if a sweep has a value twice, or two that are equal as float32: it would train a setting twice.

    Only new runs are checked: recorded ones of earlier versions may have such values.
    """
    for name, axis in axes.items():
        values = np.float32(axis.grid() if axis.count else axis.numbers)
        unique, counts = np.unique(values, return_counts=True)
        if len(unique) < len(values):
            value = str(unique[counts.argmax()])
            raise ValueError(f"--sweep {name} has {value} more than once (values are float32); give each value once")


def make_settings(axes: dict[str, Axis], num_samples: int, seed: int) -> dict[str, np.ndarray]:
    """Every setting of a sweep: the grid of all combinations, the last name changing fastest, or random ones.

    Returns:
        field name -> float32 [num_settings]; empty without a sweep.
    """
    if num_samples:
        rng = np.random.default_rng(seed)
        return {name: axis.draw(num_samples, rng) for name, axis in axes.items()}
    grid = itertools.product(*(axis.grid() for axis in axes.values()))
    return dict(zip(axes, np.array(list(grid), np.float32).T, strict=True)) if axes else {}
