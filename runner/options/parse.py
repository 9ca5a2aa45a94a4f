"""The command line: the fields of a script's Config and the options of a run."""

import argparse
import dataclasses
import re
import sys
import typing
from pathlib import Path
from typing import Annotated, Any

import tyro

from common.suites import canonical_name
from runner.options.fields import FIXED, Options, check_options, parse_integer

SWITCHES = {"true": True, "1": True, "false": False, "0": False}  # in any case


def shown_path(script: str) -> str:
    """The path of a script, from the current folder if it is in there."""
    path = Path(script).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def normalize_argv(config_class: type) -> list[str]:
    """The words of sys.argv as tyro takes them: `--layer-norm=False`, as an agent of wandb writes it, becomes
    `--no-layer-norm`, and `--hidden-sizes=[64, 64]` becomes `--hidden-sizes 64 64`.

    Raises:
        ValueError: a switch with a value that is neither on nor off.
    """
    kinds = typing.get_type_hints(config_class) | typing.get_type_hints(Options)
    words = []
    for word in sys.argv[1:]:
        flag, equals, value = word.partition("=")
        kind = kinds.get(flag[2:].replace("-", "_")) if flag.startswith("--") and equals else None
        if kind is bool:
            if value.lower() not in SWITCHES:
                raise ValueError(f"{flag} is a switch: give True or False, not {value!r}")
            words.append(flag if SWITCHES[value.lower()] else f"--no-{flag[2:]}")
        elif kind == tuple[int, ...]:
            words += [flag, *re.findall(r"[^\s,()\[\]]+", value)]
        else:
            words.append(word)
    return words


def peek(words: list[str], env: str) -> tuple[str, str, str | None]:
    """--env, by default `env`, --preset, and --resume, or None: the defaults of all other flags depend on them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env", default=env)
    first.add_argument("--preset", default="")
    first.add_argument("--resume")
    known, _ = first.parse_known_args(words)
    return canonical_name(known.env), known.preset, known.resume


def parse(words: list[str], script: str, config: Any, options: Options, source: str) -> tuple[Any, Options]:
    """Read the command line.

    Args:
        words: from `normalize_argv`.
        config, options: the defaults.
        source: the name of what they come from, for --help.

    Raises:
        ValueError: an option with a value that it cannot have, or a field that is swept and has a flag of its own.
    """
    name = Path(script).stem
    config_type = Annotated[type(config), tyro.conf.arg(help=f"Settings of {name.upper()}.")]
    options_type = Annotated[Options, tyro.conf.arg(help="Options of the run, the same for every algorithm.")]
    arguments = dataclasses.make_dataclass("Arguments", [(name, config_type), ("run", options_type)])
    given = tyro.cli(
        tyro.conf.OmitArgPrefixes[arguments],
        args=words,
        prog=f"python {shown_path(script)}",
        description=f"Train {name.upper()}. The defaults are those of {source}.",
        default=arguments(config, dataclasses.replace(options, sweep=())),  # tyro appends to a default
        registry=registry(),
    )
    config, run = getattr(given, name), given.run
    options = dataclasses.replace(run, sweep=run.sweep or options.sweep)
    check_options(options)
    _check_not_swept(words, options.sweep)
    return dataclasses.replace(config, env=canonical_name(config.env)), options


def _check_not_swept(words: list[str], sweeps: tuple[str, ...]) -> None:
    """Raise ValueError if a field that is swept also has a flag of its own."""
    given = {word.partition("=")[0].replace("_", "-") for word in words}
    for sweep in sweeps:
        flag = f"--{sweep.partition('=')[0].strip().replace('_', '-')}"
        if flag in given:
            raise ValueError(f"{flag} is also swept, by --sweep {sweep}, and would have no effect; leave {flag} out")


def registry() -> tyro.constructors.ConstructorRegistry:
    """Integers may be written as 1e6 or 1_000_000."""
    rules = tyro.constructors.ConstructorRegistry()

    @rules.primitive_rule
    def integer_rule(type_info: tyro.constructors.PrimitiveTypeInfo):
        if type_info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: parse_integer(words[0]),
            is_instance=lambda x: isinstance(x, int),
            str_from_instance=lambda x: [str(x)],
        )

    return rules


def check_unchanged(directory: str, saved: tuple[Any, Any], given: tuple[Any, Any]) -> None:
    """Raise ValueError if a Config and Options that are given differ from saved ones where a resumed run may not."""
    if given[1].rank_by != saved[1].rank_by and not given[1].sweep:
        raise ValueError("--rank-by has no effect without a --sweep, whose settings it ranks")
    is_halved = saved[1].sweep_halve != "off"  # what was cut depends on the length and on the evaluations
    fixed = (*FIXED, "eval_episodes", "eval_max_steps") if is_halved else FIXED
    for old, new in zip(saved, given, strict=True):
        for field in dataclasses.fields(old):
            before, after = getattr(old, field.name), getattr(new, field.name)
            may_change = isinstance(old, Options) and field.name not in fixed
            may_grow = field.name == "total_timesteps" and not is_halved
            if before == after or may_change or (may_grow and after > before):
                continue
            hint = "it may only grow" if may_grow else "leave the flag out to resume"
            change = f"{field.name} = {_shown(before)}, not {_shown(after)}"
            raise ValueError(f"{directory} was started with {change}; {hint}")


def _shown(value: Any) -> Any:
    return '""' if value == "" else value


def to_flags(fields: dict[str, Any]) -> list[str]:
    """The flags that give fields of a Config, or options, these values."""
    flags = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        values = {bool: [], tuple: value}.get(type(value), [value])
        flags += [f"--no-{flag}" if value is False else f"--{flag}", *map(str, values)]
    return flags
