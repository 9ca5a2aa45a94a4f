"""A trained policy for a program without JAX: python -m runner.export runs/ppo/CartPole-v1/NAME --out policy"""

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from common.environment import make_env
from runner.cli.parse import fail, registry
from runner.export.policy import make_policy, write_numpy, write_stablehlo
from runner.files.load import load
from runner.files.record import read_record
from runner.files.store import RECORD, read_json


@dataclass(frozen=True)
class Arguments:
    """Write a folder with policy.py and policy.npz, which need numpy alone: act(obs) gives the greedy actions of a
    trained policy, and policy.py plays with it in Gymnasium."""

    run: Annotated[str, tyro.conf.Positional]  # folder that a training run wrote
    seed_index: int = 0  # which of its seeds, counted from 0
    # which setting of a sweep, counted from 0 in the order of config.json; None: the best one
    setting_index: int | None = None
    script: str = ""  # file of the script that trained it, if it is not one of this checkout
    out: str = "policy"  # folder to write
    jax: bool = False  # write policy.stablehlo instead, a program that needs jax alone


def main() -> None:
    """The command line. Exits with status 2 and one line where the input is bad, with 130 after Ctrl-C."""
    arguments = tyro.cli(Arguments, prog="python -m runner.export", registry=registry())
    folder, script = Path(arguments.out), arguments.script or None
    try:
        if folder.exists():
            raise ValueError(f"--out {folder} exists; name a new folder")
        lane = arguments.seed_index, arguments.setting_index
        config, algorithm, state = load(arguments.run, *lane, script)
        policy = make_policy(algorithm, state, make_env(config.env))
        setting = "" if arguments.setting_index is None else f", setting index {arguments.setting_index}"
        if arguments.jax:
            write_stablehlo(policy, folder)
        else:
            run = Path(arguments.run)
            recorded = str(read_json(run / RECORD).get("git_commit"))
            commit = recorded if re.fullmatch("[0-9a-f]{40}", recorded) else "unknown"  # it becomes text of a program
            origin = f"{read_record(run).algorithm} on {config.env}, commit {commit}:\n"
            write_numpy(policy, f"{origin}{arguments.run}, seed index {arguments.seed_index}{setting}", folder)
    except (ValueError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    if arguments.jax:
        print(f"written to {folder / 'policy.stablehlo'}; to use it, with obs [n, ...]:")
        print("  import jax, pathlib")
        print(f'  policy = jax.export.deserialize(pathlib.Path("{folder / "policy.stablehlo"}").read_bytes())')
        has_memory = policy.memory is not None
        if has_memory:
            print(f"  memory = jax.numpy.zeros((n, *{policy.memory.shape}))  # where an episode begins")
        print("  action, memory = policy.call(obs, memory)" if has_memory else "  action = policy.call(obs)")
    else:
        print(f"written to {folder}: policy.py, policy.npz")
        name = config.env.partition(":")[0]
        if re.fullmatch(r"\w+-v\d+", name):  # how Gymnasium names environments
            print(f"  play:  python {folder / 'policy.py'} --gymnasium {name}")


if __name__ == "__main__":
    main()
