"""The contract of an environment (in words: common/suites), checked once, when it is made."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from common.spaces import legal_actions

# Names that no scalar of an environment may have: of the metrics of every environment, of other arrays of metrics.npz,
# of wandb's records, and of the arguments of np.savez.
TAKEN = ("episode_return", "episode_length", "num_episodes", "env_steps", "seed", "num_iterations", "is_healthy")
TAKEN += ("file", "allow_pickle")


def check_suite(suite: Any, reset: Callable, step: Callable) -> tuple[Any, Any, dict[str, Any]]:
    """Trace `reset` and `step` of a suite, which may be jitted, and look for what would go wrong in silence.

    What JAX or Python stop in their own words, such as a text in `info`, is left to them.

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
    start = jax.eval_shape(reset, key)
    if not isinstance(start, tuple) or len(start) != 2:
        raise ValueError(f"reset must return obs, state, not {start}")
    _check_obs(start[0])
    after = jax.eval_shape(step, key, start[1], action)
    if not isinstance(after, tuple) or len(after) != 5:
        raise ValueError(f"step must return obs, state, reward, terminated, info, not {after}")
    obs, state, reward, terminated, info = after
    _check_alike({"obs": start[0], "state": start[1]}, {"obs": obs, "state": state})
    if reward.shape != ():
        raise ValueError(f"reward must be a number [], not {list(reward.shape)}")
    for name, flag in {"terminated": terminated, "truncated": info.get("truncated", terminated)}.items():
        if flag.shape != () or flag.dtype != bool:
            raise ValueError(f"{name} must be a bool [], not {flag.dtype} {list(flag.shape)}")
    scalars = {name: x for name, x in info.items() if getattr(x, "shape", None) == () and name != "truncated"}
    for name in scalars:
        if name in TAKEN or name.startswith(("eval_", "sweep_")):
            raise ValueError(f"info has a scalar {name}, the name of another array of metrics; give it another one")
    _check_legal(suite, start[0])
    return obs, state, scalars


def _check_alike(start: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise ValueError unless obs and state have the same structure and shapes at the start and after a step."""
    one, two = jax.tree.structure(start), jax.tree.structure(after)
    if one != two:
        raise ValueError(f"obs and state are {one} in reset and {two} in step")
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(start), jax.tree.leaves(after), strict=True):
        if x.shape != y.shape:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"{name} has the shape {x.shape} in reset and {y.shape} in step")


def _check_obs(obs: Any) -> None:
    parts = obs if isinstance(obs, dict) else {"actor": obs}
    leaves = jax.tree.leaves(parts, is_leaf=lambda x: not isinstance(x, dict))
    is_known = "actor" in parts and parts.keys() <= {"actor", "critic", "legal"}
    if not (is_known and all(getattr(x, "size", 0) for x in leaves)):
        raise ValueError(f"obs must be an array, not empty, or a dict of actor and maybe critic and legal, not {obs}")


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
        raise ValueError(f"obs['legal'] must be a bool [{num_actions}], not {legal.dtype} {list(legal.shape)}")
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
