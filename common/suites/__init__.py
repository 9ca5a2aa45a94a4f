"""Suites of environments, one module each, found by name and imported when named.

A module has `REQUIREMENT`, what pip installs; `names()`, the environments that it knows; and a class `Suite`, one
environment as `common.environment.Environment` describes it.
"""

import ast
import difflib
import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np

LIMITS = {"max_episode_steps": 1, "reset_period": 0}  # options of every suite and their least values


def suites() -> list[str]:
    """The names of all suites, installed or not."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "__main__")


def make_suite(name: str) -> tuple[Any, dict[str, int]]:
    """One environment of a suite by its name, as `make_env` takes it, and those of LIMITS that the name sets.

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
        return module.Suite(env, **options), limits
    except ModuleNotFoundError as error:
        package = module.REQUIREMENT.partition("==")[0]
        raise ValueError(f"{path} needs {package}: pip install {module.REQUIREMENT} ({error})") from error
    except (OSError, ImportError, TypeError) as error:
        raise ValueError(f"{name} cannot be made here: {error}") from error


def write_gif(frames: list[Any], path: str) -> None:
    """Write images [height, width, 3] as an animation, small ones enlarged."""
    from PIL import Image

    factor = max(1, 256 // len(frames[0]))
    first, *rest = (Image.fromarray(np.asarray(x).repeat(factor, axis=0).repeat(factor, axis=1)) for x in frames)
    first.save(path, save_all=True, append_images=rest, duration=100)


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
