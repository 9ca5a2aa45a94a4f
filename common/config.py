"""Types and checks of a Config's fields, the same for every script."""

import dataclasses
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

ConfigType = TypeVar("ConfigType")


class Range(NamedTuple):
    """The finite values that a float field may have, or the values of an int field that are not only positive."""

    text: str  # completes "must be ..."
    holds: Callable[[Any], bool]


NonNegativeInt = Annotated[int, Range("an int of at least 0", lambda x: x >= 0)]
NonNegative = Annotated[float, Range("at least 0", lambda x: x >= 0)]
Positive = Annotated[float, Range("above 0", lambda x: x > 0)]
Fraction = Annotated[float, Range("between 0 and 1", lambda x: 0 <= x <= 1)]
PositiveFraction = Annotated[float, Range("above 0 and at most 1", lambda x: 0 < x <= 1)]


def validate(config: ConfigType) -> ConfigType:
    """Check every field, and return the config with its floats as float32.

    A swept float is a float32 on the device: the host computes in the same type, so that a setting gives the same
    numbers inside and outside a sweep.

    Raises:
        ValueError: naming the field, its value and what it must be.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for name, hint in hints.items():
        check_value(name, getattr(config, name), hint)
    if config.num_iterations < 1:
        least = f"the {config.env_steps(1)} env steps of one iteration"
        raise ValueError(f"total_timesteps = {config.total_timesteps} is less than {least}")
    floats = {name: getattr(config, name) for name, hint in hints.items() if _split(hint)[0] is float}
    on_host = {name: np.float32(value) for name, value in floats.items() if not isinstance(value, jax.Array)}
    return dataclasses.replace(config, **on_host)


def require(config: Any, holds: Any, text: str) -> None:
    """Check a rule of a script's fields.

    Args:
        holds: a bool. What depends on a traced field is not judged; the command line judges each value of a sweep.
        text: the rule, which names the fields.

    Raises:
        ValueError: the rule, and the values of the fields that it names.
    """
    if isinstance(holds, jax.core.Tracer) or holds:
        return
    names = {field.name for field in dataclasses.fields(config)}.intersection(re.findall(r"\w+", text))
    values = ", ".join(f"{name} = {getattr(config, name)!s}" for name in sorted(names, key=text.index))
    raise ValueError(f"{text}, not {values}")


def require_multiple(config: Any, name: str, *divisors: str, least: int = 1) -> None:
    """Check that a field or property of a Config is a multiple of others, and at least `least` times each.

    Raises:
        ValueError: naming both and their values, of a property also what its docstring says.
    """
    value = getattr(config, name)
    kind = getattr(type(config), name, None)
    if isinstance(kind, property) and kind.__doc__:
        name = f"{name} ({kind.__doc__.rstrip('.').lower()})"
    for divisor in divisors:
        number = getattr(config, divisor)
        if value % number or value < least * number:
            at_least = f", at least {least} times" if least > 1 else ""
            raise ValueError(f"{name} = {value} must be a multiple of {divisor} = {number}{at_least}")


def check_value(name: str, value: Any, hint: Any) -> None:
    """Check the value of one field against its annotation; a tracer has only a type to check.

    Raises:
        ValueError: naming the field, its value and what it must be.
    """
    kind, allowed = _split(hint)
    if kind is int and not allowed:
        allowed = Range("a positive int", lambda x: x >= 1)
    if not _fits(value, kind) or (kind is int and not allowed.holds(value)):
        described = allowed.text if kind is int else kind.__name__ if isinstance(kind, type) else str(kind)
        traced = " (only float fields may be swept)" if isinstance(value, jax.Array) else ""
        raise ValueError(f"{name} must be {described.replace('typing.', '')}, not {value!r}{traced}")
    if kind is int and value >= 2**31:
        raise ValueError(f"{name} = {value} does not fit an int32; the most is 2**31 - 1")
    if kind is float and not isinstance(value, jax.core.Tracer):
        try:
            with np.errstate(over="ignore"):
                number = np.float32(value)
        except OverflowError:  # an int of hundreds of digits
            number = np.inf
        if not np.isfinite(number):
            raise ValueError(f"{name} must be finite as a float32 (at most 3.4e38), not {value}")
        if allowed and not allowed.holds(number):
            rounded = ", which is 0 as a float32" if number == 0 != value else ""
            raise ValueError(f"{name} must be {allowed.text}, not {value}{rounded}")


def _split(hint: Any) -> tuple[Any, Range | None]:
    """An annotation's type, and its range if it has one."""
    if typing.get_origin(hint) is Annotated:
        return hint.__origin__, next((x for x in hint.__metadata__ if isinstance(x, Range)), None)
    return hint, None


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        (item_kind, _) = typing.get_args(kind)
        return isinstance(value, tuple) and all(_fits(x, item_kind) and (item_kind is not int or x >= 1) for x in value)
    if kind is float:
        if isinstance(value, jax.Array):
            return value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.floating)
        return isinstance(value, int | float | np.float32) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
