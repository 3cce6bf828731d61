"""--config FILE: options in YAML or TOML, which command line and environment override."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ngramspec.cli.files import read_utf8
from ngramspec.drafting.names import nearest
from ngramspec.errors import InputError
from ngramspec.messages import not_installed


def take_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Make the values in a file the defaults of the command's options.

    Raises:
        click.BadParameter: The file names an option that does not exist, or gives it no value.
        InputError: It is not YAML or TOML, or does not hold a table.
        OSError: It cannot be read.
    """
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **_defaults(ctx, param, read_config(path))}
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Return the table in a file: TOML if its name ends in .toml, otherwise YAML.

    Raises:
        As take_config.
    """
    text = read_utf8(path)
    try:
        read = _read_toml(text) if path.suffix == ".toml" else _read_yaml(text)
    except ImportError as error:
        raise InputError(not_installed(f"{path} needs {error.name}", "server")) from error
    except Exception as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise InputError(f"{path} must hold option names and values")
    return read


def _read_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _read_yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text) or {}


def _defaults(ctx: click.Context, param: click.Parameter, table: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a table by parameter name."""
    options: dict[str, click.Parameter] = {}
    for one in ctx.command.params:
        for flag in (*one.opts, *one.secondary_opts):
            options[_bare(flag)] = one
    defaults = {}
    for name, value in table.items():
        key = _bare(str(name))
        option = options.get(key)
        if option is None or option is param or option.name is None:
            raise click.BadParameter(f"no option {name!r}; {nearest(key, options)}", ctx, param)
        if value is None or (isinstance(value, list) and None in value):
            raise click.BadParameter(f"{name} has no value", ctx, param)
        if key in map(_bare, option.secondary_opts):
            value = not value
        defaults[option.name] = _shaped(value, option)
    return defaults


def _bare(flag: str) -> str:
    """Return an option's name without the hyphens before it."""
    return flag.lstrip("-").replace("_", "-")


def _shaped(value: Any, param: click.Parameter) -> Any:
    """Return a value as the option takes it: a list if repeatable, otherwise joined by commas."""
    if param.multiple:
        return [str(one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool) and not isinstance(param.type, click.types.BoolParamType):
        return "on" if value else "off"  # YAML reads on and off as booleans
    return value
