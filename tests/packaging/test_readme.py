"""What the README, docs and examples show is true: programs run, commands and links exist."""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
import yaml

import ngramspec
from helpers.forked import Forked
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
EXAMPLES = {
    "any_model": ("transformers", "equal to those without drafts"),
    "generate": ("llama_cpp", "equal: True"),
}
OPTIONAL = ("langchain_community", "langchain_openai", "torch", "transformers")  # no extra has them
LARGE = re.compile("^(?:from|import) (?:torch|openai|anthropic) ?", re.M)  # takes seconds to import
SERVER = re.compile(r"http://127\.0\.0\.1:(?:8080|11434)")  # where examples look for one
FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.M)
INLINE = re.compile(r"`((?:ngramspec|python3?|pytest|make) [^`]+)`")
SCRIPTS = ("benchmarks", "examples", "tests", "tools")  # folders whose programs pages name
SETS = re.compile(r"^[A-Z_]+=")
CHECKED = {"python", "console", "json", "toml", "yaml"}
NOT_RUN = {
    "text": "what programs print, forms of files, drawings",
    "py": "needs an engine that needs a GPU; it is compiled",
    "ini": "a unit of systemd; its command is checked",
    "js": "a program for node, which no test installs",
    "vim": "a setting of llama.vim",
    "sh": "fetches gigabytes of compilers",
}
OTHER_PROGRAMS = {
    "git": "fetches what this is",
    "pip": "installs",
    "hf": "fetches a model",
    "unzip": "opens what pip has fetched",
    "docker": "needs a daemon",
    "export": "sets what a client reads",
    ".": "activates what the command before it has made",
    **dict.fromkeys(("aider", "claude", "lm_eval", "ollama", "ray", "vllm"), "is not installed"),
}


def blocks(language: str) -> dict[str, str]:
    """Return the blocks of a language by page and number, without what indents them."""
    return {
        f"{name}-{number}": re.sub(rf"^{indent}", "", block, flags=re.M)
        for name, page in PAGES.items()
        for number, (indent, block) in enumerate(
            (indent, block) for indent, kind, block in FENCE.findall(page) if kind == language
        )
    }


def lines_of(block: str) -> list[str]:
    """Return the commands of a console block, continued lines joined."""
    return [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def shell_lines() -> Iterator[tuple[str, str]]:
    """Yield the lines that pages show for a shell, each with the folder that it runs in."""
    for commands in CONSOLE.values():
        folder = "."
        for line in commands:
            if line.startswith("cd "):
                folder = os.path.normpath(os.path.join(folder, line[3:]))
                assert (ROOT / folder).is_dir(), line
            else:
                yield folder, line
    for unit in blocks("ini").values():
        for line in re.findall(r"^ExecStart=\S*/(ngramspec .+)", unit, re.M):
            yield ".", line
    for page in PAGES.values():
        for line in INLINE.findall(FENCE.sub("", page)):
            yield ".", " ".join(line.split())


PYTHON = blocks("python")
CONSOLE = {name: lines_of(block) for name, block in blocks("console").items()}
SHELL = sorted(set(shell_lines()))
CURL = [line for _, line in SHELL if line.startswith("curl")]


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_checked_or_it_is_known_why_not(name: str) -> None:
    kinds = {kind for _, kind, _ in FENCE.findall(PAGES[name])}
    assert kinds <= CHECKED | NOT_RUN.keys()
    assert PAGES[name].count("```") % 2 == 0
    assert "```" not in FENCE.sub("", PAGES[name])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(embedded_model(), served={"aliases": ("llama3:8b",)}) as served:
        yield served.url


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that runs a program in an empty folder and returns what it prints."""

    def run(path: Path, *arguments: str) -> str:
        code = path.read_text("utf-8")
        monkeypatch.chdir(tmp_path)
        if LARGE.search(code):  # others' tests have it imported here
            monkeypatch.setattr(sys, "argv", [str(path), *arguments])
            runpy.run_path(str(path), run_name="__main__")
            return capsys.readouterr().out
        # What can be reached by the package's name depends on what has been imported.
        loaded = not re.search("^import ngramspec$", code, re.M)
        pipe = subprocess.PIPE
        with Forked([str(path), *arguments], loaded=loaded, stdout=pipe, stderr=pipe) as process:
            output, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        return str(output.decode())

    return run


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_block_runs(
    name: str, tmp_path: Path, run: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    code = PYTHON[name]
    for module in re.findall(r"^(?:from|import) (\w+)", code, re.M):
        if module in OPTIONAL and importlib.util.find_spec(module) is None:
            pytest.skip(f"the block shows ngramspec with {module}, which is not installed")
    if SERVER.search(code):
        code = SERVER.sub(request.getfixturevalue("server"), code)
    (path := tmp_path / "block.py").write_text(code)
    assert run(path).strip() or "print(" not in code


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, run: Callable[..., str]) -> None:
    module, says = EXAMPLES[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the example shows ngramspec with {module}, which is not installed")
    assert says in run(ROOT / "examples" / f"{name}.py")


@pytest.mark.parametrize("line", CURL)
def test_a_request_is_answered(line: str, server: str) -> None:
    command = shlex.split(SERVER.sub(server, line))
    done = subprocess.run([*command, "--show-error"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" not in json.loads(done.stdout) or json.loads(done.stdout)["error"] is None


@pytest.mark.parametrize(("folder", "line"), SHELL, ids=lambda value: value[:60])
def test_a_command_exists_with_the_options_that_it_is_shown_with(folder: str, line: str) -> None:
    for part in re.split(r" && | \| ", re.split(r"\s#| > ", line)[0]):
        words = shlex.split(part)
        while words and SETS.match(words[0]):
            words = words[1:]
        program = Path(words[0]).name if words else ""
        if program == "ngramspec":
            check_options(words[1:])
        elif program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
            assert set(words[1:2]) <= set(targets)
        elif program == "pytest" or words[1:3] == ["-m", "pytest"]:
            paths = [word for word in words[1:] if "/" in word]
            assert all((ROOT / path).exists() for path in paths)
        elif program in ("python", "python3"):
            check_program(folder, words[1:])
        elif program not in ("curl", "cd"):
            assert program in OTHER_PROGRAMS or (ROOT / folder / program).exists()


def check_options(args: list[str]) -> None:
    """Parse a command line of ngramspec, without running it."""
    command: click.Command = cli
    # Its settings, too: click keeps the option --help as the first context of a command has it.
    context = click.Context(cli, info_name="ngramspec", **cli.context_settings)
    while isinstance(command, click.Group) and args and not args[0].startswith("-"):
        inner = command.get_command(context, args[0])
        assert inner is not None, f"no command {args[0]}"
        command, args = inner, args[1:]
        settings = command.context_settings
        context = click.Context(command, parent=context, info_name=command.name, **settings)
    command.make_parser(context).parse_args(args)


def check_program(folder: str, args: list[str]) -> None:
    """Look whether a program of this checkout, or a module, is there and knows its options."""
    if args[0] == "-m":
        assert importlib.util.find_spec(args[1].split(".")[0]) or args[1].startswith("sglang.")
    elif args[0] == "-c":
        compile(args[1], "-c", "exec")
    else:
        path = (ROOT / folder / args[0]).resolve()
        assert path.relative_to(ROOT).parts[0] in SCRIPTS
        source = "".join(one.read_text("utf-8") for one in path.parent.rglob("*.py"))
        for option in args[1:]:
            assert not re.match(r"--[a-z]", option) or f'"{option.split("=")[0]}"' in source, option


def test_python_for_other_engines_is_well_formed() -> None:
    for name, block in blocks("py").items():
        compile(block, name, "exec")


def test_settings_of_other_programs_are_well_formed() -> None:
    for read, language in (
        (json.loads, "json"),
        (tomllib.loads, "toml"),
        (yaml.safe_load, "yaml"),
    ):
        of_language = blocks(language)
        assert of_language, language
        for block in of_language.values():
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


@pytest.mark.parametrize("page", ["docs/reference/python.md", "CHANGELOG.md"])
def test_modules_are_called_by_their_names(page: str) -> None:
    for name in re.findall(r"`(ngramspec\.[\w.]+)`", (ROOT / page).read_text("utf-8")):
        pkgutil.resolve_name(name)


def test_every_public_name_is_in_the_python_reference() -> None:
    page = PAGES["docs/reference/python.md"]
    shown = {name: pkgutil.resolve_name(name) for name in re.findall(r"^::: (\S+)$", page, re.M)}
    for name in ngramspec.__all__:
        assert name == "__version__" or any(
            one is getattr(ngramspec, name) for one in shown.values()
        ), name


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_is_well_formed_and_follows_the_colour_scheme(path: Path) -> None:
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "prefers-color-scheme: dark" in path.read_text("utf-8")


def test_the_picture_is_drawn_from_a_run(tmp_path: Path, run: Callable[..., str]) -> None:
    cells, picture, program = (tmp_path / name for name in ("cells.json", "demo.svg", "quiet.py"))
    # However busy the machine is, nothing is measured once more.
    program.write_text(
        f"import sys; sys.path.append({str(ROOT / 'benchmarks')!r})\n"
        "import real_models; real_models.QUIET = 99; real_models.main()"
    )
    options = ["--only", "none,suffix", "--kinds", "edit,sql", "--prompts", "1", "--rounds", "1"]
    run(program, str(embedded_model()), *options, "--n-predict", "32", "--json", str(cells))
    run(ROOT / "tools" / "readme_picture.py", str(cells), "--output", str(picture))
    drawn = ElementTree.parse(picture).getroot()
    assert drawn.findall(".//*[@class='mark']")
    assert len(drawn.findall(".//*[@class='bar']")) == 2
