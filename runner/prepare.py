"""Checks of a run before anything is compiled."""

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from common.environment import make_env
from runner.ask.cli import parse
from runner.ask.options import PRECISIONS, Options
from runner.ask.sweep import count_settings, make_settings, read_axes
from runner.experiment import Experiment, Part
from runner.folder import files
from runner.folder.record import check_parts
from runner.machine import hosts
from runner.machine.devices import strong
from runner.machine.memory import available_bytes, format_bytes, host_bytes, num_bytes
from runner.tell.tracking import check_wandb

RECORD_BYTES = 40  # per lane and iteration: about ten metrics


class Prepared(NamedTuple):
    """A run that has passed every check that is possible before compiling."""

    experiment: Experiment
    directory: Path
    abstract_state: Any  # shapes and dtypes of the State of one lane
    parts: list[Part]  # of a resumed run; else empty
    wandb_id: str  # from which the ids of the wandb runs are made


def prepare(script: str, config_class: type, make: Callable) -> Prepared:
    """Read the command line, connect the processes, check what is asked for and create the folder.

    Raises:
        ValueError: one line that says what to change.
    """
    config, options = parse(script, config_class)
    jax.config.update("jax_default_matmul_precision", PRECISIONS[options.matmul_precision])
    axes = read_axes(options.sweep, options.sweep_samples, config)
    num_lanes = count_settings(axes, options.sweep_samples) * options.num_seeds
    if options.coordinator:
        hosts.connect(options.coordinator, options.num_processes, options.process_id)
        if jax.process_index() > 0:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, process 0 prints for all
    if options.devices > jax.local_device_count():
        raise ValueError(f"devices = {options.devices}, but there are only {jax.local_device_count()} here")
    if num_lanes < jax.process_count():
        raise ValueError(
            f"{jax.process_count()} processes need at least as many lanes (seeds x settings), not {num_lanes}"
        )
    algorithm = make(config)
    state = jax.eval_shape(lambda key: strong(algorithm.init(key)), jax.eval_shape(jax.random.key, 0))
    check_state(options, num_lanes, num_bytes(state))
    check_results(num_lanes, config.num_iterations * RECORD_BYTES)
    check_evaluation(config.env, options)
    check_wandb(options.wandb)
    settings = make_settings(axes, options.sweep_samples, options.seed)
    experiment = Experiment(script, make, config, options, settings)
    parts, wandb_id = [], secrets.token_hex(4)
    if options.resume:
        record = files.read_record(Path(options.resume))
        parts, wandb_id = record.parts, record.wandb_id
        check_parts(parts, num_lanes)
    directory = hosts.agree("directory", lambda: str(files.make_folder(experiment.algorithm, config.env, options)))
    return Prepared(experiment, Path(directory), state, parts, wandb_id)


def check_state(options: Options, num_lanes: int, lane_bytes: int) -> None:
    """Raise ValueError if the State of one batch of lanes (with auto: of one lane) does not fit."""
    available = available_bytes(options.devices or jax.local_device_count())
    is_auto = options.lanes_per_batch == "auto"
    least = 1 if is_auto else min(int(options.lanes_per_batch), -(-num_lanes // jax.process_count()))
    if least * lane_bytes > available:
        lanes, flag = (
            ("1 lane", "--num-envs (or --buffer-size)") if least == 1 else (f"{least:,} lanes", "--lanes-per-batch")
        )
        raise ValueError(
            f"the state of {lanes} takes {format_bytes(least * lane_bytes)} and the memory is "
            f"{format_bytes(available)}; lower {flag}"
        )


def check_results(num_lanes: int, lane_bytes: int) -> None:
    """Raise ValueError if the metrics of all lanes do not fit the memory of this host, which joins and writes them."""
    most = host_bytes() // (3 * lane_bytes)  # joining copies them, writing may do so once more
    if num_lanes > most:
        raise ValueError(
            f"{num_lanes:,} lanes (seeds x settings) record about {format_bytes(num_lanes * lane_bytes)} of metrics; "
            f"at most {most:,} lanes fit in {format_bytes(host_bytes())} of memory"
        )


def check_evaluation(env_name: str, options: Options) -> None:
    """Raise ValueError if the evaluation episodes of one lane do not fit: their environments run side by side."""
    env, keys = make_env(env_name), jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((1,), "uint32"))
    most = available_bytes(1) // (2 * num_bytes(jax.eval_shape(env.reset, keys)))
    if options.eval_episodes > most:
        raise ValueError(f"eval_episodes = {options.eval_episodes:,}, but at most {most:,} fit in the memory")
