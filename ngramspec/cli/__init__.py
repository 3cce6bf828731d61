"""The ngramspec command: a file per command; heavy imports happen when a command runs."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator, Mapping

import click

from ngramspec._version import __version__
from ngramspec.cli.command import HELP_NAMES, CommandGroup

__all__ = ["main"]

_ERRORS = ("strict", "surrogateescape")  # what fails where a character cannot be written
EPILOG = """\b
Examples:
  ngramspec demo
  ngramspec check --model model.gguf
  ngramspec generate -p $'Repeat this text:\\n\\n'"$(seq -s ' ' 60)"
  ngramspec serve model.gguf
  ngramspec build-cache docs -o docs.ngx --kind suffix --held-out 10%
  ngramspec cache inspect docs.ngx
  ngramspec bench replay requests.jsonl --model model.gguf
"""


class _Commands(Mapping[str, click.Command]):
    """The commands by name; the module of one is loaded when it is asked for."""

    _names = ("bench", "build-cache", "cache", "check", "demo", "generate", "serve")

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._names:
            raise KeyError(name)
        own = name.replace("-", "_")
        command = getattr(importlib.import_module(f"ngramspec.cli.{own}"), own)
        assert isinstance(command, click.Command)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@click.group(
    cls=CommandGroup,
    commands=_Commands(),
    epilog=EPILOG,
    context_settings={"help_option_names": HELP_NAMES, "max_content_width": 88},
)
@click.version_option(__version__, "--version", prog_name="ngramspec")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Draftless speculative decoding: n-gram drafters guess, the model verifies.

    Every token stays the model's own choice: drafts change only the speed.
    """
    if sys.stdin is None:  # closed, as by `<&-`
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, for the process
    for stream in (sys.stdout, sys.stderr):  # a terminal may have fewer characters than a text
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _ERRORS:
            stream.reconfigure(errors="replace")
