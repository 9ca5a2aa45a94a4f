"""Weights & Biases, offline."""

import json
import os
import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from helpers import ENVS, call, execute, flags, path_of, run_differences, saved_metrics, small_config, small_run
from PIL import Image
from runs import FakeRun, assert_finished, assert_refused, contents, directory_of, one

import runner.devices.programs
import runner.main
from runner.experiment import Experiment
from runner.options.fields import Options

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


# No account, and no way out to the network.
ALONE = {"WANDB_API_KEY": None, "WANDB_MODE": None, "https_proxy": "http://127.0.0.1:9", "http_proxy": None}


def wandb_runs(directory):
    """The bytes of each offline run below a folder; names and values stand in them as they are."""
    return sorted(unframed(path.read_bytes()) for path in directory.glob("wandb/offline-run-*/run-*.wandb"))


def unframed(content):
    """The records of LevelDB's log format, joined; those that reach into the next block of 32 KiB are in pieces."""
    data, start = b"", 7  # behind wandb's own header
    while start < len(content):
        room = 2**15 - start % 2**15
        if room < 7:  # too little for the header of a piece: checksum, length, kind
            start += room
            continue
        length = int.from_bytes(content[start + 4 : start + 6], "little")
        data += content[start + 7 : start + 7 + length]
        start += 7 + length
    return data


def logged(run, name):
    """Each value that an offline run has under a name, in order; those in its summary too."""
    ends = [match.end() for match in re.finditer(name.encode() + rb"\x82\x01", run)]
    return [float(run[end + 1 : end + 1 + run[end]]) for end in ends]  # a byte that tells the length, and the digits


@one
def test_wandb_without_network(script, undisturbed, folder):
    arguments = small_run(script, name="tracked", wandb="offline")
    result = execute(path_of(script), *arguments, cwd=folder, HOME=str(folder), **ALONE)
    assert_finished(result)
    directory = directory_of(script, "tracked")
    assert run_differences(directory, undisturbed[2]) == []
    metrics = saved_metrics(directory)
    summary = json.loads((directory / "summary.json").read_text())["eval_episode_return"]
    group = f"{script}-{ENVS[script][0]}-tracked"
    assert result.stdout.endswith(f"\n  upload:      wandb sync {directory}/wandb/offline-run-*\n")
    (run,) = wandb_runs(directory)
    assert group.encode() in run
    env_steps = [0, *metrics["env_steps"].tolist()]  # 0: the evaluation of the untrained policy
    assert sorted(set(logged(run, "env_steps"))) == sorted(set(logged(run, "_step"))) == env_steps
    assert set(logged(run, "num_episodes")) == set(metrics["num_episodes"].mean(axis=0))
    assert logged(run, "eval_episode_return")[-1] == pytest.approx(summary["iqm"], rel=1e-4)
    (animation,) = directory.glob("wandb/offline-run-*/files/media/**/*.gif")
    with Image.open(animation) as episode:
        assert episode.n_frames > 5, "a greedy episode of the first seed"


@pytest.mark.parametrize(
    ("env", "is_healthy", "eval_episodes", "is_logged"),
    [
        ("CartPole-v1", True, 1, True),
        ("CartPole-v1", False, 1, False),
        ("CartPole-v1", True, 0, False),
        ("MemoryChain-bsuite", True, 1, False),
    ],
    ids=["healthy", "diverged", "not evaluated", "not drawn"],
)
def test_an_episode_of_a_healthy_seed_is_logged(env, is_healthy, eval_episodes, is_logged, undisturbed_ppo):
    logged = []
    tracker = SimpleNamespace(
        runs=[1], log_episode=lambda step, path: logged.append((step, path.suffix, path.exists()))
    )
    config = SimpleNamespace(env=env, num_iterations=2, env_steps=lambda iterations: 10 * iterations)
    experiment = Experiment(path_of("ppo"), None, config, Options(eval_episodes=eval_episodes), {})
    run = SimpleNamespace(experiment=experiment, tracker=tracker, directory=undisturbed_ppo)
    runner.main.log_episode(run, SimpleNamespace(scores={"is_healthy": [is_healthy, True]}))
    assert logged == [(20, ".gif", True)] * is_logged


def test_an_episode_that_cannot_be_drawn_is_a_warning(capsys):
    config, tracker = SimpleNamespace(env="CartPole-v1", num_iterations=2), SimpleNamespace(runs=[1])
    experiment = Experiment("", None, config, Options(eval_episodes=1), {})
    run = SimpleNamespace(experiment=experiment, tracker=tracker, directory="nowhere")
    runner.main.log_episode(run, SimpleNamespace(scores={"is_healthy": [True]}))
    assert capsys.readouterr().err.startswith("warning: wandb has no episode: ")


@one
def test_wandb_without_an_account(script, folder):
    result = execute(path_of(script), *small_run(script, wandb="online"), cwd=folder, HOME=str(folder), **ALONE)
    assert_refused(result, "--wandb online", "wandb login", "offline")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("mode", ["offline", "online"])
@one
def test_wandb_that_is_not_installed(script, mode, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert_refused(call(script, *small_run(script, wandb=mode)), f"--wandb {mode}", "pip install wandb")
    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--wandb", "offline", "--wandb-project", "a/b"],
            "wandb_project must have at most 128 characters and none of",
        ),
        (["--wandb", "offline", "--wandb-project", 129 * "x"], "wandb_project must have at most 128 characters"),
        (["--wandb-per-seed"], "--wandb-per-seed has no effect without --wandb offline or --wandb online"),
    ],
    ids=lambda x: " ".join(x)[:60] if isinstance(x, list) else "",
)
def test_wandb_options_are_refused_before_a_folder_is_made(words, message, folder):
    assert_refused(call("ppo", *small_run("ppo"), *words), message)
    assert contents(folder) == {}


@pytest.mark.parametrize("words", [["--wandb-per-seed", "--num-seeds", "2"], ["--sweep", "gamma=0.9,0.99"]])
def test_an_agent_of_wandb_takes_one_run_from_a_command(words, folder, monkeypatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    message = f"an agent of wandb takes one wandb run from each command: leave {words[0]} out"
    assert_refused(call("ppo", *small_run("ppo", wandb="offline"), *words), message)
    assert contents(folder) == {}


def test_wandb_needs_a_home_directory(folder, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert_refused(call("ppo", *small_run("ppo", wandb="offline")), "--wandb offline needs a home directory: set HOME")
    assert contents(folder) == {}


def test_a_resumed_run_continues_its_wandb_runs(monkeypatch):
    """One of each seed."""
    import wandb

    inits, logged = [], {}
    begin = lambda **kwargs: inits.append(kwargs) or FakeRun(logged.setdefault(kwargs["name"], []))
    monkeypatch.setattr(wandb, "init", begin)
    arguments = small_run("ppo", name="tracked", wandb="offline", wandb_per_seed=True, eval_episodes=0)
    assert_finished(call("ppo", *arguments))
    total = small_config("ppo", 44).total_timesteps
    result = call("ppo", "--resume", str(directory_of("ppo", "tracked")), *flags(total_timesteps=total))
    assert_finished(result)
    assert {kwargs["resume"] for kwargs in inits} == {"allow"}
    ids = [kwargs["id"] for kwargs in inits]
    assert len(ids) == 4
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
    assert all("-seed" in x for x in ids), (
        "those of the settings, if it is resumed without --wandb-per-seed, are others"
    )
    env_steps = [small_config("ppo").env_steps(i + 1) for i in range(44)]
    num_episodes = saved_metrics(directory_of("ppo", "tracked"))["num_episodes"]
    for trial, name in enumerate(["ppo-CartPole-v1-tracked-seed0", "ppo-CartPole-v1-tracked-seed1"]):
        assert [values["env_steps"] for values in logged[name]] == env_steps
        assert [values["num_episodes"] for values in logged[name]] == num_episodes[trial].tolist()


def test_wandb_that_cannot_start(monkeypatch, folder):
    import wandb

    def init(**_):
        raise wandb.errors.CommError("the key is not valid")

    monkeypatch.setattr(wandb, "init", init)
    result = call("ppo", *small_run("ppo", wandb="offline"))
    assert_refused(result, "wandb cannot start: the key is not valid; --wandb offline needs no network")
    assert not list(folder.rglob("*.json")), "the same --name could not be used again"


@one
def test_wandb_tells_algorithms_options_and_settings_apart(script, monkeypatch):
    import wandb

    inits = []
    monkeypatch.setattr(wandb, "init", lambda **kwargs: inits.append(kwargs) or FakeRun([]))
    arguments = small_run(script, 2, name="tracked", wandb="offline", num_seeds=1, eval_episodes=0, eval_max_steps=77)
    assert_finished(call(script, *arguments, "--sweep", "gamma=0.9,0.99"))
    group = f"{script}-{ENVS[script][0]}-tracked"
    assert [kwargs["name"] for kwargs in inits] == [f"{group}-gamma=0.9", f"{group}-gamma=0.99"]
    for kwargs, gamma in zip(inits, (0.9, 0.99), strict=True):
        assert (kwargs["group"], kwargs["tags"]) == (group, [script])
        expected = {"algorithm": script, "gamma": gamma, "eval_max_steps": 77, "seed": 0, "num_seeds": 1}
        assert kwargs["config"].items() >= expected.items()


def test_wandb_gets_evaluations_in_the_order_of_env_steps(monkeypatch):
    """Its steps may not go back."""
    import wandb

    logged = []
    monkeypatch.setattr(wandb, "init", lambda **_: FakeRun(logged))
    arguments = small_run("ppo", name="tracked", wandb="offline", trials_per_batch="1", eval_every="320")
    assert_finished(call("ppo", *arguments))
    steps = [values["env_steps"] for values in logged]
    assert steps == sorted(set(steps))
    metrics = saved_metrics(directory_of("ppo", "tracked"))
    evaluated = {x["env_steps"]: x["eval_episode_return"] for x in logged if "eval_episode_return" in x}
    expected = metrics["eval_episode_return"].mean(axis=0)
    assert evaluated == dict(zip(metrics["eval_env_steps"].tolist(), expected.tolist(), strict=True))


def test_wandb_gets_the_share_of_healthy_trials_with_every_record(monkeypatch):
    """The second of five trials has diverged. The IQM would be 1."""
    import wandb

    def compile_init(*args):
        init = compiled(*args)

        def poisoned(settings, keys):
            state = init(settings, keys)
            return state.replace(params=jax.tree.map(lambda x: x.at[1].set(jnp.nan), state.params))

        return poisoned

    runs, compiled = [], runner.devices.programs.compile_init
    monkeypatch.setattr(wandb, "init", lambda **_: runs.append(FakeRun([])) or runs[-1])
    monkeypatch.setattr(runner.devices.programs, "compile_init", compile_init)
    result = call("ppo", *small_run("ppo", 4, num_seeds=5, wandb="offline", eval_every="64"))
    assert_finished(result)
    shares = [values["is_healthy"] for run in runs for values in run.logged if "grad_norm" in values]
    assert shares == 4 * [0.8]
    assert runs[0].summary["is_healthy"] == shares[0]
    assert "1 of 5 seeds diverged" in result.stdout
