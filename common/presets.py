"""Tuned settings of environments: presets/<script>.toml beside the folder `common`."""

import tomllib
import typing
from pathlib import Path

from common.config import ConfigType, check_value

FOLDER = Path(__file__).resolve().parent.parent / "presets"


def read_presets(script: str, config_class: type[ConfigType]) -> dict[str, ConfigType]:
    """The Config of each environment that presets/<script>.toml names; empty if there is no such file.

    Each table `[[preset]]` has a list `envs` and the fields that differ from the defaults of `config_class`.

    Raises:
        ValueError: naming the file and the table: an unknown field, an invalid value, an environment twice.
    """
    path, presets = FOLDER / f"{script}.toml", {}
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if content.keys() != {"preset"} or not isinstance(content["preset"], list):
        raise ValueError(f"{path} must consist of tables [[preset]]")
    for number, table in enumerate(content["preset"], start=1):
        try:
            for env, config in _read_table(table, config_class):
                if env in presets:
                    raise ValueError(f"{env} has a preset already")
                presets[env] = config
        except ValueError as error:
            raise ValueError(f"{path}, [[preset]] number {number}: {error}") from error
    return presets


def _read_table(table: dict[str, typing.Any], config_class: type[ConfigType]) -> list[tuple[str, ConfigType]]:
    """The environments of a table, with their Config."""
    fields = {name: tuple(x) if isinstance(x, list) else x for name, x in table.items()}
    envs, hints = fields.pop("envs", ()), typing.get_type_hints(config_class, include_extras=True)
    if not (isinstance(envs, tuple) and envs and all(isinstance(env, str) for env in envs)):
        raise ValueError('it needs envs = ["NAME", ...]')
    for name, value in fields.items():
        if name not in hints or name == "env":
            raise ValueError(f"there is no setting {name}")
        check_value(name, value, hints[name])
    return [(env, config_class(env=env, **fields)) for env in envs]
