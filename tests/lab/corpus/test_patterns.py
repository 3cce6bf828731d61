"""Patterns of .gitignore files beside git itself, and hostile ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reading import Write

from ngramspec.errors import InputError
from ngramspec.lab.corpus import find_units
from ngramspec.lab.corpus.patterns import MOST_CHARS, MOST_PATTERNS, Patterns, read_gitignore

LONGEST_NAME = 255
NAMES = st.text(alphabet="ab-]", min_size=1, max_size=4)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.sampled_from(
    ["*", "?", "**", "a", "b", "a*b", "*a*", "[ab]", "[!a]", "[^b]", "[a-b]", "[]a]", "[a-]",
     "\\a", "\\*", "\\[", "a\\-", "ab", "**a", "b**", "*-", "-?", "[--b]",
     "[!]a]", "[]]", "[b-a]", "[!b-a]", "[b-a-]", "[!!a]"]
)  # fmt: skip
LINES = st.builds(
    lambda no, lead, parts, end: no + lead + "/".join(parts) + end,
    st.sampled_from(["", "", "", "!"]), st.sampled_from(["", "", "/"]),
    st.lists(PARTS, min_size=1, max_size=5), st.sampled_from(["", "", "/", " ", "\\ "]),
).filter(lambda line: "b**/" not in line)  # fmt: skip


def is_ignored(lines: list[str], path: str) -> bool:
    """Return whether a file is left out, as a search decides it from the top."""
    patterns = Patterns(lines)
    names = path.split("/")
    folders = ("/".join(names[:size]) + "/" for size in range(1, len(names)))
    return any(map(patterns.decide, folders)) or bool(patterns.decide(path))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@example(lines=["[b-a]"], paths=["b", "a"])
@example(lines=["[!b-a]"], paths=["b", "a"])
@given(lines=st.lists(LINES, min_size=1, max_size=4), paths=st.lists(PATHS, min_size=1, max_size=9))
def test_patterns_decide_as_git_does(repository: Path, lines: list[str], paths: list[str]) -> None:
    (repository / ".gitignore").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        ["git", "-C", repository, "check-ignore", "--no-index", "--stdin", "-z"],
        input="\0".join(dict.fromkeys(paths)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    usable = read_gitignore(repository / ".gitignore").lines
    ignored = {path for path in paths if is_ignored(usable, path)}
    assert ignored == set(done.stdout.split("\0")) - {""}, (lines, usable)


def test_two_stars_after_other_characters_are_as_one() -> None:
    """As git's manual says; git 2.39 compares addresses of pattern and text there."""
    patterns = Patterns(["b**/*"])
    assert [patterns.decide(path) for path in ("b", "b/a", "ba/a")] == [None, True, True]


@pytest.mark.parametrize(
    "line",
    [
        "a*" * 60 + "b",
        "**/" + "*a*" * 40 + "b",
        "*a?" * 40 + "c",
        "[a]*" * 50 + "c",
        "*" * 200 + "b",
    ],
)
def test_many_stars_take_no_longer_than_few(line: str) -> None:
    assert Patterns([line]).decide("a" * LONGEST_NAME) is None
    assert Patterns([line]).decide("/".join(["a" * LONGEST_NAME] * 15)) is None


def test_many_folders_take_no_longer_than_few() -> None:
    deep = "/".join("a" * 2000)
    assert Patterns(["**/a/" * 30 + "b"]).decide(deep) is None
    assert Patterns(["a/**/" * 30 + "b"]).decide(deep) is None
    assert Patterns(["a/**/" * 30 + "a"]).decide(deep) is True


@pytest.mark.parametrize(
    ("text", "most", "message"),
    [
        ("a*b\n", MOST_PATTERNS, r"\.gitignore: 10,001 patterns, .* --no-ignore reads"),
        ("#", MOST_CHARS, r"\.gitignore: more than 4,194,304 characters: --no-ig"),
    ],
)
def test_a_gitignore_has_a_limit(write: Write, text: str, most: int, message: str) -> None:
    file = write("in/.gitignore", text * most)
    write("in/a.txt", "text")
    assert len(find_units([file.parent]).units) == 1
    write("in/.gitignore", text * (most + 1))
    with pytest.raises(InputError, match=message):
        find_units([file.parent])
