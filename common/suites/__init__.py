"""Suites of environments, one module each, found by name and imported when named.

A module has `REQUIREMENT`, for pip; `names()`, the environments that it knows; and a class `Suite`, a subclass of the
Suite below.
"""

import ast
import difflib
import importlib
import inspect
import pkgutil
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

LIMITS = {"max_episode_steps": 1, "reset_period": 0}  # options of every suite and their least values


class Suite(Protocol):
    """One environment of a suite. `common.environment.Environment` makes copies, counts time and starts new episodes.

    Attributes:
        action_space: a gymnax `Discrete`, or a bounded `Box` of rank 1.
        max_episode_steps: time limit in env steps, None without one.
        reset_period: env steps between new starts (common/starts.py). 0: every step computes a fresh start, as is best
            where a reset is cheap. None: the time limit, for a suite whose episodes all last that long.
        is_small: whether a step is so short that a GPU should run several as one round of a loop.
    """

    action_space: Any
    max_episode_steps: int | None
    reset_period: int | None
    is_small: bool = False

    @abstractmethod
    def reset(self, key: jax.Array) -> tuple[jax.Array, Any]:
        """Start an episode: obs [*obs_shape], and state, any pytree of arrays."""

    @abstractmethod
    def step(
        self, key: jax.Array, state: Any, action: jax.Array
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Take one step, without a reset: obs, state, reward [], terminated [] bool, info.

        `action` is in the units of `action_space`. `terminated` never includes the time limit. Scalars in `info`
        become metrics, but for `truncated` [] bool: the suite cuts the episode by a rule of its own.
        """

    def renderer(self) -> tuple[str, Callable[[list[Any], np.ndarray, str], None]]:
        """The file's ending, and a function that writes an episode: its states, its returns up to each, the path.

        Raises:
            ValueError: the environment cannot be drawn.
        """
        raise ValueError("environments of this suite cannot be drawn")


def suites() -> list[str]:
    """Names of all suites, installed or not."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "__main__")


def make_suite(name: str) -> tuple[Suite, dict[str, int]]:
    """Make one environment of a suite by the name that `make_env` takes, and read the LIMITS that the name sets.

    Raises:
        ValueError: what is wrong with the name or with this installation, in one line.
    """
    path, _, text = name.partition(":")
    suite, _, env = path.rpartition("/")
    suite = suite or "gymnax"
    if suite not in suites():
        raise ValueError(f"unknown suite {suite!r} in {name!r}; the suites are {', '.join(suites())}")
    module, options = importlib.import_module(f"{__name__}.{suite}"), _read_options(path, text)
    limits = {key: options.pop(key) for key in LIMITS if key in options}
    try:
        names = module.names()
        if env not in names:
            near = difflib.get_close_matches(env, names, n=3) or names
            near = [path.removesuffix(env) + name for name in near]
            raise ValueError(f"unknown environment {path!r}; did you mean {' or '.join(near)}?")
        inspect.signature(module.Suite).bind(env, **options)
        made = module.Suite(env, **options)
    except ModuleNotFoundError as error:
        package = module.REQUIREMENT.partition("==")[0]
        raise ValueError(f"{path} needs {package}: pip install {module.REQUIREMENT} ({error})") from error
    except (OSError, ImportError, TypeError) as error:
        raise ValueError(f"{name} cannot be made here: {error}") from error
    _check_actions(name, made.action_space)
    return made, limits


def write_gif(frames: list[Any], path: str) -> None:
    """Write images [height, width, 3] as an animation, small ones enlarged."""
    from PIL import Image

    factor = max(1, 256 // len(frames[0]))
    first, *rest = (Image.fromarray(np.asarray(x).repeat(factor, axis=0).repeat(factor, axis=1)) for x in frames)
    first.save(path, save_all=True, append_images=rest, duration=100)


def _check_actions(name: str, space: Any) -> None:
    """Raise ValueError unless the scripts take this action space."""
    from gymnax.environments import spaces  # imported here: it starts JAX's backend, which must happen after connecting

    if isinstance(space, spaces.Discrete):
        return
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"{name} has the action space {space}; the scripts take Discrete(n) or a Box of shape (n,)")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(f"{name} has the unbounded action space {space}; give its Box finite bounds")


def _read_options(path: str, text: str) -> dict[str, Any]:
    """`size=8,name=x` -> {"size": 8, "name": "x"}."""
    options = {}
    for pair in text.split(",") if text else []:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ValueError(f"options of {path} are written {path}:name=value,name=value, not {text!r}")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
        if key in LIMITS and not (type(options[key]) is int and options[key] >= LIMITS[key]):
            raise ValueError(f"{key} of {path} must be an integer of at least {LIMITS[key]}, not {value}")
    return options
