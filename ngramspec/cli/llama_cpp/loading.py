"""Options that say how a model's file is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.llama_cpp.words import OFF, ON, rows_in
from ngramspec.cli.options import Decorator, option, options
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.llamacpp.loading import Loading, Value

SECTION = "Loading"


def loading_options() -> Decorator:
    """Return the options of loading."""
    return options(
        option(SECTION, "--mmap/--no-mmap", env="MMAP", default=True, help="Memory-map the file."),
        option(SECTION, "--mlock", env="MLOCK", is_flag=True, help="Lock the model in memory."),
        option(SECTION, "-lm", "--load-mode", env="LOAD_MODE", metavar="MODE",
               type=click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]),
               help="Instead of --mmap and --mlock: auto, none, mmap, mlock, mmap+mlock, or dio "
               "(direct I/O)."),
        option(SECTION, "-lzm", "--lazy-mode", env="LAZY_MODE", default="auto", metavar="MODE",
               type=click.Choice(["auto", "on", "off"]),
               help="Read large tables row by row when needed: on, off, or auto (above 4 GiB)."),
        option(SECTION, "--check-tensors", is_flag=True,
               help="Look for invalid values in the weights."),
        option(SECTION, "--override-kv", multiple=True, metavar="KEY=TYPE:VALUE",
               help="Metadata to use instead of the file's; TYPE: int, float, bool, str; "
               "comma-separated (repeatable)."),
        option(SECTION, "--repack/--no-repack", " /-nr", "repack", env="REPACK", default=None,
               help="Repack weights for the CPU.  [default: unless llama.cpp has AMX kernels]"),
        option(SECTION, "--no-host", env="NO_HOST", is_flag=True,
               help="Bypass the host's buffer, so that others can be used."),
    )  # fmt: skip


def loading_of(values: Mapping[str, Any]) -> Loading:
    """Return how the options say to load; those that a command does not have are the default.

    Raises:
        InputError: A value is not understood or out of its bounds.
    """
    from ngramspec.llamacpp.loading import Loading

    mapped, locked = values.get("mmap", True), values.get("mlock", False)
    flags = {(True, True): "mmap+mlock", (False, True): "mlock", (False, False): "none"}
    return Loading(
        mode=values.get("load_mode") or flags.get((bool(mapped), bool(locked)), "auto"),
        lazy=values.get("lazy_mode", "auto"),
        check_tensors=values.get("check_tensors", False),
        repack=values.get("repack"),
        host_buffers=not values.get("no_host"),
        mtp=values.get("mtp", False),
        metadata=metadata_of(values.get("override_kv", ())),
    )


def metadata_of(texts: Iterable[str]) -> dict[str, Value]:
    """Return the metadata of texts such as `key=int:4,other=bool:true`.

    Raises:
        InputError: One has another form, or a value does not fit its type.
    """
    metadata: dict[str, Value] = {}
    for text in rows_in(texts):
        key, mark, typed = text.partition("=")
        kind, colon, value = typed.partition(":")
        if not (key and mark and colon):
            raise InputError(f"--override-kv must be KEY=TYPE:VALUE, got {text!r}")
        metadata[key] = _value(kind, value, text)
    return metadata


def _value(kind: str, value: str, text: str) -> Value:
    try:
        if kind == "bool":
            return {**dict.fromkeys(ON, True), **dict.fromkeys(OFF, False)}[value]
        if kind == "str":
            return value
        return int(value) if kind == "int" else {"float": float}[kind](value)
    except (KeyError, ValueError):
        hint = "int, float, bool or str, and a value of that type"
        raise InputError(f"--override-kv {text}: the type must be {hint}") from None
