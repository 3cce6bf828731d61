"""A name says what it holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.paths import ROOT

# What happened to a value says nothing of it.
VAGUE = {"found", "given", "kept", "known", "made", "said", "told", "wanted"}
RECORDS = {"kept"}  # a member of the records' JSON
IN_FILES = {
    "ngramspec/lab/recordings/record.py": RECORDS,
    "tests/lab/recordings/test_formats.py": RECORDS,
}
SOURCES = sorted(
    path.relative_to(ROOT)
    for folder in ("ngramspec", "ext", "tests", "tools", "benchmarks")
    for path in (ROOT / folder).rglob("*.*")
    if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".js"} and "vendor" not in path.parts
)
# Texts and comments of Python, Cython and JavaScript, of which names are no part.
STRINGS = r'"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
PROSE = {
    ".js": re.compile(rf"/\*[\s\S]*?\*/|//.*|`[^`]*`|{STRINGS}"),
    ".py": re.compile(rf"#.*|{STRINGS}"),
}


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_names_say_what_they_hold(source: Path) -> None:
    text = (ROOT / source).read_text("utf-8")
    code = PROSE.get(source.suffix, PROSE[".py"]).sub("", text)
    allowed = IN_FILES.get(source.as_posix(), set())
    if "from hypothesis import" in text:
        allowed = {*allowed, "given"}
    names = {name.strip("_") for name in re.findall(r"\w+", code)}
    assert names & VAGUE <= allowed
