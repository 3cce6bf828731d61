"""Shell completion: what it offers, and that the lines in docs/reference/cli.md set it up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from helpers import forked
from helpers.paths import ROOT
from ngramspec.cli import main
from ngramspec.costs import PROFILES
from ngramspec.drafting.names import DRAFTER_NAMES

pytestmark = pytest.mark.usefixtures("empty_folder")
FILES = ("", "file")


def offered(line: str) -> list[str | tuple[str, str]]:
    """Return what is offered for the last word of a line."""
    *words, last = line.split(" ")
    items = ShellComplete(main, {}, "ngramspec", "_NGRAMSPEC_COMPLETE").get_completions(words, last)
    return [one.value if one.type == "plain" else (one.value, one.type) for one in items]


@pytest.mark.parametrize(
    "line", ["serve --spec-type ", "generate --spec-type ", "bench e2e --drafter "]
)
def test_drafters(line: str) -> None:
    assert offered(line) == [*DRAFTER_NAMES, "draft-mtp", "none"]
    assert offered(f"{line}ngram-map") == ["ngram-map-k", "ngram-map-k4v"]
    assert offered(f"{line}ngram-mod,ngram-m") == [
        "ngram-mod,ngram-map-k", "ngram-mod,ngram-map-k4v",
    ]  # fmt: skip
    assert offered(f"{line}nothing,x") == []


def test_other_names() -> None:
    assert offered("demo --drafter suf") == ["suffix"]
    assert offered("bench replay --drafter a") == ["auto"]
    assert offered("bench replay --profile ") == [*PROFILES]
    assert offered("serve --cache-type-k q8") == ["q8_0"]
    assert offered("serve -ctvd q5") == ["q5_1", "q5_0"]
    assert offered("bench exactness -ct f16,q4_") == ["f16,q4_1", "f16,q4_0"]
    assert offered("build-cache --kind h") == ["hash-pool"]
    assert offered("cache mer") == ["merge"]


def test_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for line in ("serve -m ", "generate -m ", "serve -md ", "bench exactness -m "):
        assert offered(line) == [FILES], line
    store = tmp_path / "store"
    for name in ("llama3/8b", "lucy/latest"):
        path = store / "manifests/registry.ollama.ai/library" / name
        path.parent.mkdir(parents=True)
        digest = "sha256:" + "0" * 64
        layer = f'{{"mediaType":"application/vnd.ollama.image.model","digest":"{digest}","size":1}}'
        path.write_text(f'{{"schemaVersion":2,"layers":[{layer}]}}')
    (store / "blobs").mkdir()
    (store / "blobs" / ("sha256-" + "0" * 64)).write_bytes(b"G")
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    assert offered("serve -m ll") == ["llama3:8b", ("ll", "file")]
    assert offered("serve -md l") == ["llama3:8b", "lucy:latest", ("l", "file")]
    assert offered("serve -m ./l") == [("./l", "file")]


def documented() -> dict[str, str]:
    """Return the lines in docs/reference/cli.md, by shell."""
    text = (ROOT / "docs/reference/cli.md").read_text()
    rows = re.findall(r"^\| (bash|zsh|fish)[^|]*\|[^|]*\| `(.*)` \|$", text, re.MULTILINE)
    return {shell: line.replace("\\|", "|") for shell, line in rows}


def test_the_documented_line_completes_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "bin/ngramspec"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ngramspec "$@"\n')
    program.chmod(0o755)
    script = f"""
        {documented()["bash"]}
        COMP_WORDS=(ngramspec serve --spec-type ngram-map) COMP_CWORD=3
        _ngramspec_completion ngramspec
        echo "${{COMPREPLY[@]}}"
        complete -p ngramspec
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "ngram-map-k ngram-map-k4v", done
    assert "_ngramspec_completion ngramspec" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_documented_shell_has_its_script(shell: str) -> None:
    assert f"_NGRAMSPEC_COMPLETE={shell}_source ngramspec" in documented()[shell]
    done = forked.run(["-m", "ngramspec"], _NGRAMSPEC_COMPLETE=f"{shell}_source")
    assert f"{shell}_complete" in done.stdout
