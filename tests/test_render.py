"""python -m runner.render and runner.evaluate: a saved policy as an animation, and its scores elsewhere."""

import json
import shutil

import jax
import numpy as np
import pytest
from helpers import call, capture, execute, path_of, small_run
from PIL import Image
from runs import assert_refused, contents

from common.environment import make_env
from common.suites import Suite, gymnax
from runner import evaluate, load, render
from runner.devices.evaluation import evaluate as play
from runner.devices.evaluation import greedy_policy
from runner.export import __main__ as export

DRAWN, NOT_DRAWN = "CartPole-v1", "MemoryChain-bsuite"

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


def trained(env, folder, **options):
    """The folder of a very short run."""
    result = call("ppo", *small_run("ppo", 1, env=env, out=str(folder), name="drawn", eval_episodes=0, **options))
    assert result.status == 0, result
    return folder / "ppo" / env / "drawn"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two seeds in an environment that can be drawn."""
    return trained(DRAWN, tmp_path_factory.mktemp("ppo"))


def draw(*words):
    """The command line in this process."""
    return capture(render.main, "render", *map(str, words))


def test_an_episode_becomes_an_animation(run, folder):
    words = ["--seed-index", "1", "--out", "new/folder/episode.gif", "--max-steps", "4e0"]
    result = execute("-m", "runner.render", str(run), *words, cwd=folder)
    assert (result.status, result.stderr) == (0, "")
    *steps, last = result.stdout.splitlines()
    assert [line.split()[0] for line in steps] == ["playing", "drawing"]
    assert last.startswith("4 steps, return 4.0,")
    assert last.endswith("written to new/folder/episode.gif")
    with Image.open(folder / "new/folder/episode.gif") as animation:
        assert animation.format == "GIF"
        assert animation.n_frames == 4
        frames = []
        for i in range(animation.n_frames):
            animation.seek(i)
            frames.append(animation.convert("RGB").tobytes())
    assert len(set(frames)) > 1, "nothing moves"
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_the_seeds_choose_the_policy_and_the_episode(run, folder):
    animations = []
    for seed_index, episode_seed in ((0, 0), (1, 0), (0, 1), (0, 0)):
        words = ["--seed-index", seed_index, "--episode-seed", episode_seed, "--max-steps", 8]
        assert draw(run, *words).status == 0
        animations.append((folder / "episode.gif").read_bytes())
    assert len(set(animations)) == 3
    assert animations[3] == animations[0]


def test_an_environment_that_gymnax_cannot_draw(folder, tmp_path_factory):
    other = trained(NOT_DRAWN, tmp_path_factory.mktemp("other"), num_seeds=1)
    assert_refused(draw(other), f"{NOT_DRAWN}: gymnax draws only ", "CartPole-v1")
    assert list(folder.iterdir()) == []


def test_a_suite_that_draws_nothing(run, folder, monkeypatch):
    monkeypatch.setattr(gymnax.Suite, "renderer", Suite.renderer)
    assert_refused(draw(run), f"{DRAWN}: ", "cannot be drawn")
    assert list(folder.iterdir()) == []


def test_a_run_that_is_not_there(folder):
    assert_refused(draw("nowhere"), "nowhere")
    (folder / "empty").mkdir()
    assert_refused(draw("empty"), "empty")


def test_a_run_without_a_checkpoint(run, folder):
    copied = shutil.copytree(run, folder / "copied")
    (copied / "checkpoint.safetensors").unlink()
    assert_refused(draw(copied), copied, "checkpoint")


@pytest.mark.parametrize("index", [2, -1])
def test_a_seed_that_the_run_does_not_have(run, folder, index):
    assert_refused(draw(run, "--seed-index", index), "0 to 1", index)
    assert list(folder.iterdir()) == []


def test_a_setting_of_a_sweep(folder, monkeypatch):
    """Each setting has a policy of its own, and the run says which settings it has."""
    run = trained(DRAWN, folder, num_seeds=1, sweep="learning_rate=0.001,0.1")
    drawn, load = [], render.load
    monkeypatch.setattr(render, "load", lambda *words: drawn.append(load(*words)) or drawn[-1])
    assert draw(run, "--setting-index", 1, "--max-steps", 1).status == 0
    [(config, _, state)] = drawn
    assert config.learning_rate == 0.1
    assert jax.tree.all(jax.tree.map(np.array_equal, state.params, load(run, 0, 1)[2].params))
    assert_refused(draw(run, "--setting-index", 2), "settings 0 to 1", 2)


def test_a_script_that_has_moved(run, folder):
    copied = shutil.copytree(run, folder / "copied")
    record = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(record | {"script": "/gone/mine.py"}))
    assert_refused(draw(copied), "/gone/mine.py", "--script", "load(script=)")
    assert_refused(draw(copied, "--script", "/gone/ppo.py"), "/gone/ppo.py", "not exist")
    assert_refused(draw(copied, "--script", copied / "config.json"), "config.json", ".py")
    (folder / "other.py").write_text("class Config: pass")
    assert_refused(draw(copied, "--script", "other.py"), "other.py", "no make")
    moved = shutil.copy(path_of("ppo"), folder / "mine.py")
    result = draw(copied, "--script", moved, "--max-steps", 2)
    assert (result.status, result.stderr) == (0, "")
    assert (folder / "episode.gif").exists()


def test_a_script_of_another_algorithm(run, folder):
    other = path_of("dqn")
    result = draw(run, "--script", other)
    assert result.status == 2
    assert result.stderr.splitlines()[-1].startswith(f"error: {run} is a run of ppo.py, read with {other}: ")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("out", ["episode.xyz", "episode", "file/episode.gif", "folder.gif"])
def test_a_file_that_cannot_be_written(run, folder, monkeypatch, out):
    """It is refused before the episode is played."""
    (folder / "file").write_text("")
    (folder / "folder.gif").mkdir()
    monkeypatch.setattr(render, "play_episode", None)
    assert_refused(draw(run, "--out", out), out.partition("/")[0])
    assert sorted(path.name for path in folder.iterdir()) == ["file", "folder.gif"]


@pytest.mark.parametrize("seed", [-1, 2**32, 2**65])
def test_a_seed_that_a_key_cannot_have(run, seed):
    assert_refused(draw(run, "--episode-seed", seed), "episode_seed", seed)


def test_no_steps(run):
    assert_refused(draw(run, "--max-steps", 0), "max_steps")


@pytest.mark.parametrize("tool", [render, export])
def test_ctrl_c_is_silent(tool, run, monkeypatch):
    def load(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "load", load)
    result = capture(tool.main, "tool", str(run))
    assert (result.status, result.stdout, result.stderr) == (130, "", "")


def test_a_drawing_that_fails_leaves_the_old_file(run, folder, monkeypatch):
    (folder / "episode.gif").write_text("old")
    monkeypatch.setattr(render, "track", lambda states, *_, **__: iter([*states, 3]))
    assert draw(run, "--max-steps", 3).status == 1
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("episode.gif", "old")]


def test_the_run_must_be_named():
    result = draw()
    assert result.status == 2
    assert "run" in result.stderr.lower()
    assert "Traceback" not in result.stderr


# -- python -m runner.evaluate -----------------------------------------------------------------------------------------


def test_all_seeds_are_evaluated_in_another_environment(run):
    """The pole is twice as long, and an episode ends after 30 steps; the files of the run stay as they were."""
    before = contents(run)
    words = ["--env", "CartPole-v1:max_episode_steps=30,length=1e0", "--episodes", "4"]
    result = capture(evaluate.main, "evaluate", str(run), *words)
    assert (result.status, result.stderr) == (0, ""), result
    path = run / "evaluation-CartPole-v1-length=1,max_episode_steps=30.json"
    assert "greedy evaluation of 2 seeds, 4 whole episodes each:" in result.stdout
    assert result.stdout.endswith(f"written to {path}\n")
    found = json.loads(path.read_text())
    path.unlink()
    assert contents(run) == before
    assert found["env"] == "CartPole-v1:length=1,max_episode_steps=30"
    _, algorithm, state = load(run, 1)
    env = make_env(found["env"])
    key = jax.random.split(jax.random.fold_in(jax.random.key(1), np.uint32(2**32 - 1)))[0]
    episodes = play(env, *greedy_policy(algorithm, state, 4), key, 4, 30)
    np.testing.assert_allclose(found["eval_episode_return"]["per_seed"][1], episodes["episode_return"].mean())
    assert 0 < found["eval_episode_return"]["max"] <= 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "Acrobot-v1"], "the policy was trained with observations (4,), and the environment has (6,)"),
        (["--episodes", "0"], "episodes must be at least 1, not 0"),
    ],
)
def test_bad_input_of_an_evaluation_is_one_line(words, message, run):
    assert_refused(capture(evaluate.main, "evaluate", str(run), *words), message)
