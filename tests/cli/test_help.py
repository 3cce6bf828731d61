"""Help, version, the generated document, and that asking for help loads nothing heavy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from helpers import forked
from helpers.cli import succeed
from helpers.paths import ROOT
from helpers.programs import load_program
from ngramspec import DRAFTER_NAMES, __version__
from ngramspec.cli import main
from ngramspec.cli.command import SectionCommand
from ngramspec.drafting.config import option_flag, options_of


@pytest.fixture(scope="module")
def tool() -> Any:
    return load_program(ROOT / "tools" / "cli_docs.py")


@pytest.fixture(scope="module")
def page(tool: Any) -> str:
    return str(tool.render())


def test_the_document_is_what_help_says(tool: Any, page: str) -> None:
    assert tool.DOCS.read_text("utf-8") == page, "stale: run python tools/cli_docs.py"


def test_an_example_over_several_lines_keeps_its_backslashes(page: str) -> None:
    """Python joins the lines of a docstring after a single one."""
    examples = re.findall(r"^    ngramspec [^#\n]*", page, re.MULTILINE)
    assert [line for line in examples if re.search(r"\S {3,}\S", line)] == []


def first_examples(command: click.Command, path: str = "ngramspec") -> Iterator[tuple[str, str]]:
    """Yield the commands below one and the first example of each."""
    for name, below in getattr(command, "commands", {}).items():
        lines = [line.strip() for line in (below.epilog or "").splitlines()]
        examples = [line for line in lines if line.startswith(f"{path} {name}")]
        if examples:
            yield f"{path} {name}", examples[0]
        yield from first_examples(below, f"{path} {name}")


FIRST = dict(first_examples(main))


def test_first_examples_need_no_model_but_the_embedded_one() -> None:
    assert len(FIRST) >= 14
    assert [line for line in FIRST.values() if "model.gguf" in line] == []


def test_first_examples_show_something(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that take seconds, in the order in which one makes what the next one reads."""
    shutil.copytree(ROOT / "docs", "docs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_folder))
    shown = {
        "ngramspec generate": r"suffix: 1\d\d of 1\d\d drafted tokens accepted",
        "ngramspec build-cache": r"more are drafted right with the file",
        "ngramspec cache inspect": r"tokens +[\d,]+ in \d+ texts",
        "ngramspec cache verify": r"docs.ngx: suffix, .*: good",
    }
    for name, seen in shown.items():
        line = FIRST[name].replace("ngramspec", r"printf '%s\0'", 1)  # the words that it gets
        words = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        done = forked.run(["-m", "ngramspec", *words.stdout.split("\0")[:-1]])
        assert done.returncode == 0, done.stderr
        assert re.search(seen, done.stdout + done.stderr), done.stdout + done.stderr


def test_options_that_several_commands_have_stand_once(page: str) -> None:
    for option in ("--tensor-split", "--cpu-mask", "--suffix-index", "--lora-scaled", "--mlock"):
        assert len(re.findall(rf"^ *(?:-\w+, )?{option} ", page, re.MULTILINE)) == 1
    for command in ("bench e2e", "check", "generate", "serve"):
        section = page.split(f"## ngramspec {command}\n")[1].split("\n## ")[0]
        assert "[Devices](#devices)" in section


def test_the_document_does_not_depend_on_the_terminal(
    tool: Any, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert tool.render() == page


def test_a_context_without_the_group_has_the_same_help() -> None:
    command = SectionCommand("one", callback=lambda: None)
    command.make_context("one", []).close()
    with command.make_context("one", [], help_option_names=["--help"]) as context:
        assert {"-h", "--help"} <= set(command.get_help(context).split())


def test_version(invoke: Any) -> None:
    assert invoke("--version").output.split()[-1] == __version__


@pytest.mark.parametrize("command", [(), ("demo",), ("generate",)])
def test_every_help_has_examples_and_fits_80_columns(command: tuple[str, ...]) -> None:
    result = succeed(*command, "--help")
    examples = result.output.split("Examples:\n")[1]
    assert "ngramspec demo" in examples or "ngramspec generate" in examples
    options = result.output.split("Examples:")[0]
    assert max(map(len, options.splitlines())) <= 80
    assert "..." not in options.partition("Commands:")[2]  # nothing cut off


def test_every_drafter_parameter_is_an_option(invoke: Any) -> None:
    text = invoke("generate", "--help-all").output
    for name in DRAFTER_NAMES:
        for field in options_of(name):
            assert option_flag(name, field.name) in text
    for option in ("-lcs, --lookup-cache-static", "-lcd, --lookup-cache-dynamic", "--spec-type"):
        assert option in text


LONG = (("serve",), ("generate",), ("check",), ("bench", "e2e"), ("bench", "calibrate"))


@pytest.mark.parametrize("command", LONG, ids=" ".join)
def test_help_shows_what_people_need_and_where_the_rest_is(
    invoke: Any, command: tuple[str, ...]
) -> None:
    short, whole = (invoke(*command, flag).output for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 100  # two screens
    shown, every = (set(re.findall(r"^  (-[-\w]+)", text, re.M)) for text in (short, whole))
    assert shown < every
    assert f"{len(every) - len(shown)} more options: --help-all" in short
    assert "more options" not in whole
    assert invoke(*command, "-h").output == short


@pytest.mark.parametrize("words", [["--help=cache-type"], ["--help", "CACHE-type"]])
def test_help_finds_options_by_a_word(invoke: Any, words: list[str]) -> None:
    text = invoke("serve", *words).output
    assert "--cache-type-k" in text
    assert "--cache-type-v-draft" in text
    assert "--port" not in text
    assert "Examples" not in text
    assert "--cache-type-k" in invoke("serve", "--help=cached keys").output


def test_help_says_that_no_option_has_a_word(invoke: Any) -> None:
    result = invoke("check", "--help=nothing-like-it")
    assert result.exit_code == 2
    assert "no option has 'nothing-like-it' in its name or help" in result.stderr


@pytest.mark.parametrize("command", LONG, ids=" ".join)
def test_everyday_options_exist(command: tuple[str, ...]) -> None:
    one: click.Command = main
    for name in command:
        assert isinstance(one, click.Group)
        one = one.commands[name]
    assert isinstance(one, SectionCommand)
    names = {param.name for param in one.params}
    assert set(one.everyday) <= names
    assert len(set(one.everyday)) == len(one.everyday)


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
