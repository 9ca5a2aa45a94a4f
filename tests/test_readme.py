"""What README.md shows works as it stands there."""

import importlib
import re
import shlex

import pytest
from helpers import ROOT, call, capture, shared_compilations, small_run

from common.suites import suites
from runner import render
from runner.compare import __main__ as compare
from runner.main import ask

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = sorted(
    {
        match[1]
        for match in re.finditer(r"(?:^|`|&& )python ((?:\w+\.py|-m (?:common|runner)\.).*?)(?:`|$)", README, re.M)
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run as the README names it."""
    folder = tmp_path_factory.mktemp("readme")
    with shared_compilations(tmp_path_factory):
        arguments = small_run("ppo", 2, out=str(folder / "runs"), name="NAME", eval_episodes=0)
        assert call("ppo", *arguments).status == 0
        yield folder


def test_there_is_something_to_run():
    assert len(BLOCKS) >= 2
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block-{i}" for i in range(len(BLOCKS))])
def test_python_blocks_run_as_they_are(block, folder, monkeypatch):
    monkeypatch.chdir(folder)
    result = capture(lambda: exec(compile(block, "README.md", "exec"), {"__name__": "__main__"}), "README.md")
    assert (result.status, result.stderr) == (0, "")
    assert "nan" not in result.stdout
    assert re.search(r"\d", result.stdout), "it prints a result"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_have_flags_that_exist(command, folder, monkeypatch):
    """Read as far as to the point where training would start."""
    monkeypatch.chdir(folder)
    program, *words = shlex.split(command.replace("<name>", "NAME"))
    if program == "-m" and words[0] == "common.suites":
        assert all(word.partition("/")[0] in suites() for word in words[1:])
        return
    if program == "-m" and words[0] == "runner.compare":
        result = capture(compare.main, *words)
        assert (result.status, result.stderr) == (2, f"error: no run in {words[1]}: it has no config.json\n")
        return
    if program == "-m":
        monkeypatch.setattr(render, "load", loading)
        result = capture(render.main, *words)
        assert (result.status, result.stderr) == (2, "error: it would load the run\n")
        return
    module = importlib.import_module(program.removesuffix(".py"))
    result = capture(lambda: ask(module.__file__, module.Config), program, *words)
    assert (result.status, result.stderr) == (0, "")


def loading(*_):
    raise ValueError("it would load the run")
