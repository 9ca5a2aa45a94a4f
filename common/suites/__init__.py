"""Suites of environments, one module each, found by name and imported when named.

A module has `REQUIREMENT`, for pip; `names()`, the environments that it knows; and a class `Suite`, a subclass of the
Suite below. Where it leaves environments of its package out, `LEFT_OUT` has the beginnings of their names, with why.
"""

import difflib
import importlib
import inspect
import math
import pkgutil
import shlex
import sys
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

LIMITS = {"max_episode_steps": 1, "reset_period": 0}  # options of every suite, as in Suite.options
MAX_INTEGER = 2**31 - 1  # of an option: an int32


class Suite(Protocol):
    """One environment of a suite. `common.environment.Environment` makes copies, counts time and starts new episodes.

    Made from the environment's name and its options. Where rewards or observations depend on the time limit, it takes
    the option `max_episode_steps` itself and hands it on; elsewhere only `Environment` knows of it.

    Attributes:
        action_space: a gymnax `Discrete`, or a bounded `Box` of rank 1.
        max_episode_steps: time limit in env steps, None without one.
        reset_period: env steps between new starts (common/starts.py). 0: every step computes a fresh start, as is best
            where a reset is cheap. None: the time limit, for a suite whose episodes all last that long. A start that
            is used again keeps its state but for its generators of random numbers, which are typed keys
            (`jax.random.key`), or old-style ones called `rng` or `key`.
        is_small: whether a step is so short that a GPU should run several as one round of a loop.
    """

    action_space: Any
    max_episode_steps: int | None
    reset_period: int | None
    is_small: bool = False

    @classmethod
    def options(cls, name: str) -> dict[str, Any]:
        """Options of an environment with their defaults, which say their types: the arguments of this class."""
        return arguments(cls)

    @abstractmethod
    def reset(self, key: jax.Array) -> tuple[jax.Array, Any]:
        """Start an episode: obs [*obs_shape], and state, any pytree of arrays, alike in `step`. Images are
        [height, width, channels].

        obs may be a dict: `actor`, what the policy sees; `critic`, what value functions see where that is more, as in
        simulation; `legal` [n] bool, the legal ones of discrete actions where some are not. `actor` and `critic` may
        be dicts of arrays, such as an image and a vector, for networks that are edited to take them.
        """

    @abstractmethod
    def step(
        self, key: jax.Array, state: Any, action: jax.Array
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Take one step, without a reset: obs, state, reward [], terminated [] bool, info.

        `action` is in the units of `action_space`. `terminated` never includes the time limit. `info` is a dict of any
        arrays, for the script to read. Its scalars become metrics, the mean over episodes of their last finite ones,
        but for `truncated` [] bool: the suite cuts the episode by a rule of its own.
        """

    def renderer(self) -> tuple[str, Callable[[Iterable[Any], np.ndarray, str], None]]:
        """The file's ending, and a function that writes an episode: its states, its returns up to each, the path.

        The function iterates once over the states and draws each as it comes, so that the caller can count them.

        Raises:
            ValueError: the environment cannot be drawn.
        """
        raise ValueError("environments of this suite cannot be drawn")


def suites() -> list[str]:
    """Names of all suites, installed or not."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "__main__")


def canonical_name(name: str) -> str:
    """The one name of an environment, under which presets, folders and records have it.

    It is without the suite gymnax, and its options are in order, numbers in their shortest form:
    `gymnax/DeepSea-bsuite:size=1e1,max_episode_steps=1_000` -> `DeepSea-bsuite:max_episode_steps=1000,size=10`.
    """
    path, _, text = name.removeprefix("gymnax/").partition(":")
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(all(pair) for pair in pairs):  # no options, or not written as such, which make_suite refuses
        return f"{path}:{text}" if text else path
    return f"{path}:" + ",".join(sorted(f"{key}={_shortest(value)}" for key, _, value in pairs))


def _shortest(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else str(number)


def import_suite(suite: str) -> tuple[Any, list[str]]:
    """The module of a suite, and the names of its environments.

    Raises:
        ImportError: what is wrong with its package, in one line that belongs behind the name of the suite.
    """
    name = f"{__name__}.{suite}"
    try:
        module = importlib.import_module(name)
        return module, module.names()
    except Exception as error:  # a broken package raises a wide variety
        if isinstance(error, ModuleNotFoundError) and name in sys.modules:
            raise ImportError(_describe_missing(sys.modules[name], error)) from error
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ImportError(f"cannot be imported: {what} ({place.filename}, line {place.lineno})") from error


def _describe_missing(module: Any, error: ModuleNotFoundError) -> str:
    command = f"pip install {shlex.quote(module.REQUIREMENT)}"
    return f"needs {module.REQUIREMENT.partition('==')[0]}: {command} ({error})"


def find_maker(name: str) -> Any:
    """The factory of the environment of this name; registering it or loading its suite again makes another one."""
    suite, slash, env = name.partition(":")[0].rpartition("/")
    try:
        module, _ = import_suite(suite if slash else "gymnax")
    except ImportError:  # `make_suite` says so
        return None
    return module.Suite, getattr(module, "FACTORIES", {}).get(env)


def make_suite(name: str) -> tuple[Suite, dict[str, int]]:
    """Make one environment of a suite by the name that `make_env` takes, and read those LIMITS that it does not take.

    Raises:
        ValueError: what is wrong with the name or with this installation, in one line.
    """
    path, _, text = name.partition(":")
    suite, slash, env = path.rpartition("/")
    suite = suite if slash else "gymnax"
    if suite not in suites():
        raise ValueError(f"unknown environment {path!r}: there is no suite {suite!r}, only {', '.join(suites())}")
    try:
        module, names = import_suite(suite)
    except ImportError as error:
        raise ValueError(f"{path} {error}") from error
    if env not in names:
        for beginning, reason in getattr(module, "LEFT_OUT", {}).items():
            if env.startswith(beginning):
                raise ValueError(f"{path} {reason}")
        near = [path.removesuffix(env) + name for name in difflib.get_close_matches(env, names, n=3)]
        listed = f"python -m common.suites {suite} lists them, none of Gymnasium; your own must be imported first"
        hint = f"did you mean {' or '.join(near)}?" if near else listed
        raise ValueError(f"unknown environment {path!r}; {hint}")
    try:
        options = _read_options(path, text, module.Suite.options(env) | LIMITS) if text else {}
        taken = inspect.signature(module.Suite).parameters
        limits = {key: options.pop(key) for key in LIMITS if key in options and key not in taken}
        made = module.Suite(env, **options)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} {_describe_missing(module, error)}") from error
    except (OSError, ImportError) as error:
        raise ValueError(f"{name} cannot be made here: {error}") from error
    except Exception as error:  # environments raise a wide variety where options do not fit them
        if isinstance(error, ValueError) or not text:
            raise
        raise ValueError(f"{name} cannot be made with these options: {error!r}".splitlines()[0]) from error
    return made, limits


def arguments(maker: Callable) -> dict[str, Any]:
    """The arguments of a function or a class that have a default, with it."""
    parameters = inspect.signature(maker).parameters.values()
    return {x.name: x.default for x in parameters if x.default is not x.empty}


def guard_physics(
    obs: Any, reward: jax.Array, terminated: jax.Array, metrics: dict[str, jax.Array]
) -> tuple[Any, jax.Array, jax.Array, dict[str, jax.Array]]:
    """End an episode whose observation or reward is not finite, as a termination, so that learning never sees either.

    Physics becomes NaN or infinite now and then, on a GPU more often. Takes and returns what one step of an environment
    tells: obs [*obs_shape] or a dict of such, reward [], terminated [] bool, and metrics [] each. In the step that
    failed obs, reward and metrics are 0. A metric is added: `physics_failed`, whose mean over episodes is the share
    of those that ended so.
    """
    is_finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves((obs, reward))]).all()
    obs, reward, metrics = jax.tree.map(lambda x: jnp.where(is_finite, x, jnp.zeros_like(x)), (obs, reward, metrics))
    return obs, reward, terminated | ~is_finite, metrics | {"physics_failed": ~is_finite}


def write_gif(frames: Iterable[Any], path: str, milliseconds: int = 100) -> None:
    """Write images [height, width, 3] as an animation, small ones enlarged, each shown for `milliseconds`."""
    from PIL import Image

    def convert(frame):
        frame = np.asarray(frame)
        factor = max(1, 256 // len(frame))
        image = Image.fromarray(frame.repeat(factor, axis=0).repeat(factor, axis=1))
        return image.quantize(method=Image.Quantize.FASTOCTREE)  # 7 times as fast as what `save` would choose

    images = map(convert, frames)
    next(images).save(path, save_all=True, append_images=images, duration=milliseconds)


def _read_options(path: str, text: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """`size=8,name=x` -> {"size": 8, "name": "x"}; each value has the type of its default."""
    options = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ValueError(f"options of {path} are written {path}:name=value,name=value, not {text!r}")
        if key not in defaults:
            raise ValueError(f"{path} has no option {key}; it has {', '.join(sorted(defaults))}")
        if key in options:
            raise ValueError(f"{path} has its option {key} twice")
        try:
            options[key] = _read_value(value, defaults[key])
        except ValueError as error:
            raise ValueError(f"{key} of {path} must be {error}, not {value}") from None
    return options


def _read_value(text: str, default: Any) -> Any:
    """Read text as a value of the type of `default`. Raises ValueError: what it must be."""
    if isinstance(default, bool):
        if text not in ("True", "False"):
            raise ValueError("True or False")
        return text == "True"
    if isinstance(default, str):
        return text
    if not isinstance(default, int | float):
        raise ValueError("left out: only numbers, text, True and False can be written in a name")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if isinstance(default, float):
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise ValueError("a finite number")
        return number
    least = min(default, 1)  # a size or a number of steps is not 0 unless its default is
    if not (least <= number <= MAX_INTEGER and number.is_integer()):
        raise ValueError(f"an integer of {least} to {MAX_INTEGER}")
    return int(number)
