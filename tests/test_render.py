"""python -m runner.render: a saved policy as an animation."""

import shutil

import pytest
from helpers import call, capture, execute, small_run
from PIL import Image

from common.suites import Suite, gymnax
from runner import render

# Drawable and not, with actions that the script takes.
DRAWN = {"ppo": "CartPole-v1", "td3": "Pendulum-v1"}
NOT_DRAWN = {
    "ppo": "MemoryChain-bsuite",
    "td3": "Reacher-misc",
}


@pytest.fixture(scope="module", params=DRAWN)
def script(request):
    return request.param


pytestmark = pytest.mark.usefixtures("compilations", "folder")


def trained(script, env, folder, **options):
    """The folder of a very short run."""
    result = call(script, *small_run(script, 1, env=env, out=str(folder), name="drawn", eval_episodes=0, **options))
    assert result.status == 0, result
    return folder / script / env / "drawn"


@pytest.fixture(scope="module")
def run(script, compilations, tmp_path_factory):
    """A run of two seeds in an environment that can be drawn."""
    return trained(script, DRAWN[script], tmp_path_factory.mktemp(script))


def draw(*words):
    """The command line in this process."""
    return capture(render.main, "render", *map(str, words))


def assert_refused(result, *words):
    assert result.status == 2, result
    assert result.stderr.startswith("error: "), result
    assert result.stderr.count("\n") == 1, result
    for word in words:
        assert str(word) in result.stderr, result


def test_an_episode_becomes_an_animation(run, folder):
    words = ["--seed-index", "1", "--out", "new/folder/episode.gif", "--max-steps", "4"]
    result = execute("-m", "runner.render", str(run), *words, cwd=folder)
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.startswith("4 steps, return ")
    assert result.stdout.endswith("written to new/folder/episode.gif\n")
    with Image.open(folder / "new/folder/episode.gif") as animation:
        assert animation.format == "GIF"
        assert animation.n_frames == 4
        frames = []
        for i in range(animation.n_frames):
            animation.seek(i)
            frames.append(animation.convert("RGB").tobytes())
    assert len(set(frames)) > 1, "nothing moves"
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_an_environment_that_gymnax_cannot_draw(script, folder, tmp_path_factory):
    other = trained(script, NOT_DRAWN[script], tmp_path_factory.mktemp("other"), num_seeds=1)
    assert_refused(draw(other), f"{NOT_DRAWN[script]}: gymnax draws only ", "CartPole-v1")
    assert list(folder.iterdir()) == []


def test_a_suite_that_draws_nothing(script, run, folder, monkeypatch):
    monkeypatch.setattr(gymnax.Suite, "renderer", Suite.renderer)
    assert_refused(draw(run), f"{DRAWN[script]}: ", "cannot be drawn")
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


def test_a_file_that_cannot_be_written(run, folder):
    (folder / "file").write_text("")
    assert_refused(draw(run, "--max-steps", 2, "--out", "file/episode.gif"), "file")


def test_no_steps(run):
    assert_refused(draw(run, "--max-steps", 0), "max_steps")


def test_the_run_must_be_named():
    result = draw()
    assert result.status == 2
    assert "run" in result.stderr.lower()
    assert "Traceback" not in result.stderr
