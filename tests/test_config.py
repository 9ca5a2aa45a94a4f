"""common/config.py: a Config that cannot be honoured is refused, with the name of the field."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import check_config


@dataclass(frozen=True)
class Config:
    """A field of every kind that the scripts have."""

    env: str = "CartPole-v1"
    total_timesteps: int = 1000
    num_envs: int = 4
    num_steps: int = 5
    learning_rate: float = 1e-3
    anneal: bool = True
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_iterations(self) -> int:
        return self.total_timesteps // self.steps_per_iteration


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"learning_rate": 1},
        {"learning_rate": 0},
        {"learning_rate": np.float64(0.1)},
        {"learning_rate": jnp.float32(0.1)},
        {"anneal": False},
        {"hidden_sizes": (8,)},
        {"hidden_sizes": ()},
        {"activation": "relu"},
        {"total_timesteps": 20},
        {"total_timesteps": 2**31 - 1},
    ],
    ids=str,
)
def test_what_fits_is_accepted(change):
    check_config(Config(**change))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", 3),
        ("env", None),
        ("total_timesteps", 1e6),
        ("total_timesteps", "1000"),
        ("num_envs", 2.0),
        ("num_envs", True),
        ("num_envs", -1),
        ("num_envs", None),
        ("learning_rate", "0.1"),
        ("learning_rate", None),
        ("learning_rate", True),
        ("learning_rate", (0.1,)),
        ("learning_rate", jnp.ones(3)),
        ("learning_rate", jnp.int32(1)),
        ("anneal", 1),
        ("anneal", "yes"),
        ("anneal", None),
        ("hidden_sizes", [64, 64]),
        ("hidden_sizes", 64),
        ("hidden_sizes", (64.0,)),
        ("hidden_sizes", (64, -1)),
        ("hidden_sizes", (64, True)),
        ("hidden_sizes", ("64",)),
        ("activation", "gelu"),
        ("activation", ["tanh"]),
        ("activation", None),
    ],
    ids=str,
)
def test_a_wrong_type_is_refused_with_the_name_of_the_field(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be ") as caught:
        check_config(Config(**{field: value}))
    assert repr(value) in str(caught.value)


@given(
    field=st.sampled_from([field.name for field in dataclasses.fields(Config)]),
    value=st.one_of(
        st.none(), st.binary(), st.complex_numbers(), st.lists(st.integers()), st.dictionaries(st.text(), st.text())
    ),
)
def test_values_of_no_fitting_type_are_refused_whatever_they_are(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be "):
        check_config(Config(**{field: value}))


def test_a_float_may_be_a_tracer():
    def sweep(learning_rate):
        check_config(Config(learning_rate=learning_rate))
        return 2.0 * learning_rate

    rates = jnp.array([0.1, 0.2], jnp.float32)
    np.testing.assert_allclose(jax.jit(jax.vmap(sweep))(rates), 2.0 * rates)
    np.testing.assert_allclose(jax.jit(sweep)(0.5), 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_envs", np.int32(4)),
        ("total_timesteps", np.int32(1000)),
        ("total_timesteps", np.float32(1000)),
        ("anneal", np.bool_(True)),
        ("env", np.float32(0.5)),
        ("activation", np.float32(0.5)),
        ("hidden_sizes", np.array([64, 64], np.int32)),
        ("learning_rate", np.int32(1)),
        ("learning_rate", np.ones(3, np.float32)),
    ],
    ids=str,
)
def test_a_tracer_anywhere_else_is_refused_with_a_hint(field, value):
    def sweep(traced):
        check_config(Config(**{field: traced}))
        return traced

    with pytest.raises(ValueError, match=rf"^{field} must be .*only float fields may be swept"):
        jax.jit(sweep)(value)


def test_a_tracer_inside_a_tuple_is_refused():
    with pytest.raises(ValueError, match=r"^hidden_sizes must be "):
        jax.jit(lambda size: check_config(Config(hidden_sizes=(size,))))(64)


@pytest.mark.parametrize("total_timesteps", [1, 19])
def test_a_run_of_less_than_one_iteration_is_refused(total_timesteps):
    with pytest.raises(ValueError, match=rf"total_timesteps = {total_timesteps} .* 20 env steps"):
        check_config(Config(total_timesteps=total_timesteps))


@pytest.mark.parametrize("total_timesteps", [2**31, 10**12])
def test_a_run_that_int32_cannot_count_is_refused(total_timesteps):
    with pytest.raises(ValueError, match=rf"total_timesteps = {total_timesteps} .*2\*\*31 - 1"):
        check_config(Config(total_timesteps=total_timesteps))


@pytest.mark.parametrize("field", ["num_envs", "num_steps"])
def test_an_iteration_of_no_steps_is_refused(field):
    with pytest.raises(ValueError, match=field):
        check_config(Config(**{field: 0}))
