"""Checks of a Config that hold for every script."""

import dataclasses
import typing

import jax
import jax.numpy as jnp


def check_config(config) -> None:
    """Refuse fields of the wrong type and runs of no length.

    Raises:
        ValueError: naming the field, what it is and what it should be.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if not _fits(value, hint):
            name = getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)
            name = "a positive int" if hint is int else name
            traced = " (only float fields may be swept)" if isinstance(value, jax.Array) else ""
            raise ValueError(f"{field.name} must be {name.replace('typing.', '')}, not {value!r}{traced}")
    if config.num_iterations < 1:
        raise ValueError(
            f"total_timesteps = {config.total_timesteps} is less than one iteration, "
            f"{config.steps_per_iteration} env steps"
        )
    if config.total_timesteps >= 2**31:
        raise ValueError(
            f"total_timesteps = {config.total_timesteps} does not fit the int32 counters; the most is 2**31 - 1"
        )


def _fits(value, hint) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, typing.get_args(hint)[0]) for item in value)
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number or (
            isinstance(value, jax.Array) and value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.floating)
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return isinstance(value, hint)
