"""What an environment must be, checked once, when it is made; common/suites says it in words."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.random import is_key
from common.spaces import legal_actions

# Names that no scalar of an environment may have: of the metrics of every environment, of other arrays of metrics.npz,
# of wandb's records, and of the arguments of np.savez.
TAKEN = ("episode_return", "episode_length", "num_episodes", "env_steps", "seed", "num_iterations", "is_healthy")
TAKEN += ("file", "allow_pickle")
OUTPUTS = {"reset": ("obs", "state"), "step": ("obs", "state", "reward", "terminated", "info")}


def check_suite(suite: Any, reset: Callable, step: Callable) -> tuple[Any, Any, dict[str, Any]]:
    """Trace `reset` and `step` of a suite, which may be jitted, and compare what they return.

    Returns:
        Abstract: obs and state in the dtypes of `step`, where those of `reset` differ; the scalars of its info.

    Raises:
        ValueError: what is wrong, in one line.
    """
    _check_actions(suite.action_space)
    _check_count("max_episode_steps", suite.max_episode_steps, 1)
    _check_count("reset_period", suite.reset_period, 0)
    key = jax.eval_shape(jax.random.key, 0)
    action = jax.eval_shape(suite.action_space.sample, key)
    start = _trace("reset", reset, key)
    _check_obs(start[0])
    *after, reward, terminated, info = _trace("step", step, key, start[1], action)
    _compare(("reset", "step"), start, after, lambda x: f"{'a key' if is_key(x) else 'an array'} of shape {x.shape}")
    if _dtypes(start) != _dtypes(after):
        again = _trace("step", step, key, after[1], action)[:2]
        _compare(("one step", "the next"), after, again, lambda x: str(x.dtype))

    if reward.shape != () or not (jnp.issubdtype(reward.dtype, jnp.number) or reward.dtype == bool):
        raise ValueError(f"reward must be a number [], not {_show(reward)}")
    if not isinstance(info, dict):
        raise ValueError(f"info must be a dict, not {_show(info)}")
    for name, flag in {"terminated": terminated, "truncated": info.get("truncated", terminated)}.items():
        if getattr(flag, "shape", None) != () or flag.dtype != bool:
            raise ValueError(f"{name} must be a bool [], not {_show(flag)}")
    scalars = {name: x for name, x in info.items() if getattr(x, "shape", None) == () and name != "truncated"}
    for name in scalars:
        if name in TAKEN or name.startswith(("eval_", "sweep_")):
            raise ValueError(f"info has a scalar {name}, the name of another array of metrics; give it another one")
    _check_legal(suite, start[0])
    return *after, scalars


def _trace(name: str, function: Callable, *inputs: Any) -> tuple:
    """What a function of a suite returns, abstract. An error inside of it keeps its traceback."""
    try:
        outputs = jax.eval_shape(function, *inputs)
    except TypeError as error:
        if "not a valid JAX type" not in str(error):
            raise
        what = str(error).partition("returned ")[2].partition(", which")[0]  # with its place
        raise ValueError(f"{name} must return arrays, not {what}") from None
    if not isinstance(outputs, tuple) or len(outputs) != len(OUTPUTS[name]):
        raise ValueError(f"{name} must return {', '.join(OUTPUTS[name])}, not {_show(outputs)}")
    return outputs


def _check_obs(obs: Any) -> None:
    parts = obs if isinstance(obs, dict) else {"actor": obs}
    leaves = jax.tree.leaves(parts, is_leaf=lambda x: not isinstance(x, dict))
    if "actor" not in parts or not parts.keys() <= {"actor", "critic", "legal"} or not all(map(_is_array, leaves)):
        raise ValueError(f"obs must be an array, or a dict of arrays, actor and maybe critic, legal, not {_show(obs)}")
    if not all(x.size for x in leaves):
        raise ValueError(f"obs must have elements, and has the shape {jax.tree.map(jnp.shape, obs)}")


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape")


def _check_actions(space: Any) -> None:
    """Raise ValueError unless the scripts take this action space."""
    from gymnax.environments import spaces  # imported here: it starts JAX's backend, which must happen after connecting

    if isinstance(space, spaces.Discrete):
        return
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"the action space must be Discrete(n) or a Box of shape (n,), not {space}")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(f"the action space {space} is unbounded; give its Box finite bounds")


def _check_legal(suite: Any, obs: Any) -> None:
    """Raise ValueError unless the entry `legal` of obs, if there is one, tells at least one legal action."""
    legal = legal_actions(obs)
    if legal is None:
        return
    num_actions = getattr(suite.action_space, "n", None)
    if num_actions is None:
        raise ValueError("obs must have no entry `legal`, as the actions are continuous")
    if legal.shape != (num_actions,) or legal.dtype != bool:
        raise ValueError(f"obs['legal'] must be a bool [{num_actions}], not {_show(legal)}")
    if not jax.jit(lambda key: suite.reset(key)[0]["legal"].any())(jax.random.key(0)):
        raise ValueError("obs['legal'] has no legal action where an episode begins")


def _check_count(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless a number of env steps is None or an int of at least `least`."""
    try:
        is_valid = value is None or (not isinstance(value, bool) and operator.index(value) >= least)
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"{name} must be None or an int of at least {least}, not {value!r}")


def _compare(calls: tuple[str, str], first: Any, second: Any, describe: Callable) -> None:
    """Raise ValueError unless obs and state have the same structure in two calls, and alike arrays."""
    described = [
        {
            f"{name}{jax.tree_util.keystr(path)}": describe(x)
            for name, tree in zip(("obs", "state"), outputs, strict=True)
            for path, x in jax.tree_util.tree_leaves_with_path(tree)
        }
        for outputs in (first, second)
    ]
    for name in described[0] | described[1]:
        one, other = (x.get(name, "missing") for x in described)
        if one != other:
            raise ValueError(f"{name} is {one} in {calls[0]} and {other} in {calls[1]}")
    if jax.tree.structure(tuple(first)) != jax.tree.structure(tuple(second)):
        raise ValueError(f"obs or state is of other types, or has other static fields, in {calls[0]} and in {calls[1]}")


def _dtypes(tree: Any) -> list[Any]:
    return [x.dtype for x in jax.tree.leaves(tree)]


def _show(x: Any) -> str:
    """`float32[3]` of an array, `(float32[], {name: bool[]})` of a tree of them."""
    if hasattr(x, "shape"):
        return f"{x.dtype}[{', '.join(map(str, x.shape))}]"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{name}: {_show(value)}" for name, value in x.items()) + "}"
    return f"({', '.join(map(_show, x))})" if isinstance(x, tuple | list) else type(x).__name__
