"""Flags, their help, and the presets behind them."""

import dataclasses
import importlib
import re
import sys

import pytest
from helpers import ENVS, SCRIPTS, capture, presets

from runner.ask.options import Options
from runner.main import ask


@pytest.fixture(params=SCRIPTS)
def script(request):
    return request.param


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """Not so wide that the help has two columns."""
    monkeypatch.setenv("COLUMNS", "120")


def parsed(script, *words):
    """Config and Options of a command line."""
    module = importlib.import_module(script)
    given = []
    result = capture(lambda: given.append(ask(module.__file__, module.Config)), module.__file__, *words)
    assert result.status == 0, result
    return given[0][:2]


def help_of(script, *words):
    """What --help says, without the frames around it."""
    module = importlib.import_module(script)
    result = capture(lambda: ask(module.__file__, module.Config), module.__file__, *words, "--help")
    assert (result.status, result.stderr) == (0, "")
    return re.sub(r"[│╭╮╰╯─]+", "", result.stdout)


def flag_helps(text):
    """The help of each flag by its name: what stands behind the flag and its type, and on the indented lines below."""
    helps = {}
    for line in text.splitlines():
        flag = r" {1,2}--([a-z][a-z-]*)(?:, --no-[a-z-]+)?(?: (?:\[.*?\]\]|\{\S+\}|[A-Z]+))?(?:\s{2,}(.*))?"
        if match := re.fullmatch(flag, line.rstrip()):
            name = match[1].replace("-", "_")
            helps[name] = (match[2] or "").strip()
        elif line.startswith(" " * 10) and helps:
            helps[name] = f"{helps[name]} {line.strip()}".strip()
    return helps


def fields(script):
    """Every option of a run and every field of the script's Config, with its default."""
    config = importlib.import_module(script).Config()
    return {**dataclasses.asdict(Options()), **dataclasses.asdict(config)}


# -- Help --------------------------------------------------------------------------------------------------------------


def test_help_shows_two_groups(script):
    text = help_of(script)
    algorithm, run = text.index(f"{script} options"), text.index("run options")
    assert f"Settings of {script.upper()}." in text[algorithm:run]
    assert "Options of the run, the same for every algorithm." in text[run:]
    assert flag_helps(text[algorithm:run]).keys() == dataclasses.asdict(importlib.import_module(script).Config()).keys()
    assert flag_helps(text[run:]).keys() == dataclasses.asdict(Options()).keys()


def test_every_flag_has_a_line_of_help(script):
    helps = flag_helps(help_of(script))
    assert helps.keys() == fields(script).keys()
    for name, line in helps.items():
        assert re.fullmatch(r"\S.{3,} \((default: .*|repeatable)\)", line), f"--{name} is not explained: {line!r}"
    assert len(set(helps.values())) == len(helps), "two flags have the same help"


def test_help_shows_the_values_that_will_run(script):
    env, preset = next(iter(presets(script).items()))
    for words in (["--env", env], [f"--env={env}"]):
        text = help_of(script, *words)
        helps = flag_helps(text)
        assert f"The defaults are those of {env}." in text
        assert f"(default: {env})" in helps["env"]
        for name, value in dataclasses.asdict(preset).items():
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            assert helps[name].endswith(f"(default: {shown})"), name


def test_help_fits_a_narrow_terminal(script, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    module = importlib.import_module(script)
    result = capture(lambda: ask(module.__file__, module.Config), module.__file__, "--help")
    assert result.stdout.startswith(f"usage: python {script}.py")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout, "colours are for terminals"


# -- Presets -----------------------------------------------------------------------------------------------------------


def test_without_flags_the_default_environment_has_its_preset(script):
    module = importlib.import_module(script)
    config, options = parsed(script)
    assert config == presets(script).get(module.Config().env, module.Config())
    assert options == Options()


def test_every_preset_is_taken_by_its_name(script):
    assert presets(script)
    for env, preset in presets(script).items():
        for words in (["--env", env], [f"--env={env}"]):
            config, _ = parsed(script, *words)
            assert config == preset


def test_options_of_an_environment_keep_its_preset(script):
    for env, preset in presets(script).items():
        config, _ = parsed(script, "--env", f"{env}:max_episode_steps=7")
        assert config == dataclasses.replace(preset, env=f"{env}:max_episode_steps=7")


def test_the_suite_gymnax_may_be_named(script):
    for env, preset in presets(script).items():
        if "/" not in env:
            assert parsed(script, "--env", f"gymnax/{env}")[0] == preset
            config, _ = parsed(script, "--env", f"gymnax/{env}:max_episode_steps=7")
            assert config == dataclasses.replace(preset, env=f"{env}:max_episode_steps=7")


def test_presets_name_their_environment_and_differ_from_the_defaults(script):
    module = importlib.import_module(script)
    for env, preset in presets(script).items():
        assert preset.env == env
        assert preset != module.Config(env=env), f"the preset of {env} is the default"


@pytest.mark.parametrize("order", ["before", "after"])
def test_flags_win_over_presets(script, order, tmp_path, monkeypatch):
    monkeypatch.setattr("common.presets.FOLDER", tmp_path)
    preset = f'[[preset]]\nenvs = ["{ENVS[script][0]}"]\ntotal_timesteps = 30_000\ngamma = 0.5\nnormalize_obs = true'
    (tmp_path / f"{script}.toml").write_text(preset)
    env, changes = ["--env", ENVS[script][0]], ["--gamma", "0.75", "--no-normalize-obs"]
    config, _ = parsed(script, *(env + changes if order == "after" else changes + env))
    assert (config.total_timesteps, config.gamma, config.normalize_obs) == (30_000, 0.75, False)


def test_an_environment_without_a_preset_has_the_defaults(script):
    module = importlib.import_module(script)
    config, _ = parsed(script, "--env", "MemoryChain-bsuite")
    assert config == dataclasses.replace(module.Config(), env="MemoryChain-bsuite")
    text = help_of(script, "--env", "MemoryChain-bsuite")
    assert "The defaults are those of Config; MemoryChain-bsuite has no preset." in text


# -- Values ------------------------------------------------------------------------------------------------------------


def test_every_kind_of_value_is_read(script):
    words = ["--hidden-sizes", "32", "16", "8", "--activation", "swish", "--gamma", "1e-1", "--normalize-obs"]
    config, options = parsed(script, *words, "--num_envs", "3", "--checkpoint-every", "0", "--wandb-per-seed")
    assert (config.hidden_sizes, config.activation, config.gamma) == ((32, 16, 8), "swish", 0.1)
    assert (config.normalize_obs, config.num_envs) == (True, 3)
    assert (options.checkpoint_every, options.wandb_per_seed) == (0.0, True)
    assert all(type(size) is int for size in config.hidden_sizes)


def test_parsing_leaves_the_command_line_as_it_is(script, monkeypatch):
    words = [f"{script}.py", "--env", ENVS[script][0], "--seed", "3"]
    monkeypatch.setattr(sys, "argv", words.copy())
    module = importlib.import_module(script)
    ask(module.__file__, module.Config)
    assert sys.argv == words
