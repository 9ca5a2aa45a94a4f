"""Flags, their help, and the presets behind them."""

import dataclasses
import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from helpers import ENVS, SCRIPTS, call, capture, presets

from runner.experiment import Experiment
from runner.main import parse_command_line
from runner.options.fields import Options
from runner.options.parse import check_unchanged
from runner.report.progress import print_header


@pytest.fixture(params=SCRIPTS)
def script(request):
    return request.param


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """A terminal so narrow that the help has one column."""
    monkeypatch.setenv("COLUMNS", "120")


def parsed(script, *words):
    """Config and Options of a command line."""
    module = importlib.import_module(script)
    given = []
    result = capture(lambda: given.append(parse_command_line(module.__file__, module.Config)), module.__file__, *words)
    assert result.status == 0, result
    return given[0][:2]


def help_of(script, *words):
    """The text of --help without the frames around it."""
    module = importlib.import_module(script)
    result = capture(lambda: parse_command_line(module.__file__, module.Config), module.__file__, *words, "--help")
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
    result = capture(lambda: parse_command_line(module.__file__, module.Config), module.__file__, "--help")
    assert result.stdout.startswith(f"usage: python {script}.py")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout, "colours are for terminals"


# -- Presets -----------------------------------------------------------------------------------------------------------


def some_presets(script):
    """Holds for an environment of gymnax and for one of another suite."""
    chosen = dict({"/" in env: (env, preset) for env, preset in presets(script).items()}.values())
    assert chosen
    return chosen


def test_a_preset_is_the_default_of_its_environment(script):
    for env, preset in some_presets(script).items():
        for words in (["--env", env], [f"--env={env}"]):
            config, _ = parsed(script, *words)
            assert config == preset


def test_options_of_an_environment_keep_its_preset(script):
    for env, preset in some_presets(script).items():
        config, _ = parsed(script, "--env", f"{env}:max_episode_steps=7")
        assert config == dataclasses.replace(preset, env=f"{env}:max_episode_steps=7")


def test_the_suite_gymnax_may_be_named(script):
    for env, preset in some_presets(script).items():
        if "/" not in env:
            assert parsed(script, "--env", f"gymnax/{env}")[0] == preset
            config, _ = parsed(script, "--env", f"gymnax/{env}:max_episode_steps=7")
            assert config == dataclasses.replace(preset, env=f"{env}:max_episode_steps=7")


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("gymnax/CartPole-v1:", "CartPole-v1"),
        ("CartPole-v1:max_episode_steps=1e2,gravity=9.80", "CartPole-v1:gravity=9.8,max_episode_steps=100"),
    ],
)
def test_an_environment_has_one_name_however_it_is_written(env, name):
    assert parsed("ppo", "--env", env)[0] == dataclasses.replace(presets("ppo")["CartPole-v1"], env=name)


def test_presets_name_their_environment_and_what_they_change(script):
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


NAMED = """
[[preset]]
envs = ["CartPole-v1", "Acrobot-v1"]
num_envs = 64

[[preset]]
envs = ["CartPole-v1"]
name = "small"
num_envs = 2
num_steps = 16
num_epochs = 1
num_minibatches = 2
hidden_sizes = [8]
total_timesteps = 64
"""


@pytest.fixture
def named_presets(tmp_path, monkeypatch):
    """Presets of PPO, one of them with a name."""
    monkeypatch.setattr("common.presets.FOLDER", tmp_path)
    (tmp_path / "ppo.toml").write_text(NAMED)


@pytest.mark.usefixtures("named_presets")
def test_a_preset_is_taken_by_its_name():
    for words in (["--preset", "small"], ["--preset=small"], ["--env", "CartPole-v1:reset_period=1", "--preset=small"]):
        config, options = parsed("ppo", *words)
        assert (config.num_envs, config.num_steps, options.preset) == (2, 16, "small")
    assert parsed("ppo", "--preset", "small", "--num-envs", "8")[0].num_envs == 8, "flags win"
    config, options = parsed("ppo")
    assert (config.num_envs, options.preset) == (64, "")


@pytest.mark.usefixtures("named_presets")
def test_help_shows_the_values_of_the_chosen_preset():
    text = help_of("ppo", "--preset", "small")
    assert "The defaults are those of CartPole-v1, preset small." in text
    assert flag_helps(text)["num_envs"].endswith("(default: 2)")
    assert "The defaults are those of CartPole-v1." in help_of("ppo")


@pytest.mark.usefixtures("named_presets")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "smal"], "presets/ppo.toml has no preset smal for CartPole-v1, only small"),
        (
            ["--preset=small", "--env=Acrobot-v1"],
            "presets/ppo.toml has no preset small for Acrobot-v1, whose presets have no name: leave --preset out",
        ),
    ],
)
def test_a_name_that_no_preset_has_is_refused_in_one_line(words, message):
    result = call("ppo", *words)
    assert (result.status, result.stdout, result.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.slow
@pytest.mark.usefixtures("named_presets", "folder")
def test_the_chosen_preset_is_recorded_and_named_by_the_best():
    words = ["--preset", "small", "--ent-coef", "0", "--sweep", "gamma=0.9,0.5", "--eval-episodes", "0"]
    result = call("ppo", *words, "--name", "sweep")
    assert result.status == 0, result
    directory = Path("runs/ppo/CartPole-v1/sweep")
    record, summary = (json.loads((directory / f"{name}.json").read_text()) for name in ("config", "summary"))
    assert (record["options"]["preset"], record["config"]["num_envs"]) == ("small", 2)
    rerun = shlex.split(summary["rerun"])
    assert rerun[6:10] == ["--seed", "0", "--preset", "small"]
    gamma = summary["settings"][summary["ranking"][0]]["gamma"]
    expected = ["--eval-episodes", "0", "--ent-coef", "0.0", "--gamma", str(gamma)]
    assert sorted(rerun[10:]) == sorted(expected), "what differs from the preset and the options' defaults"
    Path("ppo.toml").write_text(NAMED.replace("small", "other"))  # read from the record, not from the file
    result = call("ppo", "--resume", str(directory), "--total-timesteps", "96")
    assert result.status == 0, result
    assert "--preset" not in json.loads((directory / "summary.json").read_text())["rerun"]


@pytest.mark.usefixtures("named_presets")
@pytest.mark.parametrize(
    ("env", "platform", "options", "is_said"),
    [
        ("CartPole-v1", "cpu", {}, True),
        ("CartPole-v1:reset_period=1", "cpu", {}, True),
        ("CartPole-v1", "gpu", {}, False),
        ("CartPole-v1", "tpu", {}, False),
        ("CartPole-v1", "cpu", {"preset": "small"}, False),
        ("CartPole-v1", "cpu", {"resume": "runs/x"}, False),
        ("Acrobot-v1", "cpu", {}, False),
    ],
)
def test_a_preset_of_gpu_size_is_said_to_be_one_on_a_cpu(env, platform, options, is_said, monkeypatch, capsys):
    device = SimpleNamespace(platform=platform, device_kind="it", memory_stats=lambda: {"bytes_limit": 2**40})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    config = dataclasses.replace(presets("ppo")[env.partition(":")[0]], env=env)
    print_header(Experiment("ppo.py", None, config, Options(**options), {}), True, 1, jnp.zeros(3))
    line = "this preset is of GPU size, 499,712 env steps per seed; on a CPU, --preset small takes 64\n"
    output = capsys.readouterr().out
    assert (line in output) == is_said
    assert ("GPU size" in output) == is_said


def test_a_resumed_run_keeps_its_preset():
    saved, given = ((importlib.import_module("ppo").Config(), Options(preset=name)) for name in ("", "small"))
    with pytest.raises(ValueError, match=r'^run was started with preset = "", not small; leave the flag out'):
        check_unchanged("run", saved, given)


# -- Values ------------------------------------------------------------------------------------------------------------


def test_every_kind_of_value_is_read(script):
    words = ["--hidden-sizes", "32", "16", "8", "--activation", "swish", "--gamma", "1e-1", "--normalize-obs"]
    config, options = parsed(script, *words, "--num_envs", "3", "--checkpoint-every", "0", "--wandb-per-seed")
    assert (config.hidden_sizes, config.activation, config.gamma) == ((32, 16, 8), "swish", 0.1)
    assert (config.normalize_obs, config.num_envs) == (True, 3)
    assert (options.checkpoint_every, options.wandb_per_seed) == (0.0, True)
    assert all(type(size) is int for size in config.hidden_sizes)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--normalize_obs=True", "--seed=1"], {"normalize_obs": True, "seed": 1}),
        (["--anneal_learning_rate=False"], {"anneal_learning_rate": False}),
        (["--normalize-obs=true", "--anneal-learning-rate=0"], {"normalize_obs": True, "anneal_learning_rate": False}),
        (["--checkpoint_buffer=False", "--wandb-per-seed=1"], {"checkpoint_buffer": False, "wandb_per_seed": True}),
        (["--normalize-obs", "--seed", "1"], {"normalize_obs": True, "seed": 1}),
        (["--hidden_sizes=[64, 32]"], {"hidden_sizes": (64, 32)}),
        (["--hidden-sizes=(64,)"], {"hidden_sizes": (64,)}),
        (["--num_envs=16.0", "--learning_rate=1e-05"], {"num_envs": 16, "learning_rate": 1e-5}),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_values_may_be_written_as_python_and_wandb_write_them(words, expected):
    config, options = parsed("ppo", *words)
    fields = vars(config) | vars(options)
    assert {name: fields[name] for name in expected} == expected


def test_a_switch_is_on_or_off():
    result = call("ppo", "--normalize-obs=maybe")
    assert (result.status, result.stdout) == (2, "")
    assert result.stderr == "error: --normalize-obs is a switch: give True or False, not 'maybe'\n"


def test_parsing_leaves_the_command_line_as_it_is(script, monkeypatch):
    words = [f"{script}.py", "--env", ENVS[script][0], "--seed", "3"]
    monkeypatch.setattr(sys, "argv", words.copy())
    module = importlib.import_module(script)
    parse_command_line(module.__file__, module.Config)
    assert sys.argv == words


def test_a_ranking_without_a_sweep_is_refused_also_when_resuming():
    ranked = Options(rank_by="mean", resume="run")
    with pytest.raises(ValueError, match="--rank-by has no effect without a --sweep"):
        check_unchanged("run", (None, Options()), (None, ranked))
