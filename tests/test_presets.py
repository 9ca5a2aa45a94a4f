"""The files of presets: what they may say, and that a mistake in one is a line with the file and the table."""

import contextlib
import dataclasses
import importlib
import sys
import types
from dataclasses import dataclass
from typing import Literal

import pytest
from helpers import ROOT

import ppo
from common.config import Fraction
from common.presets import preset, read_presets

PRESETS = sorted(path.stem for path in (ROOT / "presets").glob("*.toml"))


FILE = "test_presets.toml"  # that of this module's Config


@dataclass(frozen=True)
class Config:
    """One field of each kind."""

    env: str = "Here-v0"
    num_envs: int = 1
    gamma: Fraction = 0.99
    normalize_obs: bool = False
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Write a file of presets and read it."""
    monkeypatch.setattr("common.presets.FOLDER", tmp_path)

    def write_and_read(text, name=""):
        (tmp_path / FILE).write_text(text)
        return read_presets(Config).get(name, {})

    return write_and_read


def test_a_table_gives_its_fields_to_each_of_its_environments(read):
    presets = read("""
[[preset]]
envs = ["A-v0", "suite/B"]
num_envs = 1_000
gamma = 1
hidden_sizes = [32]

# a comment
[[preset]]
envs = ["C-v0"]
normalize_obs = true
activation = "relu"
""")
    first = Config(num_envs=1000, gamma=1, hidden_sizes=(32,))
    assert presets == {
        "A-v0": dataclasses.replace(first, env="A-v0"),
        "suite/B": dataclasses.replace(first, env="suite/B"),
        "C-v0": Config(env="C-v0", normalize_obs=True, activation="relu"),
    }
    assert list(presets) == ["A-v0", "suite/B", "C-v0"]


def test_a_table_may_have_a_name(read):
    text = """
[[preset]]
envs = ["A-v0", "B-v0"]
num_envs = 1_000

[[preset]]
envs = ["A-v0"]
name = "small"
num_envs = 2
"""
    assert read(text) == {"A-v0": Config("A-v0", 1000), "B-v0": Config("B-v0", 1000)}
    assert read(text, "small") == {"A-v0": Config("A-v0", 2)}
    assert read(text, "large") == {}


def test_without_a_file_a_config_has_its_defaults_and_a_warning_says_so():
    assert read_presets(Config) == {}
    with pytest.warns(UserWarning, match=r"there is no presets/test_presets.toml: A-v0 has the defaults of Config"):
        assert preset(Config, "A-v0", gamma=0.5) == Config("A-v0", gamma=0.5)


@pytest.mark.parametrize("base", [ppo.Config, object])
def test_a_config_of_a_notebook_has_the_presets_of_what_it_extends(base, monkeypatch):
    notebook = types.ModuleType("notebook")  # has no file, as __main__ there
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    fields = [("env", str, "A-v0")] if base is object else []
    extended = dataclasses.make_dataclass("Config", [*fields, ("huber_delta", float, 1.0)], bases=(base,), frozen=True)
    extended.__module__ = "notebook"
    if base is object:
        with pytest.warns(UserWarning, match="there is no presets/notebook.toml"):
            assert preset(extended, "CartPole-v1") == extended("CartPole-v1")
    else:
        expected = dataclasses.asdict(preset(base, "CartPole-v1")) | {"huber_delta": 2.0}
        assert dataclasses.asdict(preset(extended, "CartPole-v1", huber_delta=2.0)) == expected


class EnvironmentNeeded(Exception):
    """Raised where `make` would make the environment: it has checked its Config before."""


def reach_environment(script, config, monkeypatch):
    """Call `make` up to there."""

    def make_env(_):
        raise EnvironmentNeeded

    module = importlib.import_module(script)
    monkeypatch.setattr(module, "make_env", make_env)
    with pytest.raises(EnvironmentNeeded):
        module.make(config)


@pytest.mark.parametrize("script", PRESETS)
def test_every_preset_passes_the_checks_of_make(script, monkeypatch):
    """Checks every name: values, and numbers that must divide each other; no environment is made."""
    by_name = read_presets(importlib.import_module(script).Config)
    for presets in by_name.values():
        for config in presets.values():
            reach_environment(script, config, monkeypatch)
    for env, small in by_name.get("small", {}).items():
        large = by_name[""][env]
        assert small.total_timesteps < large.total_timesteps, env
        assert small.num_envs <= large.num_envs, env


@pytest.mark.slow
@pytest.mark.parametrize("script", PRESETS)
def test_every_preset_is_one_of_an_environment(script, rank_promotion):
    for presets in read_presets(importlib.import_module(script).Config).values():
        for env in presets:
            suite, _, name = env.rpartition("/")
            with contextlib.suppress(ImportError):
                assert name in importlib.import_module(f"common.suites.{suite or 'gymnax'}").names()
            if not suite:  # the others are slow to make
                importlib.import_module(script).make(presets[env])


def test_a_preset_that_make_refuses_is_noticed(monkeypatch):
    with pytest.raises(ValueError, match=r"= 512 must be a multiple of num_minibatches = 7"):
        reach_environment("ppo", ppo.Config(num_minibatches=7), monkeypatch)


GOOD = '[[preset]]\nenvs = ["A-v0"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "[[preset]]\nenvs = ['B-v0']\nlearning_rat = 1e-3", "number 2: there is no setting learning_rat"),
        (GOOD + "env = 'B-v0'", "number 1: there is no setting env"),
        (GOOD + "num_envs = 1e6", "number 1: num_envs must be a positive int, not 1000000.0"),
        (GOOD + "num_envs = true", "number 1: num_envs must be a positive int, not True"),
        (GOOD + "gamma = 1.5", "number 1: gamma must be between 0 and 1, not 1.5"),
        (GOOD + "normalize_obs = 1", "number 1: normalize_obs must be bool, not 1"),
        (GOOD + "hidden_sizes = 64", "number 1: hidden_sizes must be tuple[int, ...], not 64"),
        (GOOD + "activation = 'gelu'", "number 1: activation must be Literal['tanh', 'relu'], not 'gelu'"),
        (GOOD + "[[preset]]\nenvs = ['B-v0', 'A-v0']", "number 2: A-v0 has a preset already"),
        ("[[preset]]\nenvs = ['A-v0', 'A-v0']", "number 1: A-v0 has a preset already"),
        ("[[preset]]\nnum_envs = 2", 'number 1: it needs envs = ["NAME", ...]'),
        ("[[preset]]\nenvs = 'A-v0'", 'number 1: it needs envs = ["NAME", ...]'),
        (GOOD + "[[preset]]\nenvs = ['A-v0']\nname = 'x'\ngamma = 2", "number 2: gamma must be between 0 and 1, not 2"),
        (2 * (GOOD + "name = 'small'\n"), "number 2: A-v0 has a preset named small already"),
        (GOOD + "name = 3", 'number 1: name must be text, such as "small", not 3'),
        ("[[preset]]\nenvs = [1]", 'number 1: it needs envs = ["NAME", ...]'),
        (
            "[[preset]]\nenvs = ['gymnax/A-v0']",
            "number 1: envs has gymnax/A-v0, for which no preset is looked up; --env gymnax/A-v0 takes that of A-v0",
        ),
        (
            "[[preset]]\nenvs = ['s/B:size=8']",
            "number 1: envs has s/B:size=8, for which no preset is looked up; --env s/B:size=8 takes that of s/B",
        ),
    ],
)
def test_a_mistake_names_the_file_and_the_table(read, tmp_path, text, message):
    with pytest.raises(ValueError, match="preset") as error:
        read(text)
    assert str(error.value) == f"{tmp_path / FILE}, [[preset]] {message}"


@pytest.mark.parametrize("text", ["[preset]\nenvs = ['A-v0']", "[[presets]]\nenvs = ['A-v0']", "", "preset = 1"])
def test_a_file_that_is_not_one_of_presets_is_refused(read, tmp_path, text):
    with pytest.raises(ValueError, match=r"must consist of tables \[\[preset\]\]") as error:
        read(text)
    assert str(error.value).startswith(f"{tmp_path / FILE}: ")


def test_a_preset_file_is_utf_8_with_or_without_a_mark(read, tmp_path):
    (tmp_path / FILE).write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert read_presets(Config)[""].keys() == {"A-v0"}
    (tmp_path / FILE).write_text(GOOD, "utf-16")
    with pytest.raises(ValueError, match="'utf-8' codec can't decode") as error:
        read_presets(Config)
    assert str(error.value).startswith(f"{tmp_path / FILE}: ")


def test_a_file_that_is_not_toml_is_refused_with_its_line(read, tmp_path):
    with pytest.raises(ValueError, match="line 3") as error:
        read(GOOD + "num_envs == 3")
    assert str(error.value).startswith(f"{tmp_path / FILE}: ")


def test_a_preset_by_its_environment_is_what_the_command_trains():
    plain = read_presets(ppo.Config)[""]["CartPole-v1"]
    assert preset(ppo.Config, "CartPole-v1") == plain
    limited = "CartPole-v1:max_episode_steps=100"
    assert preset(ppo.Config, f"gymnax/{limited}", gamma=0.5) == dataclasses.replace(plain, env=limited, gamma=0.5)
    small = read_presets(ppo.Config)["small"]["Breakout-MinAtar"]
    assert preset(ppo.Config, "Breakout-MinAtar", "small") == small
    assert preset(ppo.Config, "Probe-Nowhere") == ppo.Config(env="Probe-Nowhere")
    with pytest.raises(ValueError, match=r"has no preset large for CartPole-v1"):
        preset(ppo.Config, "CartPole-v1", "large")
    variant = importlib.import_module("pqn")
    assert preset(variant.Config, "CartPole-v1") == read_presets(variant.Config)[""]["CartPole-v1"]
