"""Tuned settings of environments: presets/<script>.toml beside the folder `common`."""

import dataclasses
import sys
import tomllib
import typing
import warnings
from pathlib import Path

from common.config import ConfigType, check_value
from common.suites import canonical_name

FOLDER = Path(__file__).resolve().parent.parent / "presets"


def preset(config_class: type[ConfigType], env: str, name: str = "", **fields: typing.Any) -> ConfigType:
    """The Config that `python SCRIPT.py --env ENV` trains: its preset, or without one the defaults of the script.

    Args:
        config_class: `Config` of a script, or a subclass of it.
        env: as for --env, also with options behind a colon.
        name: of the preset, as "small"; "": the one without a name.
        fields: other settings, in place of those of the preset.

    Raises:
        ValueError: as `find_preset`.
    """
    if not (path := _file_of(config_class)).exists():
        warnings.warn(f"there is no presets/{path.name}: {env} has the defaults of Config", stacklevel=2)
    config = find_preset(config_class, canonical_name(env), name) or config_class(env=canonical_name(env))
    return dataclasses.replace(config, **fields)


def find_preset(config_class: type[ConfigType], env: str, name: str = "") -> ConfigType | None:
    """The preset of an environment, None without one; options behind a colon do not change which preset it takes.

    Raises:
        ValueError: no preset of this name, or an error in the file of presets.
    """
    presets, family = read_presets(config_class), env.partition(":")[0]
    names = [x for x, configs in presets.items() if x and family in configs]
    if name and name not in names:
        others = f"only {', '.join(names)}" if names else "whose presets have no name: leave --preset out"
        path = f"presets/{_file_of(config_class).name}"
        raise ValueError(f"{path} has no preset {name} for {family}, {others}")
    config = presets.get(name, {}).get(family)
    return config and dataclasses.replace(config, env=env)


def _file_of(config_class: type) -> Path:
    """presets/<script>.toml of the script that defines a Config, or, if that has none, of the one it inherits from."""
    modules = [sys.modules[base.__module__] for base in config_class.__mro__]
    files = [getattr(module, "__file__", None) or module.__name__ for module in modules]  # a notebook has no file
    paths = [FOLDER / f"{Path(file).stem}.toml" for file in files]
    return next((path for path in paths if path.exists()), paths[0])


def read_presets(config_class: type[ConfigType]) -> dict[str, dict[str, ConfigType]]:
    """The Config of each environment, by the name of the preset and by the environment; empty if there is no file.

    Each table `[[preset]]` has a list `envs` and the fields that differ from the defaults of `config_class`. A table
    with a `name` is a second preset of its environments, such as one for a smaller machine.

    Raises:
        ValueError: naming the file and the table: an unknown field, an invalid value, an environment twice.
    """
    path, presets, place = _file_of(config_class), {}, ""
    if not path.exists():
        return {}
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))  # with or without the mark of an editor
        if content.keys() != {"preset"} or not isinstance(content["preset"], list):
            raise ValueError("it must consist of tables [[preset]]")
        for number, table in enumerate(content["preset"], start=1):
            place = f", [[preset]] number {number}"
            name, configs = _read_table(table, config_class)
            for config in configs:
                if config.env in presets.setdefault(name, {}):
                    raise ValueError(f"{config.env} has a preset{f' named {name}' if name else ''} already")
                presets[name][config.env] = config
    except ValueError as error:  # also no UTF-8, or no TOML
        raise ValueError(f"{path}{place}: {error}") from error
    return presets


def _read_table(table: dict[str, typing.Any], config_class: type[ConfigType]) -> tuple[str, list[ConfigType]]:
    """The name of a table, and the Config of each of its environments."""
    fields = {field: tuple(x) if isinstance(x, list) else x for field, x in table.items()}
    envs, name = fields.pop("envs", ()), fields.pop("name", "")
    hints = typing.get_type_hints(config_class, include_extras=True)
    if not (isinstance(envs, tuple) and envs and all(isinstance(env, str) for env in envs)):
        raise ValueError('it needs envs = ["NAME", ...]')
    for env in envs:
        if env != (found := canonical_name(env).partition(":")[0]):
            raise ValueError(f"envs has {env}, for which no preset is looked up; --env {env} takes that of {found}")
    if not isinstance(name, str):
        raise ValueError(f'name must be text, such as "small", not {name!r}')
    for field, value in fields.items():
        if field not in hints or field == "env":
            raise ValueError(f"there is no setting {field}")
        check_value(field, value, hints[field])
    return name, [config_class(env=env, **fields) for env in envs]
