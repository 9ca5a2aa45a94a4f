"""A trained policy as an ONNX model: python -m runner.export runs/ppo/CartPole-v1/NAME --out policy.onnx"""

import dataclasses
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from common.environment import make_env
from runner.errors import exit_on_errors
from runner.export.policy import NUM_CHECKED, Model, Policy, make_model, make_policy
from runner.files.load import load
from runner.files.record import read_record
from runner.files.store import replacing
from runner.options.parse import registry, shown_path

PLAYER = Path(__file__).with_name("play.py")


@dataclass(frozen=True)
class Arguments:
    """Write a trained policy as an ONNX model, which gives greedy actions in any runtime of ONNX, without JAX."""

    run: Annotated[str, tyro.conf.Positional]  # folder that a training run wrote
    seed_index: int = 0  # which of its seeds, counted from 0
    # which setting of a sweep, counted from 0 in the order of config.json; None: the best one
    setting_index: int | None = None
    script: str = ""  # file of the script that trained it, if it is not one of this checkout
    out: str = "policy.onnx"  # file to write


@exit_on_errors()
def main() -> None:
    """The command line. Exits with status 2 and one line where the input is bad, with 130 after Ctrl-C."""
    arguments = tyro.cli(Arguments, prog="python -m runner.export", registry=registry())
    run, out = Path(arguments.run), Path(arguments.out)
    if out.exists():
        raise ValueError(f"--out {out} exists; name a new file")
    config, algorithm, state = load(run, arguments.seed_index, arguments.setting_index, arguments.script or None)
    record = read_record(run)
    if record.is_sampled:
        print("note: the run was evaluated with sampled actions; the exported ones are greedy", file=sys.stderr)
    policy = make_policy(algorithm, state, make_env(config.env))
    print("converting the policy; loading jax2onnx takes up to half a minute", flush=True)
    seed = record.options.get("seed", 0) + arguments.seed_index
    model = make_model(policy, {"script": record.algorithm, "seed": seed, "config": dataclasses.asdict(config)})
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        temporary.write_bytes(model.content)
    print(f"written to {out}, {len(model.content):,} bytes: {describe(policy, model)}")
    if model.is_widened:
        print("note: layers in float16 or bfloat16 are computed in float32")
    print(f"  play:  {shlex.join(['python', shown_path(PLAYER), str(out), '--gymnasium', gymnasium_name(config.env)])}")


def describe(policy: Policy, model: Model) -> str:
    """The inputs and outputs of a model, and how far it is from `act`."""
    inputs = ", ".join(f"{name} {['n', *x.shape]}".replace("'", "") for name, x in policy.inputs.items())
    count, found = sum(NUM_CHECKED), []
    for name, x in model.differences.items():
        is_counted = name == "action" and hasattr(policy.env.action_space, "n")
        found.append(f"{name} in {round(x * count)}" if is_counted else f"{name} by at most {x:.1e} of its range")
    outputs = ", ".join(policy.outputs)
    return f"{inputs} -> {outputs}\ndiffers from act, on {count:,} random observations: {', '.join(found)}"


def gymnasium_name(env: str) -> str:
    """The environment of Gymnasium that has this name, or a place for one."""
    import gymnasium

    name = env.partition(":")[0]
    return name if name in gymnasium.registry else "ENV"


if __name__ == "__main__":
    main()
