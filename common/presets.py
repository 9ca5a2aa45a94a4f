"""Tuned settings of environments: presets/<script>.toml beside the folder `common`."""

import dataclasses
import sys
import tomllib
import typing
from pathlib import Path

from common.config import ConfigType, check_value
from common.suites import canonical_name

FOLDER = Path(__file__).resolve().parent.parent / "presets"


def preset(config_class: type[ConfigType], env: str, name: str = "", **fields: typing.Any) -> ConfigType:
    """The Config that `python SCRIPT.py --env ENV` trains: its preset, or without one the defaults of the script.

    Args:
        config_class: `Config` of a script.
        env: as for --env, also with options behind a colon.
        name: of the preset, as "small"; "": the one without a name.
        fields: other settings, in place of those of the preset.

    Raises:
        ValueError: no preset of this name, or as `read_all_presets`.
    """
    script, env = sys.modules[config_class.__module__].__file__, canonical_name(env)
    check_preset_name(script, config_class, env, name)
    config = find_preset(script, config_class, env, name) or config_class(env=env)
    return dataclasses.replace(config, **fields)


def find_preset(script: str, config_class: type, env: str, name: str = "") -> typing.Any:
    """The preset of an environment, None without one; options behind a colon do not change which preset it takes.

    Raises:
        ValueError: the file of presets has an error.
    """
    config = read_presets(Path(script).stem, config_class, name).get(_without_options(env))
    return config and dataclasses.replace(config, env=env)


def check_preset_name(script: str, config_class: type, env: str, name: str) -> None:
    """Raise ValueError, with the names that there are, unless the environment has a preset of this name."""
    env, algorithm = _without_options(env), Path(script).stem
    names = [x for x, presets in read_all_presets(algorithm, config_class).items() if x and env in presets]
    if name and name not in names:
        others = f"only {', '.join(names)}" if names else "whose presets have no name: leave --preset out"
        raise ValueError(f"presets/{algorithm}.toml has no preset {name} for {env}, {others}")


def _without_options(env: str) -> str:
    return env.partition(":")[0]


def read_presets(script: str, config_class: type[ConfigType], name: str = "") -> dict[str, ConfigType]:
    """The Config of each environment that has a preset of this name in presets/<script>.toml; "": one without a name.

    Raises:
        ValueError: as `read_all_presets`.
    """
    return read_all_presets(script, config_class).get(name, {})


def read_all_presets(script: str, config_class: type[ConfigType]) -> dict[str, dict[str, ConfigType]]:
    """The Config of each environment, by the name of the preset and by the environment; empty if there is no file.

    Each table `[[preset]]` has a list `envs` and the fields that differ from the defaults of `config_class`. A table
    with a `name` is a second preset of its environments, such as one for a smaller machine.

    Raises:
        ValueError: naming the file and the table: an unknown field, an invalid value, an environment twice.
    """
    path, presets = FOLDER / f"{script}.toml", {}
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))  # with or without the mark of an editor
    except FileNotFoundError:
        return {}
    except ValueError as error:  # no UTF-8, or no TOML
        raise ValueError(f"{path}: {error}") from error
    if content.keys() != {"preset"} or not isinstance(content["preset"], list):
        raise ValueError(f"{path} must consist of tables [[preset]]")
    for number, table in enumerate(content["preset"], start=1):
        try:
            name, configs = _read_table(table, config_class)
            for config in configs:
                if config.env in presets.setdefault(name, {}):
                    raise ValueError(f"{config.env} has a preset{f' named {name}' if name else ''} already")
                presets[name][config.env] = config
        except ValueError as error:
            raise ValueError(f"{path}, [[preset]] number {number}: {error}") from error
    return presets


def _read_table(table: dict[str, typing.Any], config_class: type[ConfigType]) -> tuple[str, list[ConfigType]]:
    """The name of a table, and the Config of each of its environments."""
    fields = {field: tuple(x) if isinstance(x, list) else x for field, x in table.items()}
    envs, name = fields.pop("envs", ()), fields.pop("name", "")
    hints = typing.get_type_hints(config_class, include_extras=True)
    if not (isinstance(envs, tuple) and envs and all(isinstance(env, str) for env in envs)):
        raise ValueError('it needs envs = ["NAME", ...]')
    for env in envs:
        if env != (found := _without_options(canonical_name(env))):
            raise ValueError(f"envs has {env}, for which no preset is looked up; --env {env} takes that of {found}")
    if not isinstance(name, str) or ("name" in table and not name):
        raise ValueError(f'name must be text, such as "small", not {name!r}')
    for field, value in fields.items():
        if field not in hints or field == "env":
            raise ValueError(f"there is no setting {field}")
        check_value(field, value, hints[field])
    return name, [config_class(env=env, **fields) for env in envs]
