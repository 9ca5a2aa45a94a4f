"""Greedy policies as ONNX models, each compared with `act` before it is written."""

import json
import logging
import sysconfig
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.extend.source_info_util import register_exclusion, summarize
from jax.interpreters.partial_eval import dce_jaxpr

from common.environment import Environment
from runner.errors import one_line

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALL = f"pip install -r {ROOT / 'requirements.txt'} -r {ROOT / 'requirements-export.txt'}"
OPSET = 21  # of 2024: onnxruntime reads it since 1.20
NUM_CHECKED = 1000, 1  # random observations, several at once and one
# Largest differences from `act`: those of numbers are relative to their range, of discrete actions the share counts. A
# wrong model exceeds them by far, rounding stays far below. float16 and bfloat16 round more.
TOLERANCE, HALF_TOLERANCE = 1e-3, 5e-2


@dataclass(frozen=True)
class Policy:
    """`act(*arrays)` of one State, which returns [action, *memory], and what it reads and returns."""

    act: Callable
    inputs: dict[str, jax.ShapeDtypeStruct]  # of one observation: obs or its parts, and the memory
    outputs: list[str]  # their names
    memory: dict[str, np.ndarray]  # where an episode begins, by the name of the input; empty without a memory
    env: Environment


def make_policy(algorithm: Any, state: Any, env: Environment) -> Policy:
    """The policy of a trial. What no output depends on, such as the part of an observation that only the critic sees,
    is not among its inputs. Raises ValueError if nothing is left.
    """
    obs = jax.tree.map(jax.ShapeDtypeStruct, env.obs_shape, env.obs_dtype, is_leaf=lambda x: isinstance(x, tuple))
    memory = [algorithm.initial_memory(1)] if hasattr(algorithm, "initial_memory") else []
    memory = jax.tree.map(lambda x: np.asarray(x[0]), memory)
    paths, structure = jax.tree_util.tree_flatten_with_path([obs, *memory])
    specs = {_name(path): jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in paths}

    def act(inputs: dict[str, Any]) -> list[Any]:
        num = jax.tree.leaves(inputs)[0].shape[0]
        filled = [inputs.get(name, jnp.zeros((num, *x.shape), x.dtype)) for name, x in specs.items()]
        return jax.tree.leaves(algorithm.act(state, *jax.tree.unflatten(structure, filled)))

    everything = lambda *arrays: act(dict(zip(specs, arrays, strict=True)))
    _, is_used = _trace(everything, [jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in specs.values()])
    inputs = {name: x for (name, x), used in zip(specs.items(), is_used, strict=True) if used}
    if not inputs:
        raise ValueError("this policy does the same whatever it observes: there is nothing to export")
    starts = {_name(path): x for path, x in paths if isinstance(x, np.ndarray)}
    return Policy(
        act=lambda *arrays: act(dict(zip(inputs, arrays, strict=True))),
        inputs=inputs,
        outputs=["action", *(f"next_{name}" for name in starts)],
        memory=starts,
        env=env,
    )


def _name(path: Any) -> str:
    """`obs` or the name of its part; `memory`, of several arrays with the place of each."""
    (index, *place) = path
    name = jax.tree_util.keystr(place, simple=True, separator=".")
    return (name or "obs") if index.idx == 0 else ".".join(filter(None, ["memory", name]))


def _trace(function: Callable, specs: list[Any]) -> tuple[ClosedJaxpr, list[bool]]:
    """The program of a function without dead code, and which of its inputs it uses."""
    closed = jax.make_jaxpr(function)(*specs)
    jaxpr, is_used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return ClosedJaxpr(jaxpr, closed.consts), is_used


# -- The model ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """An ONNX model that was compared with `act`."""

    content: bytes
    differences: dict[str, float]  # output -> largest difference, see `_difference`
    is_widened: bool  # whether float16 or bfloat16 of the policy became float32


def make_model(policy: Policy, origin: dict[str, Any]) -> Model:
    """The ONNX model of a policy for any number n of observations, with `origin` and what a program that uses it must
    know as metadata in JSON.

    Raises:
        ValueError: a package of requirements-export.txt is missing, or the model cannot be made, does not run or is not
            like `act`; the message names the first operation that has this fault by itself.
    """
    try:
        import jax2onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        from flax import nnx  # noqa: F401  # which jax2onnx needs and not every pair of jax and flax has
        from onnx.helper import set_model_props
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{error}; to install what an export needs: {INSTALL}") from None
    rng = np.random.default_rng(0)
    try:
        (n,) = jax.export.symbolic_shape("n")
        specs = [jax.ShapeDtypeStruct((n, *x.shape), x.dtype) for x in policy.inputs.values()]
        model, is_widened = _convert(_trace(policy.act, specs)[0], [*policy.inputs], policy.outputs)
        set_model_props(model, {name: json.dumps(x) for name, x in (origin | _metadata(policy)).items()})
        content = model.SerializeToString()
        inputs = [_draw(policy, rng, num) for num in NUM_CHECKED]
        found, expected = (_join(map(act, inputs)) for act in (partial(_run, content), lambda x: policy.act(*x)))
        spans = [_span(policy.env.action_space), *(1.0 for _ in policy.memory)]
        differences = [_difference(*x) for x in zip(found, expected, spans, strict=True)]
        fault = "" if _is_small(differences, is_widened) else f"its outputs differ from act by {max(differences):.2g}"
    except Exception as error:  # jax, jax2onnx and onnxruntime raise a wide variety
        fault = one_line(error)
    if fault:
        culprit = _find_culprit(policy, _draw(policy, rng, 3)) or f"{fault}; each of its operations alone is right"
        raise ValueError(f"this policy has no ONNX model: {culprit}")
    return Model(content, dict(zip(policy.outputs, differences, strict=True)), is_widened)


def _metadata(policy: Policy) -> dict[str, Any]:
    """Metadata for programs that use the model: its actions, and the memory where an episode begins."""
    space = policy.env.action_space
    if hasattr(space, "n"):
        actions, meaning = {"n": int(space.n)}, "greedy, counted from 0"
    else:
        low, high = (np.broadcast_to(np.float32(x), space.shape).tolist() for x in (space.low, space.high))
        actions, meaning = {"low": low, "high": high}, "greedy, in the units of the environment, within low and high"
    memory = {name: x.tolist() for name, x in policy.memory.items()}
    return {"action": meaning, "action_space": actions, "initial_memory": memory}


def _join(outputs: Iterable[list[Any]]) -> list[np.ndarray]:
    """Each output of several calls as one array."""
    return [np.concatenate([_plain(x) for x in parts]) for parts in zip(*outputs, strict=True)]


def _convert(program: ClosedJaxpr, inputs: list[str], outputs: list[str]) -> tuple[Any, bool]:
    """The model of a program, and whether a type became float32.

    The program is traced before: while jax2onnx traces it changes functions of jax.numpy, and distrax then fails.
    """
    from jax2onnx import to_onnx

    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
    function = lambda *arrays: tuple(jaxpr_as_fun(program)(*arrays))
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            model = to_onnx(function, specs, opset=OPSET, input_names=inputs, output_names=outputs)
    finally:
        logging.disable(level)
    del model.graph.value_info[:]  # not needed, and sometimes wrong: onnxruntime would print a warning
    return model, _widen(model)


def _widen(message: Any) -> bool:
    """Turn float16 and bfloat16 everywhere in a model into float32, as onnxruntime lacks many of their operations.
    Returns whether there were any."""
    from onnx import AttributeProto, TensorProto, TypeProto, numpy_helper

    half, is_changed = (TensorProto.FLOAT16, TensorProto.BFLOAT16), False
    if isinstance(message, TensorProto):
        if message.data_type in half:
            array = numpy_helper.to_array(message).astype(np.float32)
            message.CopyFrom(numpy_helper.from_array(array, message.name))
            return True
        return False
    if isinstance(message, TypeProto.Tensor) and message.elem_type in half:
        message.elem_type, is_changed = TensorProto.FLOAT, True
    if isinstance(message, AttributeProto) and message.name in ("to", "dtype") and message.i in half:
        message.i, is_changed = TensorProto.FLOAT, True
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = value if field.is_repeated else [value]
            is_changed |= max(map(_widen, parts))  # any() would stop at the first
    return is_changed


def _run(content: bytes, arrays: list[Any]) -> list[np.ndarray]:
    """The outputs of a model in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it raises says enough
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    return session.run(None, {name: _plain(x) for name, x in zip(names, arrays, strict=True)})


# -- Comparison --------------------------------------------------------------------------------------------------------


def _draw(policy: Policy, rng: np.random.Generator, num: int) -> list[np.ndarray]:
    """Random inputs: normal numbers, and integers and booleans between their extremes at resets."""
    arrays, starts = [], {}
    if any(not jnp.issubdtype(x.dtype, jnp.floating) for x in policy.inputs.values()):
        obs, _ = jax.jit(policy.env.reset)(jax.random.split(jax.random.key(0), 8))
        starts = policy.memory | (obs if isinstance(obs, dict) else {"obs": obs})
    for name, x in policy.inputs.items():
        shape = num, *x.shape
        if jnp.issubdtype(x.dtype, jnp.floating):
            arrays.append(rng.normal(size=shape).astype(x.dtype))
        else:
            low, high = (int(bound) for bound in (np.min(starts[name]), np.max(starts[name])))
            arrays.append(rng.integers(low, high, shape, endpoint=True).astype(x.dtype))
    return arrays


def _span(space: Any) -> np.ndarray | float:
    """The range of actions in each dimension; 1.0 if they are discrete."""
    return 1.0 if hasattr(space, "n") else np.broadcast_to(space.high, space.shape) - np.float32(space.low)


def _plain(x: Any) -> np.ndarray:
    """A numpy array; float32 where it is float16 or bfloat16."""
    x = np.asarray(x)
    return x.astype(np.float32) if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 else x


def _difference(found: np.ndarray, expected: Any, span: Any = 1.0) -> float:
    """The share of integers that differ, or the largest difference of numbers, over their range or their size."""
    expected = _plain(expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.inf
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        return float(np.mean(found != expected))
    is_same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(all="ignore"):
        relative = np.abs(found - expected) / (span if np.ndim(span) else np.maximum(span, np.abs(expected)))
    return float(np.max(np.where(is_same, 0.0, np.nan_to_num(relative, nan=np.inf)), initial=0.0))


def _is_small(differences: Any, is_widened: bool) -> bool:
    return max(differences) <= (HALF_TOLERANCE if is_widened else TOLERANCE)


def _find_culprit(policy: Policy, arrays: list[np.ndarray]) -> str:
    """Name the first operation that fails as a program of its own, with layer, place and fault; "" if none does."""
    register_exclusion(sysconfig.get_path("purelib"))  # the place is a line of the script, not of a library
    program, _ = _trace(policy.act, arrays)
    jaxpr = program.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *arrays], strict=True))
    for equation in jaxpr.eqns:
        inputs = list(dict.fromkeys(x for x in equation.invars if not isinstance(x, Literal)))
        outputs = [x for x in equation.outvars if str(x) != "_"]
        one = ClosedJaxpr(jaxpr.replace(constvars=[], invars=inputs, outvars=outputs, eqns=[equation]), ())
        given = [values[x] for x in inputs]
        results = jaxpr_as_fun(one)(*given)
        values |= zip(outputs, results, strict=True)
        if not inputs:  # a constant
            continue
        names = [f"in_{i}" for i in range(len(inputs))], [f"out_{i}" for i in range(len(outputs))]
        try:
            model, is_widened = _convert(one, *names)
            found = zip(_run(model.SerializeToString(), given), results, strict=True)
            if _is_small([_difference(*pair) for pair in found], is_widened):
                continue
            fault = "other numbers"
        except Exception as error:  # as in make_model
            fault = one_line(error)
        name, info = equation.params.get("name", equation.primitive.name), equation.source_info
        layer = f" of {info.name_stack}" if str(info.name_stack) else ""
        return f"change {name}{layer}, {summarize(info)}, which fails with {fault}"
    return ""
