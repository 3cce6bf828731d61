"""What messages are made of; the documentation is named by addresses: a wheel has no docs/."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator

import click
import pytest

from helpers.paths import ROOT
from ngramspec.cli import main
from ngramspec.errors import ChatError, GrammarError
from ngramspec.messages import DOCS, page_url, size_text

PAGE = re.compile(r"(\S*?)\bdocs/([\w/.-]+\.md)")


def constants() -> Iterator[tuple[str, str]]:
    """Yield the texts in the package's code, docstrings left out, and where they stand."""
    for path in sorted((ROOT / "ngramspec").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in alone:
                yield f"{path.name}:{node.lineno}", text


def helps(command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    """Yield what --help says of a command and of those below it."""
    context = click.Context(command, parent=parent, info_name="x")
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below, context)


def test_the_address_is_the_published_one() -> None:
    assert f'\nDocumentation = "{DOCS}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert page_url("index.md") == f"{DOCS}/index.md"


def test_messages_name_no_file_that_a_wheel_lacks() -> None:
    assert [where for where, text in constants() if PAGE.search(text)] == []


def test_pages_that_messages_name_exist() -> None:
    named = set()
    for path in sorted((ROOT / "ngramspec").rglob("*.py")):
        named |= set(re.findall(r'page_url\("([^"]+)"\)', path.read_text("utf-8")))
    assert len(named) >= 2
    assert [page for page in sorted(named) if not (ROOT / "docs" / page).is_file()] == []


def test_help_names_addresses_of_pages_that_exist() -> None:
    addresses = [one for text in helps(main) for one in PAGE.findall(text)]
    assert addresses
    for before, page in addresses:
        assert f"{before}docs" == DOCS
        assert (ROOT / "docs" / page).is_file(), page


@pytest.mark.parametrize("width", [40, 80])
def test_an_address_in_help_stays_whole(width: int) -> None:
    command = main.commands["serve"]
    context = click.Context(command, info_name="serve", terminal_width=width)
    assert page_url("server/options.md") in command.get_help(context)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((0, "0 B"), (1000, "1000 B"), (1024, "1.0 KiB"), (5_827_584, "5.6 MiB")),
        *((64 << 20, "64.0 MiB"), (131 << 30, "131.0 GiB"), (5 << 50, "5120.0 TiB")),
    ],
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    "error", [ChatError("wrong", "tools[0]", False), GrammarError("wrong", "json_schema")]
)
def test_an_error_comes_out_of_another_process(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
