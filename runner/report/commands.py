"""Commands that a report names, as a shell takes them."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from runner.files.load import ROOT
from runner.options.fields import Options
from runner.options.parse import shown_path, to_flags

TOOLS = {"render": "runner/render.py", "export": "runner/export/__main__.py"}


def launcher() -> list[str]:
    """The words between `python` and the script where another file has started it, which may register environments."""
    words = sys.orig_argv[1 : -len(sys.argv)] if sys.orig_argv[-len(sys.argv) :] == sys.argv else []
    return words if any(word.endswith(".py") for word in words) else []


def start_command(script: str) -> list[str]:
    """The words that start a script as it was started: `python corridor.py ppo.py`, or a file that calls `run`."""
    is_known = sys.orig_argv[-len(sys.argv) :] == sys.argv  # not in a notebook
    return ["python", *launcher(), shown_path(sys.argv[0] if is_known else script)]


def tool_command(name: str, script: str, directory: Path) -> str:
    """The command of a tool that loads a run: with the file that registers its environment, and with the script where
    `load` would not find it."""
    words = ["python", "-m", f"runner.{name}"]
    if launcher():
        words = ["python", *launcher(), shown_path(str(ROOT / TOOLS[name]))]
    is_found = Path(script).resolve().parent in (ROOT, ROOT / "variants")
    return shlex.join([*words, str(directory), *([] if is_found else ["--script", shown_path(script)])])


def rerun_command(script: str, config: Any, options: Options, preset: Any, setting: dict[str, float]) -> str:
    """The command that trains a Config with one setting of a sweep; `preset`: the run's, None without one."""
    flags = ["--env", config.env, "--num-seeds", options.num_seeds, "--seed", options.seed]
    if preset and options.preset:
        flags += ["--preset", options.preset]
    for name in ("matmul_precision", "eval_episodes", "eval_max_steps", "eval_sampled"):
        if (value := getattr(options, name)) != getattr(Options, name):
            flags += to_flags({name: value})
    defaults = preset or type(config)(env=config.env)
    fields = dataclasses.asdict(config) | setting
    given = {name: x for name, x in fields.items() if name in setting or x != getattr(defaults, name)}
    flags += to_flags(given)
    return shlex.join([*start_command(script), *map(str, flags)])
