"""Imports point one way, between the rooms of the package and inside them."""

from __future__ import annotations

import ast
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from helpers.paths import ROOT

PACKAGE = ROOT / "ngramspec"
# Folder or module -> level. A module may import from lower levels and from its own folder.
LEVELS = {
    "arrays": 0,
    "errors": 0,
    "messages": 0,
    "stats": 0,
    "_version": 0,
    "native": 1,
    "files": 2,
    "text": 3,
    "costs": 3,
    "verify": 3,
    "models": 4,
    "drafting": 5,
    "engine": 6,
    "llamacpp": 7,
    "hosts": 8,
    "runtime": 8,
    "llm": 9,
    "lab": 9,
    "server": 10,
    "cli": 11,
}
ROOMS = {
    *("files", "text", "models", "drafting", "verify", "engine", "llamacpp", "hosts"),
    *("lab", "server", "cli"),
}
# Folder of native modules -> level, the same way.
NATIVE_LEVELS = {
    "core": 0,
    "grammar": 1,
    "policy": 1,
    "drafter": 2,
    "map": 3,
    "mod": 3,
    "cache": 3,
    "recycle": 3,
    "suffix": 3,
    "files": 4,
    "engine": 4,
    "hosts": 5,
}
NATIVE = ROOT / "ext" / "ngramspec" / "_native"


# Folders of tests/ that are a kind of test, and not the tests of one folder of the package.
KINDS = {"golden", "replay", "threads", "faults", "fuzz", "soak", "browser", "packaging", "peer"}
FOR_TESTS = {"helpers", "reference"}


def part_of(name: str) -> str:
    """Return the part of the package that a dotted module name belongs to."""
    first = name.split(".")[1] if "." in name else ""
    return "native" if first == "_native" else first


# Name of the package's own -> the module that it comes from.
HOMES = {
    alias.name: node.module
    for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}


@functools.cache
def statements_of(path: Path) -> list[ast.AST]:
    """Return the statements of a file; imports, functions and fields are among them."""
    statements: list[ast.AST] = [ast.parse(path.read_text())]
    for node in statements:  # which grows meanwhile
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, part, ())
            statements += inner if isinstance(inner, list) else ()
    return statements


@functools.cache
def imports(path: Path) -> list[str]:
    """Return the ngramspec modules that a Python file imports anywhere."""
    modules = []
    for node in statements_of(path):
        if isinstance(node, ast.ImportFrom) and node.module == "ngramspec":
            modules += [HOMES.get(alias.name, f"ngramspec.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules.append(node.module)
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    return [name for name in modules if name.startswith("ngramspec.")]


FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.stem in LEVELS or path.relative_to(PACKAGE).parts[0] in LEVELS
)


def test_python_modules_import_downwards_only() -> None:
    for path in FILES:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in imports(path):
            part = part_of(name)
            assert part == own or LEVELS[part] < LEVELS[own], f"{path} imports {name}"


def test_python_modules_import_one_another_without_a_circle() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): set(imports(path)) for path in FILES
    }
    needs = {name: others & modules.keys() - {name} for name, others in modules.items()}
    list(TopologicalSorter(needs).static_order())  # raises CycleError


def test_only_what_serves_a_host_knows_its_native_modules() -> None:
    hosts = "ngramspec._native.hosts"
    knowing = {path for path in FILES if any(name.startswith(hosts) for name in imports(path))}
    folders = {path.relative_to(PACKAGE).parts[0] for path in knowing}
    assert folders == {"hosts", "llamacpp", "text"}


# Room -> its folders and modules -> level, the same way.
INSIDE = {
    "text": {
        "limits": 0,
        "structured": 0,
        "tokenizers": 0,
        "gotemplate": 1,
        "grammar": 1,
        "templates": 1,
        "chat": 1,
    },
    "lab": {
        "corpus": 0,
        "costs": 0,
        "recordings": 1,
        "builder": 2,
        "replay": 2,
        "e2e": 3,
    },
}


@pytest.mark.parametrize("room", INSIDE)
def test_folders_of_a_room_import_downwards_only(room: str) -> None:
    levels = INSIDE[room]
    for path in (PACKAGE / room).rglob("*.py"):
        own = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        for name in imports(path):
            if name.startswith(f"ngramspec.{room}."):
                part = name.split(".")[2]
                assert part == own or levels[part] < levels[own], f"{path} imports {name}"


def test_what_drafts_knows_of_the_engine_only_what_it_drafts_for() -> None:
    modules = {
        name
        for path in FILES
        if path.parent == PACKAGE / "engine" / "sources"
        for name in imports(path)
        if name.startswith("ngramspec.engine.") and ".sources." not in name
    }
    assert {name.split(".")[2] for name in modules} == {"info", "request", "target"}


PROTOCOLS = {"openai", "responses", "anthropic", "llama_server", "ollama"}
SHARED = {"bridge", "chat", "embeddings", "http", "reply", "request"}
# What protocols share, from the bottom up.
SHARED_LEVELS = {"bridge": 0, "request": 1, "reply": 1, "chat": 2}
SERVER = sorted((PACKAGE / "server").rglob("*.py"))


def test_protocols_know_nothing_of_one_another() -> None:
    for path in SERVER:
        own = path.relative_to(PACKAGE / "server").parts[0]
        names = (name.split(".") for name in imports(path))
        others = {name[2] for name in names if name[1] == "server" and len(name) > 2}
        if own in PROTOCOLS:
            assert not others & (PROTOCOLS - {own}), path
        elif own in SHARED:
            assert not others & (PROTOCOLS | {"metrics", "page", "app"}), path
        if own in SHARED_LEVELS:
            shared = others & set(SHARED_LEVELS) - {own}
            assert all(SHARED_LEVELS[other] < SHARED_LEVELS[own] for other in shared), path


def test_the_server_knows_models_by_their_protocols_only() -> None:
    allowed = {"server", "engine", "drafting", "models", "text", "lab", "errors", "stats", "arrays"}
    for path in SERVER:
        assert {part_of(name) for name in imports(path)} <= {*allowed, "_version"}, path


def test_native_modules_cimport_downwards_only() -> None:
    sources = sorted(NATIVE.rglob("*.p*"))
    assert {path.parent.name for path in sources} == set(NATIVE_LEVELS)
    for path in sources:
        own = path.parent.name
        for name in re.findall(
            r"^from ngramspec\._native\.(\w+)\.\w+ cimport", path.read_text(), re.M
        ):
            assert name == own or NATIVE_LEVELS[name] < NATIVE_LEVELS[own], (
                f"{path} cimports {name}"
            )


def test_native_modules_cimport_one_another_without_a_circle() -> None:
    needs: dict[str, set[str]] = {}
    for path in sorted(NATIVE.rglob("*.p*")):
        cimports = re.findall(r"^from ngramspec\._native\.(\S+) cimport", path.read_text(), re.M)
        own = f"{path.parent.name}.{path.stem}"
        needs[own] = needs.get(own, set()) | set(cimports) - {own}
    list(TopologicalSorter(needs).static_order())  # raises CycleError


def test_every_native_folder_is_a_package_that_holds_stubs_only() -> None:
    for folder in sorted(path.parent for path in (PACKAGE / "_native").rglob("__init__.py")):
        assert [path.name for path in folder.glob("*.py")] == ["__init__.py"]
        assert folder.name in {"_native", *NATIVE_LEVELS}
    stubs = {path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("_native/*/*.pyi")}
    native = {path.relative_to(NATIVE.parent).with_suffix("") for path in NATIVE.rglob("*.pyx")}
    assert stubs == native


def test_native_modules_import_only_errors_stats_and_costs_from_python() -> None:
    for path in sorted(NATIVE.rglob("*.pyx")):
        imported = re.findall(
            r"^\s*(?:from|import) ngramspec\.(?!_native\b)(\w+)", path.read_text(), re.M
        )
        assert set(imported) <= {"errors", "stats", "costs"}, path


def test_llama_cpp_is_imported_inside_functions_only() -> None:
    subclass = PACKAGE / "hosts" / "llama_cpp" / "llama.py"  # needs its base; loaded late
    for path in set(PACKAGE.rglob("*.py")) - {subclass}:
        module = statements_of(path)[0]
        assert isinstance(module, ast.Module)
        for node in module.body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "llama_cpp" for name in names), path


def test_tests_lie_where_the_code_lies() -> None:
    def folders(where: Path) -> set[str]:
        return {path.parent.name for path in where.glob("*/*.py")}

    tests = ROOT / "tests"
    of_the_package = {"native" if name == "_native" else name for name in folders(PACKAGE)}
    assert folders(tests) - KINDS - FOR_TESTS <= of_the_package | {"native"}
    assert folders(tests) >= KINDS | FOR_TESTS
    for room in ("hosts", "text"):
        assert folders(tests / room) <= folders(PACKAGE / room)
    assert folders(tests / "native") == set(NATIVE_LEVELS) - {"core"}  # which the others drive


# Call -> modules that may hold it. A draft model has a target of its own, and looking for an exact
# setting tries several.
ASSEMBLY = {
    "Engine": {"runtime.py"},
    "LlamaTarget": {
        "runtime.py",
        "llamacpp/draft_model.py",
        "llamacpp/exact.py",
    },
}


@pytest.mark.parametrize("name", ASSEMBLY)
def test_targets_and_engines_are_put_together_in_one_place(name: str) -> None:
    places = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if f"{name}(" in path.read_text()
        for node in ast.walk(statements_of(path)[0])
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name
    }
    assert places == ASSEMBLY[name]


def test_the_package_has_these_rooms_and_no_other() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == ROOMS | {"_native"}


def test_every_folder_of_the_package_has_a_level() -> None:
    parts = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}
    assert {part.removesuffix(".py") for part in parts} - {"__init__", "__main__", "_native"} == (
        LEVELS.keys() - {"native"}
    )


# What is set in several places has its default in one, under a name.
SET_IN_MANY = {"drafter", "max_draft", "order", "policy", "spec", "tree"}


def defaults(path: Path) -> list[tuple[str, Any]]:
    """Return the names of arguments and fields that have a value as their default."""
    pairs: list[tuple[str, ast.expr | None]] = []
    for node in statements_of(path):
        if isinstance(node, ast.FunctionDef):
            by_place = node.args.posonlyargs + node.args.args
            last = by_place[len(by_place) - len(node.args.defaults) :]
            pairs += [(arg.arg, value) for arg, value in zip(last, node.args.defaults, strict=True)]
            rest = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            pairs += [(arg.arg, value) for arg, value in rest]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs.append((node.target.id, node.value))
    return [
        (name, value.value)
        for name, value in pairs
        if isinstance(value, ast.Constant) and value.value is not None
    ]


def test_a_default_of_many_places_has_a_name() -> None:
    literals = [(path, *pair) for path in FILES for pair in defaults(path)]
    assert [literal for literal in literals if literal[1] in SET_IN_MANY] == []
