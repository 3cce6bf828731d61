"""What the README and the pages of docs show is true: programs run, commands and links exist."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import yaml

import ngramspec
from helpers.paths import ROOT
from helpers.serving import serving
from ngramspec import embedded_model
from ngramspec.cli import main as cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ext/README.md")),
        *sorted((ROOT / "benchmarks").rglob("*.md")),
        *sorted(DOCS.rglob("*.md")),
    )
}
OPTIONAL = ("langchain_community", "langchain_openai", "torch", "transformers")  # no extra has them
SERVER = re.compile(r"http://127\.0\.0\.1:(?:8080|11434)")  # where examples look for one
SHELL = re.compile(r"^([A-Z_]+=\S+ )*ngramspec ")


def blocks(language: str) -> dict[str, str]:
    """Return the blocks of a language by page and number, without what indents them."""
    fence = re.compile(rf"^( *)```{language}\n(.*?)^\1```$", re.S | re.M)
    return {
        f"{name}-{number}": re.sub(rf"^{indent}", "", block, flags=re.M)
        for name, page in PAGES.items()
        for number, (indent, block) in enumerate(fence.findall(page))
    }


def lines_of(block: str) -> list[str]:
    """Return the commands of a console block, continued lines joined."""
    return [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]


PYTHON = blocks("python")
CONSOLE = {name: lines_of(block) for name, block in blocks("console").items()}
CURL = [line for lines in CONSOLE.values() for line in lines if line.startswith("curl")]
COMMANDS = sorted({line for lines in CONSOLE.values() for line in lines if SHELL.match(line)})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(embedded_model(), served={"aliases": ("llama3:8b",)}) as made:
        yield made.url


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_block_runs(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    code = PYTHON[name]
    for module in re.findall(r"^(?:from|import) (\w+)", code, re.M):
        if module in OPTIONAL and importlib.util.find_spec(module) is None:
            pytest.skip(f"the block shows ngramspec with {module}, which is not installed")
    if SERVER.search(code):
        code = SERVER.sub(request.getfixturevalue("server"), code)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or "print(" not in code


@pytest.mark.parametrize("line", CURL)
def test_a_request_is_answered(line: str, server: str) -> None:
    command = shlex.split(SERVER.sub(server, line))
    done = subprocess.run([*command, "--show-error"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" not in json.loads(done.stdout) or json.loads(done.stdout)["error"] is None


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_the_options_that_it_is_shown_with(line: str) -> None:
    words = shlex.split(re.split(r"&&|\||>", line.split(" #")[0])[0])
    args = words[words.index("ngramspec") + 1 :]
    command: click.Command = cli
    context = click.Context(cli, info_name="ngramspec")
    while isinstance(command, click.Group) and args and not args[0].startswith("-"):
        found = command.get_command(context, args[0])
        assert found is not None, f"no command {args[0]}"
        command, args = found, args[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    command.make_parser(context).parse_args(args)


def test_settings_of_other_programs_are_well_formed() -> None:
    for read, language in (
        (json.loads, "json"),
        (tomllib.loads, "toml"),
        (yaml.safe_load, "yaml"),
    ):
        found = blocks(language)
        assert found, language
        for block in found.values():
            read(block)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    page = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.S | re.M)
    heads = re.findall(r"^#+ (.+)$", page, re.M)
    return {re.sub(r"[^\w\s-]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = re.sub(r"^ *```.*?^ *```$", "", PAGES[name], flags=re.S | re.M)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page):
        if "://" in target:
            continue
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text("utf-8")), f"{target}#{anchor}"


def test_the_readme_is_short_and_names_both_commands() -> None:
    assert {"README.md-0", "docs/engines/own-engine.md-0"} <= set(PYTHON)
    assert len(README.splitlines()) <= 120
    assert README.index("make demo ") < README.index("make test ")


def test_every_page_is_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.M)
    assert sorted(listed) == sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")
    )


def test_every_public_name_is_in_the_python_reference() -> None:
    page = PAGES["docs/reference/python.md"]
    shown = {name: pkgutil.resolve_name(name) for name in re.findall(r"^::: (\S+)$", page, re.M)}
    for name in ngramspec.__all__:
        assert name == "__version__" or any(
            found is getattr(ngramspec, name) for found in shown.values()
        ), name


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_is_well_formed_and_follows_the_colour_scheme(path: Path) -> None:
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "prefers-color-scheme: dark" in path.read_text("utf-8")


def test_the_picture_is_drawn_from_a_run(tmp_path: Path) -> None:
    cells, picture = tmp_path / "cells.json", tmp_path / "demo.svg"
    measure = [sys.executable, str(ROOT / "benchmarks" / "real_models.py"), str(embedded_model())]
    measure += ["--only", "none,suffix", "--kinds", "edit,sql", "--prompts", "1", "--rounds", "1"]
    subprocess.run([*measure, "--n-predict", "32", "--json", str(cells)], check=True, cwd=tmp_path)
    draw = [sys.executable, str(ROOT / "tools" / "readme_picture.py"), str(cells)]
    subprocess.run([*draw, "--output", str(picture)], check=True, cwd=tmp_path)
    drawn = ElementTree.parse(picture).getroot()
    assert drawn.findall(".//*[@class='mark']")
    assert len(drawn.findall(".//*[@class='bar']")) == 2
