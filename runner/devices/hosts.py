"""Several processes, usually one per host, on JAX's own distributed runtime.

Each process trains its own trials on its own devices and sends nothing while training. At the start they compare their
settings and agree on the folder of the run, at the end process 0 waits for the others; results pass through the folder,
which all of them share.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax

from runner.options.fields import Options, resume_flag

TIMEOUT = 300  # seconds to wait for the other processes at the start
HEARTBEAT = 30  # seconds without a heartbeat after which a process counts as dead


def initialize(options: Options) -> None:
    """Join the other processes, if there are some; JAX's backend must not have started yet. Process 0 prints for all.

    Raises:
        ValueError: the address or a number is missing or wrong. If another process never connects, this one exits
            with status 2, since JAX waits in code that cannot be interrupted.
    """
    coordinator = options.coordinator
    if not coordinator:
        return
    jax.config.update("jax_enable_recoverability", True)  # a process that dies does not end the others
    place = {}  # auto: JAX detects it
    if coordinator != "auto":
        place = {"coordinator_address": coordinator, "cluster_detection_method": "deactivate"}
        place |= {"num_processes": options.num_processes, "process_id": options.process_id}
    elif "SLURM_STEP_ID" in os.environ:  # JAX derives the port from the job, and steps of a job may run at once
        number = 61 * int(os.environ["SLURM_JOB_ID"]) + int(os.environ["SLURM_STEP_ID"])
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(61440 + number % 4096))
    if "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        place["local_device_ids"] = []  # no limit: under Slurm JAX would take one GPU of each node
    timer = threading.Timer(TIMEOUT, _exit_on_timeout, [coordinator])
    timer.daemon = True
    timer.start()
    try:
        timeouts = {"initialization_timeout": 2 * TIMEOUT, "heartbeat_timeout_seconds": HEARTBEAT}
        with _without_proxies():
            jax.distributed.initialize(**place, **timeouts)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"--coordinator {coordinator}: {str(error).splitlines()[0]}") from error
    finally:
        timer.cancel()
    if _client() is None:
        raise ValueError(f"--coordinator does not work with jax {jax.__version__}; install the one of requirements.txt")
    _divide_gpus(_gather("host", socket.gethostname()))
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


@contextlib.contextmanager
def _without_proxies() -> Iterator[None]:
    """Hide the variables of HTTP proxies, through which processes would look for the coordinator."""
    proxies = {name: x for name, x in os.environ.items() if name.lower().endswith("_proxy")}
    for name in proxies:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(proxies)


def _client() -> Any:
    """JAX's connection to the other processes, which has no public name; None without --coordinator."""
    if not jax.distributed.is_initialized():
        return None
    try:
        return jax._src.distributed.global_state.client
    except AttributeError:
        return None


def _gather(name: str, text: str) -> list[str]:
    """The text that each process gives under this name, by the number of the process. A name can be used once.

    Raises:
        ValueError: a process of the same number was here before, or one does not answer.
    """
    state = jax._src.distributed.global_state  # jax.process_index() would start the backend
    try:
        state.client.key_value_set(f"{name}/{state.process_id}", text)
        return [state.client.blocking_key_value_get(f"{name}/{i}", TIMEOUT * 1000) for i in range(state.num_processes)]
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise ValueError(f"the other processes did not answer within {TIMEOUT} s") from None
        hint = "give each run its own --coordinator, and each of its processes its own --process-id"
        raise ValueError(
            f"there is another process {state.process_id} at {state.coordinator_address}; {hint}"
        ) from None


def _divide_gpus(names: list[str]) -> None:
    """Divide the GPUs of a host among its processes, before JAX starts, unless Slurm has divided them.

    names: of the host of each process.
    """
    number = jax._src.distributed.global_state.process_id
    here = [i for i, name in enumerate(names) if name == names[number]]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(list(Path("/dev").glob("nvidia[0-9]*")) if visible is None else visible.split(","))
    variables = "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND", "JAX_LOCAL_DEVICE_IDS"
    if 1 < len(here) <= count and not any(name in os.environ for name in variables):
        place = here.index(number)
        own = range(place * count // len(here), (place + 1) * count // len(here))
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, own)))


def check_same(described: dict[str, Any]) -> None:
    """Raise ValueError in every process, naming the first difference, unless all describe their run alike."""
    if _client() is None:
        return
    texts = _gather("run", json.dumps({name: str(x) for name, x in described.items()}))
    first, *others = map(json.loads, texts)
    for number, other in enumerate(others, start=1):
        for name in first | other:
            one, two = (x.get(name, "nothing") for x in (first, other))
            if one != two:
                shutdown()  # process 0 must not end before the others have read this
                raise ValueError(f"{name} = {one} in process 0 and {two} in process {number}: start all of them alike")


def check_places(options: Options, num_trials: int, num_envs: int) -> None:
    """Raise ValueError if there is no device here, or fewer than --devices, or too few trials for all processes, or if
    --devices-per-trial does not divide the devices or the environments of a trial."""
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that it has found one
        platforms = jax.config.jax_platforms
        what = f"JAX_PLATFORMS={platforms}: no such device here" if platforms else "JAX cannot start"
        raise ValueError(": ".join([what, *str(error).splitlines()[:1]])) from error
    if options.devices > jax.local_device_count():
        raise ValueError(f"devices = {options.devices}, but there are only {jax.local_device_count()} here")
    for what, count in (("devices", options.devices or jax.local_device_count()), ("num_envs", num_envs)):
        if count % options.devices_per_trial:
            raise ValueError(f"devices_per_trial = {options.devices_per_trial} must divide {what} = {count}")
    if num_trials < jax.process_count():
        raise ValueError(
            f"{jax.process_count()} processes need at least as many trials (seeds x settings), not {num_trials}"
        )


def _exit_on_timeout(coordinator: str) -> None:
    print(
        f"error: waited {TIMEOUT} s for the other processes (--coordinator {coordinator}); "
        "start as many as --num-processes says, each with its own --process-id",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)


def broadcast(name: str, decide: Callable[[], str]) -> str:
    """Return in every process what `decide` returns in process 0. A name can be used once.

    Raises ValueError in every process if `decide` does, and if process 0 does not answer.
    """
    client = _client()
    if client is None:
        return decide()
    if jax.process_index() == 0:
        try:
            client.key_value_set(name, f"+{decide()}")
        except ValueError as error:
            client.key_value_set(name, f"-{error}")
    try:
        decided = client.blocking_key_value_get(name, TIMEOUT * 1000)
    except jax.errors.JaxRuntimeError:
        raise ValueError(f"process 0 did not answer within {TIMEOUT} s") from None
    if decided.startswith("-"):
        shutdown()  # process 0 must not end before the others have read this
        raise ValueError(decided[1:])
    return decided[1:]


def barrier(name: str) -> list[int]:
    """Wait for all living processes. Returns those that are absent: dead, ended, or 0 in `leave`, where it meets the
    others too. A name can be used once."""
    client = _client()
    if client is None:
        return []
    if jax.process_index() == 0:
        client.key_value_set(f"{name}/0", "here")
    present = _wait_for_living(client)
    if not client.key_value_dir_get(name):
        present.discard(0)
    return sorted(set(range(jax.process_count())) - present)


def absence_hint(absent: list[int], directory: Path) -> str:
    """Say which processes have died or ended too early, and how to continue."""
    who = "process " + ", ".join(map(str, absent))
    return f"{who} ended too early; what the others trained is saved, continue with {resume_flag(directory)}"


def shutdown() -> None:
    """Disconnect; a second call does nothing.

    Process 0 waits until the others have disconnected: without it JAX ends them, perhaps while they save.
    """
    client = _client()
    if client is None:
        return
    if jax.process_index() > 0:
        jax.distributed.shutdown()
    else:
        while len(_wait_for_living(client)) > 1:  # some have not disconnected yet
            pass


def _wait_for_living(client: Any) -> set[int]:
    """Wait for all living processes to call this, and return their numbers."""
    alive = Future()

    def wait():
        try:
            alive.set_result(set(client.get_live_nodes(list(range(jax.process_count())))))
        except Exception as error:
            alive.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()  # a thread that waits in JAX cannot be interrupted
    return alive.result()
