"""Help, version, the generated document, and that asking for help loads nothing heavy."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from typing import Any

import pytest

from helpers.paths import ROOT
from ngramspec import DRAFTER_NAMES, __version__
from ngramspec.cli.command import SectionCommand
from ngramspec.drafting.config import option_flag, options_of


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("cli_docs", ROOT / "tools" / "cli_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_document_is_what_help_says() -> None:
    tool = load_tool()
    assert tool.DOCS.read_text("utf-8") == tool.render(), "stale: run python tools/cli_docs.py"


def test_an_example_over_several_lines_keeps_its_backslashes() -> None:
    """Python joins the lines of a docstring after a single one."""
    examples = re.findall(r"^    ngramspec [^#\n]*", load_tool().render(), re.MULTILINE)
    assert [line for line in examples if re.search(r"\S {3,}\S", line)] == []


def test_the_document_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = load_tool().render()
    monkeypatch.setenv("COLUMNS", "40")
    assert load_tool().render() == wide


def test_a_context_without_the_group_has_the_same_help() -> None:
    command = SectionCommand("one", callback=lambda: None)
    command.make_context("one", []).close()
    with command.make_context("one", [], help_option_names=["--help"]) as context:
        assert "-h, --help" in command.get_help(context)


def test_version(invoke: Any) -> None:
    assert invoke("--version").output.split()[-1] == __version__


@pytest.mark.parametrize("command", [(), ("demo",), ("generate",)])
def test_every_help_has_examples_and_fits_80_columns(invoke: Any, command: tuple[str, ...]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    examples = result.output.split("Examples:\n")[1]
    assert "ngramspec demo" in examples or "ngramspec generate" in examples
    options = result.output.split("Examples:")[0]
    assert max(map(len, options.splitlines())) <= 80
    assert "..." not in options.partition("Commands:")[2]  # nothing cut off


def test_every_drafter_parameter_is_an_option(invoke: Any) -> None:
    text = invoke("generate", "--help").output
    for name in DRAFTER_NAMES:
        for field in options_of(name):
            assert option_flag(name, field.name) in text
    for option in ("-lcs, --lookup-cache-static", "-lcd, --lookup-cache-dynamic", "--spec-type"):
        assert option in text


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from ngramspec.cli import main\n"
        "main(['generate', '--help'], standalone_mode=False)\n"
        "heavy = {'rich', 'llama_cpp', 'jinja2', 'ngramspec.hosts', 'ngramspec.engine'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_module_runs_like_the_command(spawn: Any) -> None:
    done = spawn("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ngramspec [OPTIONS] COMMAND")
