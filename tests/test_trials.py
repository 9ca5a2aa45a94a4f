"""Trials in batches, on several devices and in several processes: the same numbers as all of them at once."""

import json
import os
import re
import resource
import signal
import socket
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    ITERATIONS,
    Process,
    call,
    execute,
    flags,
    named_leaves,
    path_of,
    saved_metrics,
    small_config,
    small_run,
)
from runs import assert_refused

import runner.devices.hosts
import runner.devices.memory
import runner.devices.placement
import runner.devices.programs
from common.buffer import draw_rows, init_buffer
from common.random import shuffle_epochs
from runner.devices.placement import compile_init, compile_program, compile_segment, make_placement, to_host
from runner.files.load import load
from runner.main import describe_program
from runner.options.fields import Options

SAME = ("runs", "ppo", "CartPole-v1")


pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.slow]


def assert_same_beginning(a, b):
    """Assert that two runs have the same trials in the same places, and to rounding the same first iterations."""
    assert a.keys() == b.keys()
    for name, x in a.items():
        assert (x.shape, x.dtype) == (b[name].shape, b[name].dtype)
        if x.ndim == 1:
            np.testing.assert_array_equal(x, b[name], err_msg=name)
        else:
            np.testing.assert_allclose(x[:, :3], b[name][:, :3], rtol=1e-4, atol=1e-5, err_msg=name)


# -- Devices -----------------------------------------------------------------------------------------------------------


def collectives(program) -> list[str]:
    """The operations of a compiled program by which devices wait for each other."""
    text = program.as_text()
    assert "fusion" in text or "while" in text
    return re.findall(r"all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|partition-id", text)


def test_trials_on_several_devices_do_not_communicate():
    """The compiled programs have no collective."""
    import ppo

    if jax.local_device_count() < 2:
        pytest.skip("one device has nobody to talk to")
    algorithm = ppo.make(small_config("ppo"))
    make = lambda settings: algorithm
    trials = make_placement(3, 2)
    assert (trials.num_padded, trials.sharding.num_devices) == (4, 2)
    keys = trials.place(jax.vmap(jax.random.key)(np.arange(3)))
    with jax.numpy_rank_promotion("allow"):  # distrax needs it
        init = compile_init(make, trials, {})
        state = init({}, keys)
        programs = init, compile_segment(make, trials, {}, state, capacity=2)
    assert {x.sharding.num_devices for x in jax.tree.leaves(state)} == {2}
    assert [collectives(program) for program in programs] == [[], []]
    communicates = jax.jit(lambda x: x - x.mean()).lower(trials.place(np.arange(4.0, dtype=np.float32))).compile()
    assert collectives(communicates)  # the negative control


class Counter:
    """An algorithm whose numbers are known: it adds its setting in every iteration."""

    def __init__(self, settings):
        self.amount = settings["amount"]

    def init(self, key):
        return {"sum": jax.random.uniform(key), "key": key, "constant": 1}  # a Python number, as vmap takes them

    def step(self, state, iteration):
        return state | {"sum": state["sum"] + self.amount}, {"product": iteration * self.amount}


@pytest.mark.parametrize(("num_trials", "num_devices"), [(1, 1), (2, 2), (9, 1), (17, 2), (33, 1), (64, 2)])
def test_every_trial_has_its_own_setting_state_and_records(num_trials, num_devices):
    """It holds for any number of trials trained together, with any padding."""
    trials = make_placement(num_trials, num_devices)
    assert num_trials <= trials.num_padded < num_trials + trials.num_groups * trials.sharding.num_devices
    amount = np.arange(1, num_trials + 1, dtype=np.float32)
    settings, keys = trials.place(({"amount": amount}, jax.vmap(jax.random.key)(np.arange(num_trials))))
    state = compile_init(Counter, trials, settings)(settings, keys)
    start, before = np.asarray(state["sum"])[:num_trials], jax.random.key_data(keys)
    segment = compile_segment(Counter, trials, settings, state, capacity=4)
    state, records = segment(settings, state, np.int32(5), np.int32(8))
    np.testing.assert_array_equal(jax.random.key_data(state["key"]), before)
    state, records = (to_host(x, num_trials) for x in (state["sum"], records["product"]))
    np.testing.assert_allclose(state, start + 3 * amount, rtol=1e-6)
    np.testing.assert_array_equal(records[:, :3], amount[:, None] * [5, 6, 7])


@pytest.mark.parametrize(("num_trials", "num_calls"), [(1, 0), (2, 6)])
def test_a_single_trial_has_no_axis_for_which_xla_has_slower_programs(num_trials, num_calls):
    """With an axis, a `cond` becomes a select and calls what no trial needs."""
    calls = []

    class Branch(Counter):
        def step(self, state, iteration):
            called = lambda: jax.debug.callback(lambda _: calls.append(1), state["sum"])
            jax.lax.cond(state["sum"] < 0, called, lambda: None)
            return super().step(state, iteration)

    trials = make_placement(num_trials, 1)
    settings = {"amount": np.ones(num_trials, np.float32)}
    settings, keys = trials.place((settings, jax.vmap(jax.random.key)(np.arange(num_trials))))
    state = compile_init(Branch, trials, settings)(settings, keys)
    compile_segment(Branch, trials, settings, state, capacity=4)(settings, state, np.int32(0), np.int32(3))
    jax.effects_barrier()
    assert len(calls) == num_calls


@pytest.mark.parametrize(("flags", "level"), [("", 2), ("--xla_backend_optimization_level=0", None)])
def test_programs_compile_at_a_level_unless_the_user_names_one(flags, level, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    options = []
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, compiler_options: options.append(compiler_options))
    compile_program(jax.jit(jnp.sin), 1.0)
    assert options[0].get("xla_backend_optimization_level") == level


def test_trials_with_large_states_are_trained_together(monkeypatch):
    """Their states are not worth copying, and the padding of the groups stays."""
    assert make_placement(17, 1).num_groups == 3
    monkeypatch.setattr(runner.devices.placement, "COPIED_BYTES", 0)
    test_every_trial_has_its_own_setting_state_and_records(17, 1)


def count_to(calls, target, amount, shared):
    """A loop of `target` rounds, each of which appends to `calls` once for each trial that runs it."""

    def add(carry):
        number, total = carry
        jax.debug.callback(lambda _: calls.append(1), number)
        return number + 1, total + amount * shared

    return jax.lax.while_loop(lambda carry: carry[0] < target, add, (jnp.int32(0), jnp.float32(0.0)))[1]


@pytest.mark.parametrize("num_trials", [3, 16, 17, 33])
def test_a_loop_ends_when_it_has_ended_for_its_group(num_trials):
    """One trial has ten rounds and the others have one. Together all trials run ten; the numbers are the same."""
    trials, results, counts = make_placement(num_trials, 1), [], []
    targets, amounts = np.ones(num_trials, np.int32), np.arange(num_trials, dtype=np.float32)
    targets[0] = 10
    for in_groups in (False, True):
        calls = []
        function = trials.each(partial(count_to, calls), num_shared=1, in_groups=in_groups)
        results.append(to_host(jax.jit(function)(*trials.place((targets, amounts)), np.float32(2.0)), num_trials))
        jax.effects_barrier()
        counts.append(len(calls))
    np.testing.assert_array_equal(results[0], 2 * targets * amounts)
    np.testing.assert_array_equal(results[1], results[0])
    size = trials.num_padded // trials.num_groups
    assert counts == [10 * trials.num_padded, 10 * size + trials.num_padded - size]


def test_the_number_of_devices_can_be_limited():
    result = call("ppo", *small_run("ppo", name="one", devices=1, num_seeds=3, eval_episodes=0))
    assert result.status == 0, result
    assert ", 1 x cpu\n" in result.stdout
    for name in ("config.json", "summary.json"):
        assert json.loads(Path(*SAME, "one", name).read_text())["device"] == "1 x cpu"
    assert call("ppo", *small_run("ppo", name="all", num_seeds=3, eval_episodes=0)).status == 0
    assert_same_beginning(*(saved_metrics(Path(*SAME, name)) for name in ("one", "all")))
    result = call("ppo", *small_run("ppo", devices=1000))
    assert result.status == 2
    assert re.fullmatch(r"error: devices = 1000, but there are only \d+ here\n", result.stderr)


# -- Several devices per trial -----------------------------------------------------------------------------------------


def test_a_trial_on_two_devices_learns_as_on_one():
    """After an iteration State and metrics are equal to rounding, and each device did half of the arithmetic."""
    import ppo

    if jax.local_device_count() < 2:
        pytest.skip("one device cannot share a trial")
    config = small_config("ppo", num_envs=8, hidden_sizes=(32,), num_minibatches=4)
    algorithm, flops, ends = ppo.make(config), [], []
    for devices_per_trial in (1, 2):
        trials = make_placement(1, devices_per_trial, devices_per_trial, num_envs=8)
        keys = trials.place(jax.vmap(jax.random.key)(np.arange(1)))
        with jax.numpy_rank_promotion("allow"):  # distrax needs it
            state = compile_init(lambda settings: algorithm, trials, {})({}, keys)
            segment = compile_segment(lambda settings: algorithm, trials, {}, state, capacity=2)
        assert state.obs.addressable_shards[0].data.shape[:2] == (1, 8 // devices_per_trial)
        assert jax.tree.leaves(state.params)[0].is_fully_replicated
        flops.append(segment.cost_analysis()["flops"])
        state, metrics = segment({}, state, np.int32(0), np.int32(1))
        ends.append(named_leaves(to_host((state, metrics), 1)))
    assert flops[1] < 0.6 * flops[0]
    for name, x in ends[0].items():
        np.testing.assert_allclose(ends[1][name], x, rtol=1e-4, atol=1e-5, err_msg=name)


def test_statistics_are_whole_on_each_device_of_a_trial():
    """It holds with as many features as environments, too."""
    import ppo

    if jax.local_device_count() < 2:
        pytest.skip("one device cannot share a trial")
    algorithm = ppo.make(small_config("ppo", num_envs=4, normalize_obs=True, num_minibatches=4))
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    assert state.obs_statistics.mean.shape == (4,)
    placed = make_placement(2, 2, 2, num_envs=4).abstract(state)
    assert placed.obs.sharding.spec == jax.sharding.PartitionSpec("trial", "env")
    assert placed.obs_statistics.mean.sharding.spec == jax.sharding.PartitionSpec("trial")


def draw_from_buffer(key, batch_size):
    return draw_rows(init_buffer({"x": jnp.float32(0)}, 100).replace(count=jnp.int32(50)), key, (3, batch_size))


@pytest.mark.parametrize("draw", [draw_from_buffer, lambda key, size: shuffle_epochs(key, 2, 2 * size, size)])
def test_devices_of_a_trial_split_the_rows_of_minibatches(draw):
    """The rows are those of one device; an odd number stays whole."""
    if jax.local_device_count() < 2:
        pytest.skip("one device cannot share a trial")
    draw, key = jax.jit(draw, static_argnums=1), jax.random.key(0)
    expected = draw(key, 8)
    with jax.set_mesh(make_placement(1, 2, 2, num_envs=4).sharding.mesh):
        even, odd = draw(key, 8), draw(key, 7)
    assert [x.addressable_shards[0].data.shape[1] for x in (expected, even, odd)] == [8, 4, 7]
    np.testing.assert_array_equal(even, expected)


def test_devices_per_trial_may_change_when_a_run_is_resumed(folder):
    """Three trials on two pairs of devices, in a process that has four; another number of devices goes on with it."""
    arguments = small_run("ppo", num_seeds=3)
    result = execute(
        path_of("ppo"), *arguments, *flags(name="pairs", devices_per_trial=2), cwd=folder, JAX_NUM_CPU_DEVICES="4"
    )
    assert result.status == 0, result
    assert call("ppo", *arguments, *flags(name="one", devices=1)).status == 0
    assert_same_beginning(*(saved_metrics(Path(*SAME, name)) for name in ("one", "pairs")))
    more = flags(total_timesteps=small_config("ppo", ITERATIONS + 5).total_timesteps)
    result = call("ppo", "--resume", str(Path(*SAME, "pairs")), *more)
    assert result.status == 0, result
    assert saved_metrics(Path(*SAME, "pairs"))["entropy"].shape == (3, ITERATIONS + 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices_per_trial": 0}, "devices_per_trial must be a positive int, not 0"),
        ({"devices_per_trial": 2, "devices": 1}, "devices_per_trial = 2 must divide devices = 1"),
        ({"devices_per_trial": 2, "devices": 2, "num_envs": 3}, "devices_per_trial = 2 must divide num_envs = 3"),
    ],
)
def test_devices_that_cannot_share_a_trial(options, message, folder):
    if options.get("devices", 1) > jax.local_device_count():
        pytest.skip("needs two devices")
    result = call("ppo", *small_run("ppo", **options))
    assert (result.status, result.stderr) == (2, f"error: {message}\n")
    assert not Path("runs").exists()


# -- Batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["dqn"])
def test_batches_are_the_same_as_all_trials_at_once(script):
    arguments = small_run(script, num_seeds=7, eval_episodes=2)
    for name, batch in (("whole", []), ("batches", ["--trials-per-batch", "3"])):
        result = call(script, *arguments, "--name", name, *batch)
        assert result.status == 0, result
    assert "\npart 1 of 3: seed 0 to seed 2\n" in result.stdout
    assert "\npart 3 of 3: seed 5 to seed 6\n" in result.stdout
    assert result.stdout.count("compiled in") == 1
    assert result.stdout.count("greedy evaluation of 7 seeds") == 1
    whole, batches = (Path("runs", script, "CartPole-v1", name) for name in ("whole", "batches"))
    assert_same_beginning(saved_metrics(whole), saved_metrics(batches))
    parts = [path.name for path in (batches / "parts").iterdir()]
    assert sorted(parts) == ["trials-0-to-2", "trials-3-to-4", "trials-5-to-6"]
    summaries = [json.loads((directory / "summary.json").read_text()) for directory in (whole, batches)]
    assert [len(summary["eval_episode_return"]["per_seed"]) for summary in summaries] == [7, 7]
    for trial in (0, 4, 6):
        state = load(batches, trial)[2]
        assert {x.shape for x in jax.tree.leaves(state.key)} == {()}
    assert not np.array_equal(*(jax.random.key_data(load(batches, trial)[2].key) for trial in (5, 6)))


def test_trials_are_evaluated_in_their_groups(monkeypatch):
    """Three trials have the same scores in one group and in three."""
    arguments = small_run("ppo", 2, num_seeds=3, devices=1, eval_every="1")
    assert call("ppo", *arguments, "--name", "together").status == 0
    monkeypatch.setattr(runner.devices.placement, "CACHED_TRIALS", 1)
    monkeypatch.setattr(runner.devices.placement, "COPIED_BYTES", 0)  # training stays as it was
    assert call("ppo", *arguments, "--name", "groups").status == 0
    together, groups = (saved_metrics(Path(*SAME, name)) for name in ("together", "groups"))
    assert all(together[name].tobytes() == groups[name].tobytes() for name in together)


def test_batches_are_resumed_where_they_stopped(monkeypatch, folder):
    # Four trials in batches of three at most are two batches of two.
    arguments = small_run("ppo", num_seeds=4, eval_episodes=0, checkpoint_every=0.0)  # a segment per iteration
    assert call("ppo", *arguments, "--name", "whole", "--trials-per-batch", "3").status == 0

    compiled, calls = runner.devices.programs.compile_segment, []

    def compile_segment(*args):
        segment = compiled(*args)

        def watched(*inputs):
            calls.append(inputs)
            if len(calls) == 50:  # in the second batch
                signal.raise_signal(signal.SIGTERM)
            return segment(*inputs)

        watched.memory_analysis = segment.memory_analysis
        return watched

    monkeypatch.setattr(runner.devices.programs, "compile_segment", compile_segment)
    result = call("ppo", *arguments, "--name", "stopped", "--trials-per-batch", "3")
    assert result.status == 128 + signal.SIGTERM
    assert len(calls) == 50
    directory = Path(*SAME, "stopped")
    assert f"--resume {directory}\n" in result.stderr
    result = call("ppo", "--resume", str(directory))
    assert result.status == 0, result
    assert len(calls) == 80
    a, b = (saved_metrics(Path(*SAME, name)) for name in ("whole", "stopped"))
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)


def test_auto_divides_what_does_not_fit(monkeypatch):
    """A machine that is said to have room for little more than three trials gets two batches of two."""
    memory, sizes = runner.devices.memory, []
    program_bytes = memory.program_bytes
    monkeypatch.setattr(memory, "program_bytes", lambda program: sizes.append(program_bytes(program)) or sizes[-1])
    arguments = small_run("ppo", num_seeds=4, eval_episodes=0, devices=1)
    result = call("ppo", *arguments, "--name", "whole")
    assert result.stdout.count("compiled in") == 1
    assert f"{memory.format_bytes(sizes[0])} on each device\n" in result.stdout, (
        "it is the training program that counts"
    )
    monkeypatch.setattr(memory, "available_bytes", lambda num_devices: int(0.8 * sizes[0]))
    result = call("ppo", *arguments, "--name", "small")
    assert result.status == 0, result
    assert "\npart 1 of 2: seed 0 to seed 1\n" in result.stdout
    assert_same_beginning(*(saved_metrics(Path(*SAME, name)) for name in ("whole", "small")))

    result = call("ppo", *arguments, "--name", "four", "--trials-per-batch", "4")
    assert result.status == 2
    error = "error: training {} takes {:.2f} times the memory; lower --trials-per-batch, or if it is 1 --num-envs"
    assert result.stderr.startswith(error.format("4 trials (seeds x settings)", 1.25))
    assert not Path(*SAME, "four").exists()

    monkeypatch.setattr(memory, "available_bytes", lambda num_devices: int(0.2 * sizes[0]))
    result = call("ppo", *arguments, "--name", "one")
    assert result.status == 2
    share = sizes[-1] / int(0.2 * sizes[0])
    assert result.stderr.startswith(error.format("1 trial (a seed of a setting)", share))

    monkeypatch.setattr(memory, "available_bytes", lambda num_devices: 100)
    result = call("ppo", *arguments, "--name", "tiny")
    assert result.status == 2
    assert re.search(r"the state of 1 trial .* takes [\d.]+ KiB and the memory is 100 B; lower --trials", result.stderr)
    result = call("ppo", *arguments, "--name", "tiny", "--trials-per-batch", "3")
    assert re.search(r"the state of 3 trials \(seeds x settings\) takes .*; lower --trials", result.stderr)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/job/step", "sys/fs/cgroup/job/step/memory.max": "max"}, None),
        ({"proc/self/cgroup": "0::/job/step", "sys/fs/cgroup/job/step/memory.max": "4096000"}, 4096000),
        ({"proc/self/cgroup": "0::/job/step", "sys/fs/cgroup/job/memory.max": "4096000"}, 4096000),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "4096000"}, 4096000),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/0a1b\n0::/",  # whose folder is the root in a container
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096000",
            },
            4096000,
        ),
    ],
)
def test_the_memory_of_a_container_is_its_limit(files, expected, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert runner.devices.memory.host_bytes(tmp_path) == (expected or machine)


def test_the_memory_is_no_more_than_ulimit_allows(monkeypatch, tmp_path):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5_000_000, resource.RLIM_INFINITY))
    assert runner.devices.memory.host_bytes(tmp_path) == 5_000_000


def test_the_devices_of_a_cpu_share_its_memory():
    program = jax.jit(jnp.sin).lower(jnp.zeros(1000)).compile()
    one, two = (runner.devices.memory.share_of_memory(program, count) for count in (1, 2))
    assert two == 2 * one > 0


@pytest.mark.parametrize(
    "error", [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes."), MemoryError()]
)
def test_memory_that_runs_out_names_the_flag(error, monkeypatch):
    def compile_segment(*args):
        def segment(*inputs):
            raise error

        segment.memory_analysis = compiled(*args).memory_analysis
        return segment

    compiled = runner.devices.programs.compile_segment
    monkeypatch.setattr(runner.devices.programs, "compile_segment", compile_segment)
    result = call("ppo", *small_run("ppo", num_seeds=3))
    assert result.status == 1
    assert result.stderr == (
        "error: out of memory; lower --trials-per-batch, or if it is 1 --num-envs (or --buffer-size)\n"
    )
    assert not list(Path("runs").rglob("*.json")), "the same --name could not be used again"


# -- Processes ---------------------------------------------------------------------------------------------------------

# Patience that suits a test; otherwise what `python ppo.py` does.
IMPATIENT = """
import sys, runpy
import runner.devices.hosts
runner.devices.hosts.TIMEOUT, runner.devices.hosts.HEARTBEAT = {patience}, {heartbeat}
sys.argv[0] = {path!r}
runpy.run_path({path!r}, run_name="__main__")
"""


def together(num_processes, port=None):
    """Flags of each process."""
    if port is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    common_flags = flags(coordinator=f"127.0.0.1:{port}", num_processes=num_processes)
    return [[*common_flags, *flags(process_id=i)] for i in range(num_processes)]


def impatient(patience, heartbeat=10):
    return ["-c", IMPATIENT.format(path=path_of("ppo"), patience=patience, heartbeat=heartbeat)]


def test_two_processes_are_the_same_as_one(folder):
    arguments = small_run("ppo", num_seeds=5)
    assert call("ppo", *arguments, "--name", "one").status == 0
    proxy = {"http_proxy": "http://127.0.0.1:9"}  # of a cluster; nobody answers there
    first, second = (
        Process(*impatient(60), *arguments, *process, "--name", "two", cwd=folder, **proxy) for process in together(2)
    )
    with first, second:
        results = first.finish(), second.finish()
    assert [result.status for result in results] == [0, 0], results
    assert results[0].stdout.count("greedy evaluation of 5 seeds") == 1
    assert results[1].stdout == "", "one process speaks for all"
    one, two = (Path(*SAME, name) for name in ("one", "two"))
    assert_same_beginning(saved_metrics(one), saved_metrics(two))
    names = {path.name for path in two.iterdir()}
    assert names == {"config.json", "curve.csv", "curve.png", "metrics.npz", "metrics.png", "parts", "summary.json"}

    # Any number of processes may go on with it.
    result = call("ppo", "--resume", str(two))
    assert result.status == 0, result
    assert "greedy evaluation of 5 seeds" in result.stdout


def test_a_process_that_dies_leaves_the_others_at_work(folder):
    arguments = small_run("ppo", 100, num_seeds=4, name="two", eval_episodes=0, checkpoint_every=0.0)
    processes = [Process(*impatient(300, heartbeat=5), *arguments, *process, cwd=folder) for process in together(2)]
    with processes[0] as first, processes[1] as second:
        second.wait_for_checkpoint(Path(*SAME, "two", "parts", "trials-2-to-3"), 20)
        second.send(signal.SIGKILL)
        result = first.finish()
    assert result.status == 1, result
    directory = Path(*SAME, "two")
    error = "error: process 1 ended too early; what the others trained is saved, continue with --resume"
    assert f"{error} {directory}\n" in result.stderr
    assert "Traceback" not in result.stderr
    result = call("ppo", "--resume", str(directory))
    assert result.status == 0, result
    metrics = saved_metrics(directory)
    np.testing.assert_array_equal(metrics["seed"], [0, 1, 2, 3])
    assert metrics["entropy"].shape == (4, 100)


def test_processes_of_which_one_waits_are_stopped_together(folder):
    arguments = small_run("ppo", 60, name="two", eval_episodes=0, checkpoint_every=0.0)
    processes = [Process(*impatient(300), *arguments, *process, cwd=folder) for process in together(2)]
    parts = Path(*SAME, "two", "parts")
    with processes[0] as first, processes[1] as second:
        second.wait_for_checkpoint(parts / "trials-1-to-1", 1)
        second.send(signal.SIGSTOP)
        first.wait_until((parts / "trials-0-to-0" / "evaluation.npz").exists)
        time.sleep(1)
        for process in processes:
            process.send(signal.SIGTERM)
        second.send(signal.SIGCONT)
        results = [process.finish() for process in processes]
    assert [result.status for result in results] == [128 + signal.SIGTERM] * 2, results
    assert all("stopped; continue with --resume" in result.stderr for result in results)


def test_a_process_that_never_comes(folder):
    arguments = small_run("ppo", num_seeds=4)
    result = execute(*impatient(1), *arguments, *together(2)[0], cwd=folder)
    assert result.status == 2
    assert "error: waited 1 s for the other processes (--coordinator 127.0.0.1:" in result.stderr
    assert not Path("runs").exists()


def test_all_processes_say_what_is_wrong(folder):
    Path(*SAME, "taken").mkdir(parents=True)
    Path(*SAME, "taken", "config.json").write_text("{}")
    arguments = small_run("ppo", num_seeds=4, name="taken")
    processes = [Process(path_of("ppo"), *arguments, *process, cwd=folder) for process in together(2)]
    with processes[0], processes[1]:
        results = [process.finish() for process in processes]
    for result in results:
        assert result.status == 2, result
        assert "holds a run; choose another --name" in result.stderr


def test_processes_that_train_differently_are_refused(folder):
    arguments = small_run("ppo", num_seeds=4)
    rates = flags(learning_rate=0.5), flags(learning_rate=0.25)
    processes = [
        Process(path_of("ppo"), *arguments, *rate, *process, cwd=folder)
        for rate, process in zip(rates, together(2), strict=True)
    ]
    with processes[0], processes[1]:
        results = [process.finish() for process in processes]
    for result in results:
        assert result.status == 2, result
        assert "learning_rate = 0.5 in process 0 and 0.25 in process 1" in result.stderr
    assert not Path("runs").exists()


def test_what_processes_must_share(tmp_path):
    """Code, settings and options, but not what is of one process."""
    script, config, options = tmp_path / "ppo.py", small_config("ppo"), Options()

    def described(text="", config=config, options=options):
        script.write_text(text)
        return describe_program(str(script), config, options)

    same = described()
    assert described(options=replace(options, process_id=1, devices=2, coordinator="b:1")) == same
    for change in ({"text": "# edited"}, {"config": replace(config, gamma=0.5)}, {"options": replace(options, seed=1)}):
        assert described(**change) != same, change


SLURM = """
import jax
from runner.options.fields import Options
from runner.devices import hosts
hosts.initialize(Options(coordinator="auto"))
print(jax.config.values["jax_cuda_visible_devices"], jax._src.distributed.global_state.coordinator_address)
hosts.shutdown()
"""


def test_a_process_of_slurm_has_the_gpus_of_its_node_and_a_port_of_its_step(folder):
    job = {"SLURM_JOB_ID": "4711", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    job |= {"SLURM_LOCALID": "0", "CUDA_VISIBLE_DEVICES": "0,1"}
    results = [execute("-c", SLURM, cwd=folder, **job, SLURM_STEP_ID=step) for step in "01"]
    assert [result.status for result in results] == [0, 0], results
    (gpus, address), (_, other) = (result.stdout.split() for result in results)
    assert gpus == "all"
    assert address != other


@pytest.mark.parametrize(("number", "own"), [(0, "0,1"), (1, "2,3"), (2, "all")])
def test_processes_of_a_host_divide_its_gpus(number, own, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setattr(jax._src.distributed.global_state, "process_id", number)
    try:
        runner.devices.hosts._divide_gpus(["a", "a", "b"])
        assert jax.config.values["jax_cuda_visible_devices"] == own
    finally:
        jax.config.update("jax_cuda_visible_devices", "all")


def test_two_processes_of_one_number_are_refused(monkeypatch):
    class Client:
        def key_value_set(self, *_):
            raise jax.errors.JaxRuntimeError("ALREADY_EXISTS: host/0")

    monkeypatch.setattr(jax._src.distributed.global_state, "client", Client())
    monkeypatch.setattr(jax._src.distributed.global_state, "process_id", 0)
    with pytest.raises(ValueError, match="there is another process 0 at"):
        runner.devices.hosts._gather("host", "a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (flags(num_processes=2), "needs --coordinator"),
        (flags(num_processes=2, process_id=2, coordinator="localhost:1"), "process_id must be between"),
        (flags(trials_per_batch="some"), "trials_per_batch must be auto or at least 1"),
        (flags(trials_per_batch="0"), "trials_per_batch must be auto or at least 1"),
        (flags(devices=-1), "devices must be an int of at least 0, not -1"),
    ],
)
def test_bad_flags(words, message):
    assert_refused(call("ppo", *small_run("ppo", num_seeds=4), *words), message)


def test_no_cluster_tells_the_coordinator(folder):
    """This needs a process of its own: JAX connects once in a process."""
    result = execute(path_of("ppo"), *small_run("ppo"), *flags(coordinator="auto"), cwd=folder)
    assert_refused(result, "--coordinator auto: coordinator_address should be defined")
