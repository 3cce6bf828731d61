"""Write docs/reference/cli.md from the --help of every command.

`python tools/cli_docs.py [--check]`

Options that several commands have stand once: see shared_blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ngramspec.cli import main as cli
from ngramspec.cli.command import SectionCommand, SectionOption

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
WIDTH = 88
COLUMN = 34
LEAST = 2  # options and commands that make a shared block
HEAD = """\
# Command line

`ngramspec`, or `python -m ngramspec`. Made from `--help` by `tools/cli_docs.py`; do not edit.

Text and `--json` go to stdout, progress and figures to stderr.
Exit code 0: done. 1: it failed (a model that cannot be loaded, a prompt longer than the context,
texts that differ, a damaged file). 2: the command line is wrong (unknown drafter, missing file).
130: ended by Ctrl-C.
Errors are one line; `ngramspec --debug COMMAND` shows the traceback.

Every command has `-h` and `--help`; `--help=WORD` shows the options that have WORD in their name
or text. Where a command has many options, `--help` shows the usual ones and `--help-all` all.
Options that several commands have stand [once](#options-of-several-commands).

## Shell completion

Commands, options, files, drafters, cost profiles, cache types and names of Ollama's models:

| shell | add to | line |
|---|---|---|
| bash 4.4 | `~/.bashrc` | `eval "$(_NGRAMSPEC_COMPLETE=bash_source ngramspec)"` |
| zsh | `~/.zshrc`, after `compinit` | `eval "$(_NGRAMSPEC_COMPLETE=zsh_source ngramspec)"` |
| fish | `~/.config/fish/config.fish` | `_NGRAMSPEC_COMPLETE=fish_source ngramspec \\| source` |
"""
Record = tuple[str, str]  # names of an option and its text, as --help shows them
Blocks = dict[str, dict[Record, tuple[str, ...]]]  # options by section, and commands that have them


def contexts(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """Yield a context of a command and of all below it."""
    settings = {**command.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            if child is not None:
                yield from contexts(child, below, context)


def sections(context: click.Context) -> dict[str, list[Record]]:
    """Return the options of a command by section, without those that ask for help."""
    listed: dict[str, list[Record]] = {}
    for param in context.command.params:
        record = param.get_help_record(context)
        if record is not None and isinstance(param, SectionOption):
            listed.setdefault(param.section, []).append(record)
    return listed


def shared_blocks(commands: list[click.Context]) -> Blocks:
    """Return the options that several commands have in the same words.

    Of a section those form a block that the same commands have; one option alone forms none.
    """
    having: dict[str, dict[Record, list[str]]] = {}
    for context in commands:
        for section, records in sections(context).items():
            for record in records:
                having.setdefault(section, {}).setdefault(record, []).append(context.command_path)
    blocks: Blocks = {}
    for section, names in having.items():
        groups = list(map(tuple, names.values()))
        for record, group in names.items():
            if len(group) >= LEAST and groups.count(tuple(group)) >= LEAST:
                blocks.setdefault(section, {})[record] = tuple(group)
    return blocks


def fenced(text: str) -> str:
    """Return a text as a block of the page."""
    return f"\n```text\n{text.strip()}\n```\n"


def section_of(context: click.Context, blocks: Blocks) -> str:
    """Return what the page says of a command."""
    command, path = context.command, context.command_path
    if not isinstance(command, SectionCommand):
        return fenced(command.get_help(context))
    formatter, shared = context.make_formatter(), list[str]()
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    for title, records in sections(context).items():
        block = blocks.get(title, {})
        own = [record for record in records if record not in block]
        if len(own) < len(records):
            shared.append(f"[{title}]({anchor(title)})")
        if own:
            with formatter.section(title):
                formatter.write_dl(own, col_max=COLUMN)
    text = fenced(formatter.getvalue())
    if shared:
        text += f"\nAlso: {', '.join(shared)}.\n"
    end = context.make_formatter()
    command.format_epilog(context, end)
    if not end.getvalue().strip():
        raise ValueError(f"{path} has no examples")
    return text + f"\n```text\n{end.getvalue().strip(chr(10))}\n```\n"


def anchor(title: str) -> str:
    """Return the link to a shared block."""
    return f"#{title.lower().replace(' ', '-')}"


def block_of(title: str, block: dict[Record, tuple[str, ...]], context: click.Context) -> str:
    """Return what the page says of a shared block."""
    commands = dict.fromkeys(name.partition(" ")[2] for group in block.values() for name in group)
    formatter = context.make_formatter()
    formatter.write_dl(list(block), col_max=COLUMN)
    names = ", ".join(f"`{name}`" for name in commands)
    return f"\n### {title}\n\nOf {names}.\n\n```text\n{formatter.getvalue().strip()}\n```\n"


def render() -> str:
    """Return the whole document."""
    commands = list(contexts(cli, "ngramspec"))
    blocks = shared_blocks(commands)
    pages = (f"\n## {one.command_path}\n{section_of(one, blocks)}" for one in commands)
    shared = (block_of(title, block, commands[0]) for title, block in blocks.items())
    return HEAD + "".join(pages) + "\n## Options of several commands\n" + "".join(shared)


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
