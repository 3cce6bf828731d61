"""Extras mean what is said of them, and what is missing is named with the line that installs it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.paths import ROOT
from ngramspec.messages import not_installed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
GUIDE = (ROOT / "docs" / "start" / "install.md").read_text()
# Imported names that are not those of the package that brings them.
BROUGHT_BY = {
    "llama_cpp": "llama-cpp-python",
    "markupsafe": "jinja2",
    "prometheus_client": "prometheus-client",
    "pydantic_core": "pydantic",
    "typing_extensions": "pydantic",
    "yaml": "pyyaml",
}
HOSTS = {"arctic_inference", "sglang"}  # which load ngramspec, and not the other way round


def packages(extra: str) -> set[str]:
    """Return the packages that an extra names, those of the extras in it included."""
    names = set()
    for line in EXTRAS[extra]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            names |= {name for inner in requirement.extras for name in packages(inner)}
        else:
            names.add(canonicalize_name(requirement.name))
    return names


def calls(name: str) -> list[tuple[str, str]]:
    """Return what is said to need which extra, for every call of a function in the package."""
    needs = []
    for path in sorted((ROOT / "ngramspec").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                need, extra = node.args
                assert isinstance(extra, ast.Constant)
                needs.append((ast.unparse(need), extra.value))
    return needs


def imported() -> dict[str, Path]:
    """Return the other projects' modules that the package imports, and a file that does."""
    modules = {}
    for path in sorted((ROOT / "ngramspec").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            modules |= {name.split(".")[0]: path for name in names}
    return {name: path for name, path in modules.items() if name not in sys.stdlib_module_names}


def test_everything_imported_is_a_dependency_or_in_an_extra() -> None:
    names = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    names |= {name for extra in set(EXTRAS) - {"dev", "docs"} for name in packages(extra)}
    for name, path in imported().items():
        if name not in {"ngramspec", *HOSTS}:
            assert canonicalize_name(BROUGHT_BY.get(name, name)) in names, f"{path} imports {name}"


def test_every_message_names_an_extra_that_brings_the_package() -> None:
    needs = calls("not_installed")
    assert {extra for _, extra in needs} >= {"llama", "server", "corpus", "ray"}
    for need, extra in needs:
        package = need.strip("'").rsplit(" ", 1)[-1]
        assert package in packages(extra) or "{error.name}" in package, need


def test_all_is_everything_but_torch_and_what_developers_need() -> None:
    rest = {"all", "dev", "docs", "transformers", "vllm"}
    together = {name for extra in set(EXTRAS) - rest for name in packages(extra)}
    assert packages("all") == together
    assert not together & {"torch", "vllm", "transformers"}


def test_the_server_brings_what_runs_the_model() -> None:
    assert packages("llama") < packages("server")


def test_the_guide_has_a_line_for_every_extra_and_for_no_other() -> None:
    rows = re.findall(r"^\| `\[(\w+)\]` \|", GUIDE, re.M)
    assert sorted(rows) == sorted(EXTRAS)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.stem
)
def test_documents_name_extras_that_exist(path: Path) -> None:
    for named in re.findall(r"pip install [^\n]*?(?:ngramspec|\.)\[([\w,]+)\]", path.read_text()):
        assert set(named.split(",")) <= set(EXTRAS), named


def test_pip_adds_an_extra_to_the_package_in_place() -> None:
    line = not_installed("this needs llama-cpp-python", "llama").split(": ", 1)[1]
    assert line == 'pip install "ngramspec[llama]"'
    command = (sys.executable, "-m", "pip", "install", "--no-index", "--dry-run")
    done = subprocess.run(
        [*command, line.split('"')[1]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "already satisfied: ngramspec[llama]" in done.stdout
    assert "already satisfied: llama-cpp-python" in done.stdout


def test_sources_that_are_not_installed_get_the_line_for_a_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("ngramspec.messages.distribution", absent)
    message = not_installed("serve needs uvicorn", "server")
    assert message == 'serve needs uvicorn, which is not installed: pip install ".[server]"'
