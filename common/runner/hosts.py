"""Several processes, usually one a host, on JAX's own distributed runtime.

Each trains its own lanes on its own devices, and nothing is sent while they train. They meet at the beginning, to agree
on the folder of the run, and at the end, to see who came; results pass through the folder, which all of them share.
"""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax

PATIENCE = 300  # seconds to wait for the other processes at the beginning
HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead


def connect(coordinator: str, num_processes: int, process_id: int) -> None:
    """Join the other processes; the backend of JAX must not have started yet.

    Args:
        coordinator: `host:port` of process 0, or `auto`: Slurm, Open MPI, Kubernetes or a TPU pod tell all three.

    Raises:
        ValueError: what the processes need to find each other is missing or wrong. Where another process never comes,
            this one exits with status 2: JAX waits in code that cannot be interrupted.
    """
    jax.config.update("jax_enable_recoverability", True)  # one that dies does not take the others along
    address = (
        {} if coordinator == "auto" else {"coordinator_address": coordinator, "cluster_detection_method": "deactivate"}
    )
    numbers = {} if coordinator == "auto" else {"num_processes": num_processes, "process_id": process_id}
    timer = threading.Timer(PATIENCE, _give_up, [coordinator])
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **address, **numbers, initialization_timeout=2 * PATIENCE, heartbeat_timeout_seconds=HEARTBEAT
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"--coordinator {coordinator}: {str(error).splitlines()[0]}") from error
    finally:
        timer.cancel()


def _give_up(coordinator: str) -> None:
    print(
        f"error: waited {PATIENCE} s for the other processes (--coordinator {coordinator}); "
        "start as many as --num-processes says, each with its own --process-id",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)


def agree(name: str, decide: Callable[[], str]) -> str:
    """What process 0 decides, in every process. A name can be used once.

    Raises ValueError in all of them if `decide` does.
    """
    client = jax._src.distributed.global_state.client
    if client is None:
        return decide()
    if jax.process_index() == 0:
        try:
            client.key_value_set(name, f"+{decide()}")
        except ValueError as error:
            client.key_value_set(name, f"-{error}")
    decided = client.blocking_key_value_get(name, PATIENCE * 1000)
    if decided.startswith("-"):
        wait_for_all()  # or the others would lose process 0 before they have read this
        raise ValueError(decided[1:])
    return decided[1:]


def wait_for_all() -> list[int]:
    """Wait until every process that lives has come here, and part. Returns those that have died, or ended before."""
    client = jax._src.distributed.global_state.client
    if client is None:
        return []
    alive = _meet(client)
    leave()
    return sorted(set(range(jax.process_count())) - alive)


def leave() -> None:
    """Part. Process 0 waits until the others have gone: JAX ends those who lose it, perhaps while they save.

    To part a second time does nothing.
    """
    client = jax._src.distributed.global_state.client
    if client is None:
        return
    if jax.process_index() > 0:
        jax.distributed.shutdown()
    else:
        while len(_meet(client)) > 1:  # they came, and have yet to go
            pass


def _meet(client: Any) -> set[int]:
    """Wait until every process that lives has come here; which these are."""
    alive = Future()

    def wait():
        try:
            alive.set_result(set(client.get_live_nodes(list(range(jax.process_count())))))
        except Exception as error:
            alive.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()  # Ctrl-C is not heard by the thread that waits in JAX
    return alive.result()
