"""common/config.py: a Config that cannot be honoured is refused, with the name of the field and what it may be."""

import dataclasses
import importlib
import re
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ENVS, ROOT
from hypothesis import given
from hypothesis import strategies as st

from common.config import Fraction, NonNegative, NonNegativeInt, Positive, PositiveFraction, require, validate


@dataclass(frozen=True)
class Config:
    """A field of every kind that the scripts have."""

    env: str = "CartPole-v1"
    total_timesteps: int = 1000
    num_envs: int = 4
    num_steps: int = 5
    learning_rate: NonNegative = 1e-3
    gamma: Fraction = 0.99
    tau: PositiveFraction = 0.5
    adam_eps: Positive = 1e-8
    target_entropy: float = -1.0
    burn_in: NonNegativeInt = 0
    anneal: bool = True
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_iterations(self) -> int:
        return self.total_timesteps // self.steps_per_iteration

    def env_steps(self, iterations: int) -> int:
        return iterations * self.steps_per_iteration


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"learning_rate": 1},
        {"learning_rate": 0},
        {"learning_rate": np.float64(0.1)},
        {"learning_rate": jnp.float32(0.1)},
        {"gamma": 0.0, "tau": 1.0, "target_entropy": -3.5},
        {"gamma": 1, "tau": 1e-6, "adam_eps": 1e30},
        {"burn_in": 3},
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
    validate(Config(**change))


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
        ("num_envs", 0),
        ("num_envs", None),
        ("burn_in", -1),
        ("burn_in", 0.0),
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
        validate(Config(**{field: value}))
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("learning_rate", -1e-3, "at least 0"),
        *(("gamma", value, "between 0 and 1") for value in (1.5, -0.1, jnp.float32(1.5))),
        *(("tau", value, "above 0 and at most 1") for value in (0, 2.0, -1.0)),
        *(("adam_eps", value, "above 0") for value in (0.0, 1e-60, -1e-8)),
    ],
)
def test_a_float_out_of_its_range_is_refused_with_the_range(field, value, allowed):
    with pytest.raises(ValueError, match=rf"^{field} must be {allowed}, not ") as caught:
        validate(Config(**{field: value}))
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("field", ["learning_rate", "gamma", "tau", "adam_eps", "target_entropy"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e39, -1e39, jnp.float32("inf")])
def test_a_float_that_float32_does_not_hold_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be finite as a float32 .*, not ") as caught:
        validate(Config(**{field: value}))
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("adam_eps", 1e-50), ("adam_eps", np.float64(1e-50)), ("tau", 1e-50)])
def test_a_float_that_rounds_to_zero_is_refused_with_that_reason(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be above 0.*, not 1e-50, which is 0 as a float32$"):
        validate(Config(**{field: value}))


def test_floats_become_float32_like_those_that_are_swept():
    """1 - 0.2 in double precision, rounded, is another float32 than the difference of the two as float32."""
    config = validate(Config(learning_rate=0.2, gamma=jnp.float32(0.5)))
    assert type(config.learning_rate) is np.float32
    assert type(1 - config.learning_rate) is np.float32
    assert isinstance(config.gamma, jax.Array)
    assert validate(config) == config


@given(
    field=st.sampled_from([field.name for field in dataclasses.fields(Config)]),
    value=st.one_of(
        st.none(), st.binary(), st.complex_numbers(), st.lists(st.integers()), st.dictionaries(st.text(), st.text())
    ),
)
def test_values_of_no_fitting_type_are_refused_whatever_they_are(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be "):
        validate(Config(**{field: value}))


def test_a_float_may_be_a_tracer():
    def sweep(learning_rate):
        validate(Config(learning_rate=learning_rate))
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
        validate(Config(**{field: traced}))
        return traced

    with pytest.raises(ValueError, match=rf"^{field} must be .*only float fields may be swept"):
        jax.jit(sweep)(value)


def test_a_tracer_inside_a_tuple_is_refused():
    with pytest.raises(ValueError, match=r"^hidden_sizes must be "):
        jax.jit(lambda size: validate(Config(hidden_sizes=(size,))))(64)


@pytest.mark.parametrize("total_timesteps", [1, 19])
def test_a_run_of_less_than_one_iteration_is_refused(total_timesteps):
    with pytest.raises(ValueError, match=rf"total_timesteps = {total_timesteps} .* 20 env steps"):
        validate(Config(total_timesteps=total_timesteps))


ITERATION = r"steps_per_iteration \(env steps per iteration, num_envs \* num_steps\) = 512"
CYCLE = r"cycle_steps \(env steps per cycle, the larger of num_envs and train_interval\) = 4"
REPLAY = {
    "num_envs": 2,
    "train_interval": 4,
    "steps_per_iteration": 100,
    "learning_starts": 100,
    "batch_size": 10,
    "buffer_size": 1000,
}
OFF_POLICY = ["dqn", "categorical_dqn", "sac", "sac_discrete", "td3"]
RULES = {
    "ppo": [
        ({"num_minibatches": 7}, f"^{ITERATION} must be a multiple of num_minibatches = 7, at least 2 times$"),
        (
            {"normalize_reward": True, "reward_scale": 0.5},
            "to be 1, not normalize_reward = True, reward_scale = 0.5",
        ),
    ],
    "ppo_rnn": [
        ({"num_envs": 6, "num_minibatches": 4}, "^num_envs = 6 must be a multiple of num_minibatches = 4$"),
        ({"normalize_reward": True, "reward_scale": 2.0}, "^normalize_reward, which divides by reward_scale, needs it"),
    ],
    "pqn": [
        (
            {"epsilon_start": 0.4, "epsilon_end": 0.5},
            "^epsilon_start must be at least epsilon_end, not epsilon_start = ",
        )
    ],
    "reppo": [
        (
            {"value_min": 99.0, "value_max": -99.0},
            "^value_min must be below value_max, not value_min = 99.0, ",
        ),
        ({"value_min": 7.0, "value_max": 7.0}, "^value_min must be below value_max"),
        ({"num_bins": 1}, "^num_bins must be at least 2, not num_bins = 1$"),
        ({"target_entropy": 0.6932}, "^target_entropy must be below log 2 = 0.693, the most in .*= 0.6932"),
    ],
    "dqn": [
        ({"epsilon_start": 0.4, "epsilon_end": 0.5}, "^epsilon_start must be at least epsilon_end"),
        ({"target_interval": 6}, "^target_interval = 6 must be a multiple of train_interval = 4$"),
    ],
    "categorical_dqn": [
        ({"value_min": 99.0, "value_max": -99.0}, "^value_min must be below value_max"),
        ({"num_bins": 1}, "^num_bins must be at least 2"),
        ({"epsilon_start": 0.4, "epsilon_end": 0.5}, "^epsilon_start must be at least epsilon_end"),
    ],
    "sac": [({"target_entropy": 1.0}, "^target_entropy must be below log 2")],
    "td3": [
        (
            {"exploration_noise_max": 0.5, "num_envs": 1},
            "^exploration_noise_max needs num_envs to be at least 2, not",
        ),
        (
            {"policy_delay": 3},
            r"^cycle_updates \(gradient steps .*\) = 2 must be a multiple of policy_delay = 3$",
        ),
    ],
}
BETWEEN = "^learning_starts must be at least batch_size and at most buffer_size, not learning_starts = 100, "
OF_REPLAY = [
    ({"num_envs": 3}, f"^{CYCLE} must be a multiple of num_envs = 3$"),
    ({"steps_per_iteration": 102}, "^steps_per_iteration = 102 must be a multiple of train_interval = 4$"),
    ({"learning_starts": 101}, "^learning_starts = 101 must be a multiple of num_envs = 2$"),
    ({"batch_size": 101}, BETWEEN),
    ({"buffer_size": 99}, BETWEEN),
]
RULES |= {script: [*RULES.get(script, []), *OF_REPLAY] for script in OFF_POLICY}


@pytest.mark.parametrize("script", RULES)
def test_fields_that_contradict_each_other_are_refused(script):
    module = importlib.import_module(script)
    start = dataclasses.replace(module.Config(), **(REPLAY if script in OFF_POLICY else {}))
    module.make(start)
    for changes, message in RULES[script]:
        with pytest.raises(ValueError, match=message):
            module.make(dataclasses.replace(start, **changes))


def test_a_copy_with_renamed_fields_keeps_its_checks(tmp_path, monkeypatch):
    """The kit knows no field of a script by its name."""
    renamed = {"train_interval": "update_every", "learning_starts": "warmup", "buffer_size": "capacity_of_replay"}
    text = (ROOT / "sac.py").read_text()
    for old, new in renamed.items():
        text = re.sub(rf"\b{old}\b", new, text)
    (tmp_path / "renamed_sac.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("renamed_sac")
    start = module.Config(**{renamed.get(name, name): value for name, value in REPLAY.items()})
    module.make(start)
    for changes, message in RULES["sac"]:
        changed = {renamed.get(name, name): value for name, value in changes.items()}
        for old, new in renamed.items():
            message = message.replace(old, new)
        with pytest.raises(ValueError, match=message):
            module.make(dataclasses.replace(start, **changed))


def test_a_rule_of_a_traced_field_is_not_judged():
    config = importlib.import_module("dqn").Config(epsilon_end=0.5)

    def sweep(epsilon_start):
        changed = dataclasses.replace(config, epsilon_start=epsilon_start)
        require(changed, changed.epsilon_start >= changed.epsilon_end, "epsilon_start must be at least epsilon_end")
        return epsilon_start

    jax.jit(sweep)(0.4)
    with pytest.raises(ValueError, match=r"^epsilon_start must be at least epsilon_end, not epsilon_start = 0\.4"):
        sweep(jnp.float32(0.4))


@pytest.mark.parametrize("script", ["dqn", "td3", "sac", "sac_discrete"])
def test_a_run_without_an_iteration_is_refused(script):
    module = importlib.import_module(script)
    changes = {"env": ENVS[script][0], "total_timesteps": 600, "steps_per_iteration": 100, "learning_starts": 10_000}
    message = "total_timesteps = 600 is less than the 10100 env steps of one iteration"
    with pytest.raises(ValueError, match=message):
        module.make(dataclasses.replace(module.Config(), **changes))


@pytest.mark.parametrize("field", ["total_timesteps", "num_envs"])
@pytest.mark.parametrize("number", [2**31, 10**12])
def test_what_int32_cannot_count_is_refused(field, number):
    with pytest.raises(ValueError, match=rf"{field} = {number} .*2\*\*31 - 1"):
        validate(Config(**{field: number}))
