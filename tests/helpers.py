"""Runs of the scripts as a user starts them, in a process of their own or in this one, and their results compared."""

import contextlib
import dataclasses
import functools
import importlib
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from common.environment import clear_episodes
from common.presets import read_presets
from runner.devices import memory, placement, programs
from runner.experiment import Experiment
from runner.files import checkpoint, store
from runner.files.record import read_config, read_record
from runner.main import run
from runner.options.parse import to_flags
from runner.report import plots

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["ppo", "dqn", "sac", "td3"]
ENVS = {
    "ppo": ("CartPole-v1", "Pendulum-v1"),
    "dqn": ("CartPole-v1",),
    "sac": ("Pendulum-v1",),
    "td3": ("Pendulum-v1",),
    "ppo_rnn": ("CartPole-v1",),
    "categorical_dqn": ("CartPole-v1",),
    "sac_discrete": ("CartPole-v1",),
    "pqn": ("CartPole-v1",),
    "reppo": ("Pendulum-v1",),
}
_OFF_POLICY = {
    "num_envs": 2,
    "steps_per_iteration": 16,
    "learning_starts": 32,
    "buffer_size": 256,
    "batch_size": 8,
    "normalize_obs": True,
    "hidden_sizes": (8,),
}
# An iteration of each script that takes about a millisecond; normalisation is on, so that there is more to lose.
SMALL = {
    "ppo": {
        "num_envs": 2,
        "num_steps": 16,
        "num_epochs": 1,
        "num_minibatches": 2,
        "normalize_obs": True,
        "normalize_reward": True,
        "hidden_sizes": (8,),
    },
    "dqn": {**_OFF_POLICY, "train_interval": 4, "gradient_steps": 1, "target_interval": 16},
    "sac": {**_OFF_POLICY, "train_interval": 2},
    "td3": {**_OFF_POLICY, "train_interval": 4, "gradient_steps": 4},
}
SMALL |= {"ppo_rnn": SMALL["ppo"] | {"memory_size": 4}, "sac_discrete": SMALL["sac"]}
SMALL["categorical_dqn"] = SMALL["dqn"] | {"num_bins": 11}
SMALL["pqn"] = {name: x for name, x in SMALL["ppo"].items() if name != "normalize_reward"}
SMALL["reppo"] = SMALL["pqn"] | {"num_samples": 2, "num_bins": 11}
# Most tests take runs of this length: runs of one length share their compiled programs.
ITERATIONS = 40
SECONDS = 300.0  # after which a process is given up


def tiers(cases, *quick: str) -> list:
    """Cases of a test as parameters: these are quick, the others are marked slow."""
    assert set(quick) <= set(cases)
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in cases]


def presets(script: str, name: str = "") -> dict:
    """The presets of a script with this name, each environment's Config."""
    return read_presets(importlib.import_module(script).Config).get(name, {})


# -- Command lines -----------------------------------------------------------------------------------------------------


def flags(**fields) -> list[str]:
    """Command line flags: num_envs=2 -> --num-envs 2, clip_value=False -> --no-clip-value."""
    return list(map(str, to_flags(fields)))


def small_config(script: str, iterations: int = ITERATIONS, **changes):
    """The Config of a small run of so many iterations."""
    module, env = importlib.import_module(script), changes.get("env", ENVS[script][0])
    default = presets(script).get(env, module.Config(env=env))
    config = dataclasses.replace(default, **{**SMALL[script], **changes})
    return dataclasses.replace(config, total_timesteps=config.env_steps(iterations))


def small_run(script: str, iterations: int = ITERATIONS, **changes) -> list[str]:
    """Flags of a small run of two seeds. `changes`: fields of the Config, or options of the run."""
    fields = {field.name for field in dataclasses.fields(importlib.import_module(script).Config)}
    config = small_config(script, iterations, **{name: x for name, x in changes.items() if name in fields})
    defaults = {"env": config.env, "num_seeds": 2, "eval_episodes": 2, **SMALL[script]}
    return flags(**{**defaults, "total_timesteps": config.total_timesteps, **changes})


# -- Processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The result of a command: status, stdout and stderr."""

    status: int
    stdout: str
    stderr: str


def environ(**changes: str | None) -> dict[str, str]:
    """The environment of a process that finds the modules of this repository; a variable None is unset."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return {name: value for name, value in variables.items() if value is not None}


def execute(*command: str, cwd: Path, **environment: str | None) -> Result:
    """Run `python COMMAND` to its end, in a process of its own whose output goes into pipes."""
    process = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environ(**environment),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Result(process.returncode, process.stdout, process.stderr)


class Process:
    """`python COMMAND` at work, to be watched and disturbed."""

    def __init__(self, *command: str, cwd: Path, **environment: str | None):
        self.files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  # files never fill up as pipes do
        stdout, stderr = self.files
        command = [sys.executable, *command]
        self.process = subprocess.Popen(command, cwd=cwd, env=environ(**environment), stdout=stdout, stderr=stderr)

    def output(self) -> list[str]:
        """Read what the process has written to stdout and to stderr up to now."""
        return [os.pread(file.fileno(), 10**7, 0).decode() for file in self.files]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look every millisecond whether it is time. Fails if it is not before the process ends."""
        deadline = time.perf_counter() + SECONDS
        while not condition():
            assert self.process.poll() is None, f"ended too early: {self.finish()}"
            assert time.perf_counter() < deadline, f"waited for {SECONDS} s: {self.output()}"
            time.sleep(0.001)

    def wait_for_text(self, text: str) -> None:
        """Wait until it has written `text` to stdout or stderr."""
        self.wait_until(lambda: any(text in output for output in self.output()))

    def wait_for_checkpoint(self, directory: Path, iteration: int) -> None:
        """Wait until the folder of a run has a whole checkpoint of this iteration or of a later one."""
        self.wait_until(lambda: saved_iteration(directory) >= iteration)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def finish(self) -> Result:
        """Wait for its end."""
        try:
            status = self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still running after {SECONDS} s: {self.output()}") from None
        return Result(status, *self.output())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def step_and_record(env, keys, env_state, action):
    """`env.step`; info also has the episode that ended in it: num_episodes 1, its episode_return and episode_length."""
    obs, env_state, *outcome, info = env.step(keys, clear_episodes(env_state), action)
    return obs, env_state, *outcome, info | env_state.episodes


def saved_iteration(directory: Path) -> int:
    """Iteration of the checkpoint in the folder of a run, 0 without one."""
    return checkpoint.read_iteration(directory / store.CHECKPOINT) or 0


def path_of(script: str) -> str:
    """The file of a script."""
    return str(ROOT / f"{script}.py")


# -- In this process ---------------------------------------------------------------------------------------------------

PROGRAMS = {}


def keep_programs(compile: Callable) -> Callable:
    """`compile(make_trial, ...)` of a run, which many tests ask for the same program; tracing it takes seconds."""

    def compile_once(make_trial, *rest):
        return kept(make_trial.__self__, (compile, str(rest)), lambda: compile(make_trial, *rest))

    return compile_once


def keep_evaluations(compile: Callable) -> Callable:
    """Keep `compile(programs)`, the evaluation of a run, as `keep_programs` does."""

    def compile_once(self):
        options, called = self.experiment.options, (programs.evaluate, programs.share_of_memory, memory.available_bytes)
        chosen = options.eval_episodes, options.eval_max_steps, options.eval_sampled
        inputs = str((self.placement, self.settings, self.state))
        return kept(self.experiment, (compile, called, chosen, inputs), lambda: compile(self))

    return compile_once


def kept(experiment: Experiment, details: tuple, compile: Callable) -> Any:
    """A program of an experiment, compiled unless it is in PROGRAMS.

    An environment of a test may be another one in the next test: its programs are not kept.
    """
    if experiment.config.env not in ("CartPole-v1", "Pendulum-v1"):
        return compile()
    limits = placement.CACHED_TRIALS, placement.COPIED_BYTES
    modes = jax.default_backend(), *sorted((name, str(value)) for name, value in jax.config.values.items())
    key = experiment.make, experiment.config, limits, modes, details
    if key not in PROGRAMS:
        PROGRAMS[key] = compile()
    return PROGRAMS[key]


def call(script: str, *arguments: str, pictures: bool = False) -> Result:
    """Run a script's command line in this process and in the current folder, without the seconds of imports and of
    drawing: pictures are empty files unless they are asked for."""
    module = importlib.import_module(script)
    with contextlib.nullcontext() if pictures else mock.patch.object(plots, "_save", save_nothing):
        return capture(lambda: run(module.__file__, module.Config, module.make), module.__file__, *arguments)


def save_nothing(figure, path: Path) -> None:
    """Replace `plots._save`, which takes most of the time of a run."""
    with store.replacing(path) as temporary:
        temporary.write_bytes(b"")


def capture(main, *argv: str) -> Result:
    """Call what a process would call, and give back what it would have left: warnings and logs are on stderr."""
    stdout, stderr, status = io.StringIO(), io.StringIO(), 0
    log = logging.StreamHandler(stderr)
    logging.getLogger().addHandler(log)
    try:
        with (
            mock.patch.object(sys, "argv", list(argv)),
            mock.patch.object(sys, "unraisablehook", sys.__unraisablehook__),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            warnings.catch_warnings(),
            rank_promotion("allow"),  # as it is where no test has set it
        ):
            warnings.showwarning = lambda *args, **_: stderr.write(warnings.formatwarning(*args[:4]))
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", RuntimeWarning)
            warnings.simplefilter("default", UserWarning)
            try:
                main()
            except SystemExit as end:
                status = end.code or 0
            except BaseException:
                traceback.print_exc()
                status = 1
    finally:
        logging.getLogger().removeHandler(log)
    return Result(status, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def rank_promotion(mode: str):
    """Set the mode in every thread; that of jax.numpy_rank_promotion holds in one."""
    before = jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_rank_promotion", mode)
    try:
        yield
    finally:
        jax.config.update("jax_numpy_rank_promotion", before)


# -- Results -----------------------------------------------------------------------------------------------------------


def saved_state(directory: Path) -> tuple[int, dict[str, np.ndarray]]:
    """The iteration of a run's checkpoint, and each leaf of the State of all its trials by its name."""
    record = read_record(directory)
    module = importlib.import_module(record.algorithm)
    state = abstract_state(module.make, read_config(record, module.Config), record.parts[-1].stop)
    path = directory / store.CHECKPOINT
    return checkpoint.read_iteration(path), named_leaves(checkpoint.restore(path, state))


@functools.cache
def abstract_state(make: Callable, config: Any, num_trials: int) -> Any:
    """Shapes and dtypes of the State of all trials."""
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((num_trials,), "uint32"))
    return jax.eval_shape(jax.vmap(make(config).init), keys)


def named_leaves(state) -> dict[str, np.ndarray]:
    """Each leaf of a State by its name; keys as their numbers."""
    leaves = {}
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        leaves[jax.tree_util.keystr(path)] = np.asarray(jax.random.key_data(x) if is_key else x)
    return leaves


def saved_metrics(directory: Path) -> dict[str, np.ndarray]:
    """metrics.npz of a run."""
    with np.load(directory / "metrics.npz") as file:
        return dict(file)


def differences(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> list[str]:
    """Names under which two trees differ in type, shape or any bit."""
    same = {
        name
        for name in a.keys() & b.keys()
        if (a[name].dtype, a[name].shape, a[name].tobytes()) == (b[name].dtype, b[name].shape, b[name].tobytes())
    }
    return sorted((a.keys() | b.keys()) - same)


def run_differences(a: Path, b: Path) -> list[str]:
    """Names of the leaves of State and of the metrics that differ between the results of two runs."""
    (iteration_a, state_a), (iteration_b, state_b) = saved_state(a), saved_state(b)
    if iteration_a != iteration_b:
        return [f"iteration {iteration_a} and {iteration_b}"]
    return differences(state_a, state_b) + differences(saved_metrics(a), saved_metrics(b))
