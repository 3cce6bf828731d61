"""The ngramspec command: a file per command; heavy imports happen when a command runs."""

from __future__ import annotations

import io
import os
import sys

import click

from ngramspec._version import __version__
from ngramspec.cli.bench import bench
from ngramspec.cli.build_cache import build_cache
from ngramspec.cli.cache import cache
from ngramspec.cli.check import check
from ngramspec.cli.command import HELP_NAMES, CommandGroup
from ngramspec.cli.demo import demo
from ngramspec.cli.generate import generate
from ngramspec.cli.serve import serve

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


@click.group(
    cls=CommandGroup,
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


for one in (demo, generate, build_cache, cache, serve, bench, check):
    main.add_command(one)
