"""A greedy policy as files: policy.py with policy.npz for numpy, or policy.stablehlo for jax."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common.environment import Environment
from runner.export.source import Source, dtype_text, shape_text, translate

PLATFORMS = ("cpu", "cuda", "tpu")
INPUTS, OUTPUTS = ("obs", "memory"), ("action", "memory")  # the second where a policy has one
HEAD = '''\
r"""A policy trained with {origin}.

act gives greedy actions. It needs numpy alone; written by runner.export.
"""

import argparse
{math}import os
from pathlib import Path

import numpy as np

arrays = dict(np.load(Path(__file__).with_name("policy.npz")))
OBS_SHAPE, ACTION_SHAPE, NUM_ACTIONS = {obs_shape}, {action_shape}, {num_actions}
'''
MEMORY = '''\
def initial_memory():
    """Where an episode begins."""
    return arrays["initial_memory"]
'''
PLAY = Path(__file__).with_name("play.txt")  # what follows `act` in policy.py


@dataclass(frozen=True)
class Policy:
    """`act(*inputs)` of n observations, a symbolic dimension, for one State."""

    act: Callable  # state, obs -> action; with a memory, state, obs, memory -> action, memory
    state: Any
    inputs: tuple[Any, ...]  # shapes and dtypes of obs, an array or a dict of arrays, and of memory
    memory: np.ndarray | None  # where an episode begins
    action_space: Any


def make_policy(algorithm: Any, state: Any, env: Environment) -> Policy:
    """The policy of a lane."""
    (n,) = jax.export.symbolic_shape("n")
    spec = lambda shape, dtype: jax.ShapeDtypeStruct((n, *shape), dtype)  # noqa: E731
    obs = jax.tree.map(spec, env.obs_shape, env.obs_dtype, is_leaf=lambda x: isinstance(x, tuple))
    if not hasattr(algorithm, "initial_memory"):
        if isinstance(obs, dict):
            obs.pop("critic", None)  # only `value` reads it, and the memory of a critic
        return Policy(algorithm.act, state, (obs,), None, env.action_space)
    memory = np.asarray(algorithm.initial_memory(1)[0])
    return Policy(algorithm.act, state, (obs, spec(memory.shape, memory.dtype)), memory, env.action_space)


def write_stablehlo(policy: Policy, folder: Path) -> None:
    """Write policy.stablehlo, a program for each of PLATFORMS. Raises ValueError without the package flatbuffers."""
    act = jax.jit(lambda *inputs: policy.act(policy.state, *inputs))
    try:
        content = jax.export.export(act, platforms=PLATFORMS)(*policy.inputs).serialize()
    except ImportError:
        raise ValueError("--jax needs the package flatbuffers: pip install flatbuffers") from None
    folder.mkdir(parents=True)
    (folder / "policy.stablehlo").write_bytes(content)


def write_numpy(policy: Policy, origin: str, folder: Path) -> None:
    """Write policy.py and policy.npz. Raises ValueError, and writes nothing, if numpy lacks an operation of the policy;
    `origin` says where the policy comes from.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(policy.state)
    arrays = [(_short(path), x) for path, x in leaves]
    inputs = dict(jax.tree_util.tree_flatten_with_path(policy.inputs)[0])
    program = jax.make_jaxpr(policy.act)(policy.state, *policy.inputs)
    source = translate(program, [*arrays, *map(_variable, inputs)])
    text = _text(policy, origin, source, inputs, program.out_avals)
    memory = {} if policy.memory is None else {"initial_memory": policy.memory}
    folder.mkdir(parents=True)
    np.savez(folder / "policy.npz", **source.arrays | memory)
    (folder / "policy.py").write_text(text)


def _short(path: Any) -> str:
    """params/actor/params/Dense_0/bias -> actor/Dense_0/bias."""
    parts = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    return "/".join(part for part in parts if part != "params")


def _variable(path: Any) -> str:
    """What an input is called in the source: obs, memory, or the name of an entry of obs."""
    place, *entry = path
    return str(entry[0].key) if entry else INPUTS[place.idx]


def _text(policy: Policy, origin: str, source: Source, inputs: dict[Any, Any], outputs: list[Any]) -> str:
    """The text of policy.py."""
    space = policy.action_space
    is_discrete = hasattr(space, "n")
    head = HEAD.format(
        origin=origin.replace('"', "'"),  # names of elsewhere do not end the text that they stand in
        math="import math\n" * any("math." in text for text in source.helpers),
        obs_shape=jax.tree.map(lambda x: x.shape[1:], policy.inputs[0]),
        action_shape="()" if is_discrete else shape_text(space.shape),
        num_actions=int(space.n) if is_discrete else None,
    )
    parts, play = [head, *source.helpers], PLAY.read_text()
    if policy.memory is not None:
        parts.append(MEMORY)
        play = play.replace("total, done = 0.0, False", "total, done, memory = 0.0, False, initial_memory()")
        play = play.replace("action = act(obs)", "action, memory = act(obs, memory)")
    names = ", ".join(INPUTS[: len(policy.inputs)])
    act = "\n    ".join([f"def act({names}):", *_body(source, inputs, outputs)])
    return "\n\n".join([part.rstrip("\n") + "\n" for part in [*parts, act, play]])


def _body(source: Source, inputs: dict[Any, Any], outputs: list[Any]) -> list[str]:
    """The lines of `act`."""
    names = [_variable(path) for path in inputs]
    results = OUTPUTS[: len(outputs)]
    told = [f"{name} {_describe(x)}" for name, x in zip(names, inputs.values(), strict=True)]
    lines = [f'"""{", ".join(told)} -> action {_describe(outputs[0])}; of one observation without n."""']
    for name, (path, x) in zip(names, inputs.items(), strict=True):
        given = name if len(path) == 1 else f'obs["{name}"]'
        lines.append(f"{name} = np.asarray({given}, {dtype_text(x.dtype)})")
    lines += [f"is_one = {names[0]}.ndim == {len(next(iter(inputs.values())).shape) - 1}", "if is_one:"]
    lines += [f"    {name} = {name}[None]" for name in names]
    if any(re.search(r"\bn\b", text) for text in (*source.lines, *source.outputs)):
        lines.append(f"n = len({names[0]})")
    lines += source.lines
    for name, text, x in zip(results, source.outputs, outputs, strict=True):
        lines.append(f"{name} = np.asarray({text}, {dtype_text(x.dtype)})")
    every, one = ", ".join(results), ", ".join(f"{name}[0]" for name in results)
    if len(results) > 1:
        every, one = f"({every})", f"({one})"
    return [*lines, f"return {one} if is_one else {every}"]


def _describe(x: Any) -> str:
    """`float32 [n, 4]`."""
    return f"{np.dtype(x.dtype).name} [{', '.join(map(str, x.shape))}]"
