"""Write docs/reference/cli.md from the --help of every command.

`python tools/cli_docs.py [--check]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ngramspec.cli import main as cli

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
WIDTH = 88
HEAD = """\
# Command line

`ngramspec`, or `python -m ngramspec`. Made from `--help` by `tools/cli_docs.py`; do not edit.

Text and `--json` go to stdout, progress and figures to stderr.
Exit code 0: done. 1: it failed (a model that cannot be loaded, a prompt longer than the context,
texts that differ, a damaged file). 2: the command line is wrong (unknown drafter, missing file).
130: ended by Ctrl-C.
Errors are one line; `ngramspec --debug COMMAND` shows the traceback.

## Shell completion

Commands, options, files, drafters, cost profiles, cache types and names of Ollama's models:

| shell | add to | line |
|---|---|---|
| bash 4.4 | `~/.bashrc` | `eval "$(_NGRAMSPEC_COMPLETE=bash_source ngramspec)"` |
| zsh | `~/.zshrc`, after `compinit` | `eval "$(_NGRAMSPEC_COMPLETE=zsh_source ngramspec)"` |
| fish | `~/.config/fish/config.fish` | `_NGRAMSPEC_COMPLETE=fish_source ngramspec \\| source` |
"""


def commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the full name and the help of a command and of all below it."""
    settings = {**command.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            if child is not None:
                yield from commands(child, below, context)


def render() -> str:
    """Return the whole document."""
    helps = commands(cli, "ngramspec")
    return HEAD + "".join(f"\n## {name}\n\n```text\n{text}\n```\n" for name, text in helps)


def main() -> int:
    """Write the document, or with --check tell by the exit code whether it is up to date."""
    if "--check" in sys.argv[1:]:
        fresh = DOCS.is_file() and DOCS.read_text("utf-8") == render()
        print(f"{DOCS} is {'up to date' if fresh else 'stale: run tools/cli_docs.py'}")
        return 0 if fresh else 1
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
