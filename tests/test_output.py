"""Outputs that nobody reads, and disks that fail."""

import contextlib
import importlib
import io
import os
import re
import sys

import pytest
from helpers import call, capture, flags, path_of, run_differences, saved_state, small_run
from runs import FILES, OFTEN, assert_finished, assert_refused, directory_of, one

import runner.files.record
import runner.main
from runner.files import checkpoint, store
from runner.report import plots

PICTURES = {"curve.png", "metrics.png"}
pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


# -- Output that nobody reads ------------------------------------------------------------------------------------------


def closed_pipe():
    """A stream into a pipe whose reader has gone, as `| head -1` leaves it."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


def full_disk():
    """A stream to a disk without space."""
    return open("/dev/full", "w")


@pytest.mark.parametrize(("stream", "is_stderr_lost"), [(closed_pipe, False), (full_disk, True)])
@one
def test_a_run_goes_on_without_stdout_and_stderr(script, stream, is_stderr_lost, undisturbed):
    def run():
        with (
            stream() as stdout,  # closing it raises, as the end of a process would, if what is in its buffer is lost
            stream() as stderr,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr if is_stderr_lost else given),
        ):
            runner.main.run(module.__file__, module.Config, module.make)

    module, given = importlib.import_module(script), io.StringIO()
    result = capture(run, module.__file__, *small_run(script, name="unread"))
    assert_finished(result)
    note = "note: stdout is lost (Broken pipe); the run goes on without it\n"
    assert given.getvalue() == ("" if is_stderr_lost else note)
    directory = directory_of(script, "unread")
    assert {path.name for path in directory.iterdir()} == FILES
    assert run_differences(directory, undisturbed[2]) == []


@one
def test_a_run_that_begins_without_stdout_and_stderr(script, folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", [path_of(script), *small_run(script, name="mute")])
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    module = importlib.import_module(script)
    runner.main.run(module.__file__, module.Config, module.make)
    assert {path.name for path in directory_of(script, "mute").iterdir()} == FILES


# -- Disks that fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "curve.png",
        "curve.csv",
        "summary.json",
    ],
)
@one
def test_results_that_cannot_be_written_are_named(script, name, undisturbed):
    directory = directory_of(script, "blocked")
    (directory / name).mkdir(parents=True)
    result = call(script, *small_run(script, name="blocked"))
    assert result.status == 1, result
    assert re.fullmatch(f"error: {directory / name} is not written: .*\n", result.stderr), result.stderr
    assert "greedy evaluation" in result.stdout
    assert f"results in {directory}\n" in result.stdout
    assert run_differences(directory, undisturbed[2]) == []
    assert {path.name for path in directory.iterdir()} == FILES, "one file in the way must not take the others with it"


def test_pictures_that_cannot_be_drawn(undisturbed_ppo, monkeypatch):
    """A text.usetex in the user's matplotlibrc without LaTeX does this. All numbers are there before."""

    def save(figure, path):
        written.append({path.name for path in directory.iterdir()})
        raise RuntimeError("latex could not be found\nlog")

    written, directory = [], directory_of("ppo", "undrawn")
    monkeypatch.setattr(plots, "_save", save)
    result = call("ppo", *small_run("ppo", name="undrawn"), pictures=True)
    assert result.status == 1, result
    lines = [
        f"error: {directory / name} is not drawn: RuntimeError: latex could not be found" for name in sorted(PICTURES)
    ]
    assert result.stderr.splitlines() == lines
    assert all(names == FILES - PICTURES | {"training.lock"} for names in written)
    assert "greedy evaluation" in result.stdout
    assert f"results in {directory}\n" in result.stdout
    assert run_differences(directory, undisturbed_ppo) == []


@pytest.mark.parametrize("name", ["checkpoint.save", "folder.write_metrics"])
def test_a_disk_that_is_full_in_the_middle_of_a_run(script, name, undisturbed, monkeypatch):
    """The message says so in a line, and the checkpoint before is whole."""

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) > 3:
            raise OSError(28, "No space left on device", "somewhere")
        return write(*args, **kwargs)

    calls = []
    module, function = (checkpoint, "save") if name == "checkpoint.save" else (store, "write_metrics")
    write = getattr(module, function)
    monkeypatch.setattr(module, function, full)
    result = call(script, *small_run(script, name="full"), *OFTEN)
    assert result.status not in (0, None)
    assert "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    directory = directory_of(script, "full")
    assert result.stderr.endswith(f"; what was saved before is complete, continue it with --resume {directory}\n")
    assert saved_state(directory)[0] == 3

    monkeypatch.setattr(module, function, write)
    assert_finished(call(script, "--resume", str(directory), *flags(eval_episodes=2)))
    assert run_differences(directory, undisturbed[2]) == []


@pytest.mark.parametrize(
    ("function", "left", "hint"),
    [
        ("write_json", [], "nothing was saved before"),
        ("write_metrics", ["config.json"], "nothing was saved before, start it again with --resume {}"),
    ],
)
def test_a_disk_that_is_full_before_anything_is_saved(function, left, hint, undisturbed_ppo, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, function, full)
        patch.setattr(runner.files.record, "write_json", store.write_json)
        result = call("ppo", *small_run("ppo", name="full"))
    directory = directory_of("ppo", "full")
    assert_refused(result, f"error: cannot save: [Errno 28] No space left on device; {hint.format(directory)}\n")
    assert [path.name for path in directory.parent.rglob("*.*")] == left
    if left:
        assert_finished(call("ppo", "--resume", str(directory)))
        assert run_differences(directory, undisturbed_ppo) == []
