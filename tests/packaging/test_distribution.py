"""The sdist holds what a build needs, and the wheel built from it works elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

import ngramspec
from helpers.paths import ROOT


def run(*command: str, cwd: Path) -> str:
    """Run a command, show its output when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked(*paths: str) -> set[str]:
    """Return the files that git tracks, those whose names begin with a dot left out."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout tells which files belong to the project")
    trusted = ("-c", "safe.directory=*")  # a container's user is not the checkout's owner
    names = run("git", *trusted, "ls-files", *paths, cwd=ROOT).splitlines()
    return {name for name in names if name[0] != "." and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out))
    run(*command, cwd=ROOT)
    return next(out.glob("*.tar.gz"))


def test_the_sdist_holds_sources_and_no_build_products(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for path in sorted((ROOT / "ext").rglob("*")):
        if path.suffix in (".pyx", ".pxd", ".h"):
            assert str(path.relative_to(ROOT)) in names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "setup.py", "pyproject.toml"} <= names
    built = {name for name in names if name.endswith((".so", ".c", ".pyc"))}
    assert built == {"tests/faults/shim.c"}  # a source


def test_the_sdist_holds_all_that_git_tracks(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert tracked() - names == set()


def test_a_wheel_built_from_the_sdist_drafts_outside_the_checkout(
    sdist: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    library = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    built = f"ngramspec/**/*{sysconfig.get_config_var('EXT_SUFFIX')}"
    # But for one module, what was made here of the same sources is taken; C first, so the older.
    for folder, pattern in ((".", "build/cython/**/*.c"), (library, built)):
        for path in ROOT.glob(pattern):
            if not path.name.startswith("history."):
                copy = source / folder / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
                os.utime(copy, (time.time() + 3600,) * 2)
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(tmp_path), str(source)),
        cwd=tmp_path,
    )
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert tracked("ngramspec") - set(names) == set()  # package data too
    assert not [name for name in names if name.startswith(("tests/", "ext/", "benchmarks/"))]
    code = (
        "import sys; sys.path.insert(0, 'site'); import ngramspec\n"
        "assert 'site' in ngramspec.__file__, ngramspec.__file__\n"
        "d = ngramspec.create_drafter('ngram-simple', size_n=2, size_m=4)\n"
        "d.begin(0, [5, 6, 7, 8, 5]); d.accept(0, [6], 0)\n"
        "ngramspec.create_drafter('suffix', capacity=4096)\n"
        "print(d.propose(0, 8).tolist(), ngramspec.embedded_model().stat().st_size > 1000)"
    )
    printed = run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path)
    assert printed.strip() == "[7, 8, 5, 6] True"


def test_the_version_is_the_same_everywhere() -> None:
    from importlib.metadata import version

    assert version("ngramspec") == ngramspec.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {ngramspec.__version__}" in changelog
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {ngramspec.__version__}\n" in citation


def test_wheels_are_built_for_every_python_that_is_named() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', project)
    oldest = re.findall(r'^requires-python = ">=3\.(\d+)"', project, re.M)
    assert named[:1] == oldest
    assert re.findall(r"\bcp3(\d+)-\*", project) == named
    tested = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert re.findall(r'"3\.(\d+)"', tested) == named
