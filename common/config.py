"""Types and checks of a Config's fields, the same for every script."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

ConfigType = TypeVar("ConfigType")


class Range(NamedTuple):
    """The finite values that a float field may have."""

    text: str  # completes "must be ..."
    holds: Callable[[np.float32], bool]


NonNegative = Annotated[float, Range("at least 0", lambda x: x >= 0)]
Positive = Annotated[float, Range("above 0", lambda x: x > 0)]
Fraction = Annotated[float, Range("between 0 and 1", lambda x: 0 <= x <= 1)]
TargetEntropy = Annotated[float, Range("below log 2 = 0.693, the most in [-1, 1]", lambda x: x < np.log(2))]
PositiveFraction = Annotated[float, Range("above 0 and at most 1", lambda x: 0 < x <= 1)]


def validate(config: ConfigType) -> ConfigType:
    """Check every field, and return the config with its floats as float32.

    A swept float is a float32 on the device: the host computes in the same type, so that a setting gives the same
    numbers inside and outside a sweep.

    Raises:
        ValueError: naming the field, its value and what it must be, or the fields that contradict each other.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for name, hint in hints.items():
        check_value(name, getattr(config, name), hint)
    if config.num_iterations < 1:
        prefill = f"learning_starts = {config.learning_starts} plus " if hasattr(config, "learning_starts") else ""
        least = f"{prefill}one iteration of {config.steps_per_iteration} env steps"
        raise ValueError(f"total_timesteps = {config.total_timesteps} is less than {least}")
    floats = {name: getattr(config, name) for name, hint in hints.items() if _split(hint)[0] is float}
    on_host = {name: np.float32(value) for name, value in floats.items() if not isinstance(value, jax.Array)}
    if getattr(config, "normalize_reward", False) and on_host.get("reward_scale") != 1:  # None: it is swept
        raise ValueError("reward_scale must be 1 if normalize_reward, which divides by it again")
    if {"epsilon_start", "epsilon_end"} <= on_host.keys() and config.epsilon_start < config.epsilon_end:
        raise ValueError(f"epsilon_start = {config.epsilon_start} must be at least epsilon_end = {config.epsilon_end}")
    if {"value_min", "value_max"} <= on_host.keys() and config.value_min >= config.value_max:
        raise ValueError(f"value_min = {config.value_min} must be below value_max = {config.value_max}")
    if getattr(config, "num_bins", 2) < 2:
        raise ValueError(f"num_bins must be at least 2, not {config.num_bins}")
    if on_host.get("exploration_noise_max") and config.num_envs == 1:
        raise ValueError("exploration_noise_max, the noise of the last environment, needs num_envs of at least 2")
    return dataclasses.replace(config, **on_host)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Check the value of one field against its annotation; a tracer has only a type to check.

    Raises:
        ValueError: naming the field, its value and what it must be.
    """
    kind, allowed = _split(hint)
    if not _fits(value, kind):
        described = {int: "a positive int"}.get(kind, kind.__name__ if isinstance(kind, type) else str(kind))
        traced = " (only float fields may be swept)" if isinstance(value, jax.Array) else ""
        raise ValueError(f"{name} must be {described.replace('typing.', '')}, not {value!r}{traced}")
    if kind is int and value >= 2**31:
        raise ValueError(f"{name} = {value} does not fit an int32; the most is 2**31 - 1")
    if kind is float and not isinstance(value, jax.core.Tracer):
        with np.errstate(over="ignore"):
            number = np.float32(value)
        if not np.isfinite(number):
            raise ValueError(f"{name} must be finite as a float32 (at most 3.4e38), not {value}")
        if allowed and not allowed.holds(number):
            rounded = ", which is 0 as a float32" if number == 0 != value else ""
            raise ValueError(f"{name} must be {allowed.text}, not {value}{rounded}")


def _split(hint: Any) -> tuple[Any, Range | None]:
    """An annotation's type, and the range of a float that has one."""
    if typing.get_origin(hint) is Annotated:
        return hint.__origin__, hint.__metadata__[0]
    return hint, None


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_fits(item, typing.get_args(kind)[0]) for item in value)
    if kind is float:
        if isinstance(value, jax.Array):
            return value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.floating)
        return isinstance(value, int | float | np.float32) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return isinstance(value, kind)


def check_rollout(config: Any, least: int = 1, is_whole: bool = False) -> None:
    """Check that the minibatches divide a rollout, into `least` rows or more each; `is_whole`: of whole environments.

    Raises:
        ValueError: naming the fields and what they must be.
    """
    rows, parts = config.num_envs * config.num_steps, config.num_minibatches
    if is_whole and config.num_envs % parts:
        raise ValueError(f"num_minibatches = {parts} must divide num_envs = {config.num_envs}")
    if rows % parts or rows // parts < least:
        at_least = f", with at least {least} rows each" if least > 1 else ""
        raise ValueError(f"num_minibatches = {parts} must divide num_envs * num_steps = {rows}{at_least}")


def check_replay(config: Any) -> None:
    """Check the fields of a replay's schedule, so that gradient_steps / train_interval is exact.

    Raises:
        ValueError: naming the fields and what they must be.
    """
    num_envs, interval, learning_starts = config.num_envs, config.train_interval, config.learning_starts
    cycle_steps = max(num_envs, interval)
    if cycle_steps % min(num_envs, interval):
        raise ValueError(f"num_envs = {num_envs} and train_interval = {interval}: one must divide the other")
    for name in ("steps_per_iteration", "target_interval"):
        value = getattr(config, name, cycle_steps)
        if value % cycle_steps:
            raise ValueError(f"{name} = {value} must be a multiple of {cycle_steps} = max(num_envs, train_interval)")
    if learning_starts % num_envs:
        raise ValueError(f"learning_starts = {learning_starts} must be a multiple of num_envs = {num_envs}")
    window = getattr(config, "n_step", 1) * num_envs  # rows that a transition of n steps spans
    if not max(config.batch_size, window) <= learning_starts <= config.buffer_size:
        least = f"batch_size = {config.batch_size} and n_step * num_envs = {window}"
        bounds = f"at least {least}, and at most buffer_size = {config.buffer_size}"
        raise ValueError(f"learning_starts = {learning_starts} must be {bounds}")
    policy_delay = getattr(config, "policy_delay", 1)
    if config.cycle_updates % policy_delay:
        updates = f"{config.cycle_updates}, which is gradient_steps * max(num_envs, train_interval) / train_interval"
        raise ValueError(f"policy_delay = {policy_delay} must divide cycle_updates = {updates}")
