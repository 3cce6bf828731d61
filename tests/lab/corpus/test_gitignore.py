"""What .gitignore files leave out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from reading import Write

from ngramspec.errors import InputError
from ngramspec.lab.corpus import find_units

FILES = (
    *(
        "a.py",
        "a.log",
        "build/a.py",
        "src/a.py",
        "src/b.log",
        "src/build/a.py",
        "src/build/keep.py",
    ),
    *("src/gen/a.py", "src/gen/deep/a.py", "src/gen/deep/b.txt", "node_modules/x/a.js"),
)

LOGS = {"a.log", "src/b.log"}
BUILD = {"build/a.py", "src/build/a.py", "src/build/keep.py"}


@pytest.fixture
def tree(write: Write, tmp_path: Path) -> Path:
    for name in FILES:
        write(f"tree/{name}", f"{name}\n")
    return tmp_path / "tree"


def files_in(path: Path, **options: bool) -> set[str]:
    return {unit.source for unit in find_units([path], **options).units}


def test_what_a_gitignore_names_is_left_out_unless_asked(tree: Path, write: Write) -> None:
    write("tree/.gitignore", "# made\n*.log\n/build/\nnode_modules\n")
    left = set(FILES) - {"a.log", "src/b.log", "build/a.py", "node_modules/x/a.js"}
    assert files_in(tree) == left
    assert files_in(tree, gitignore=False) == set(FILES)
    assert files_in(tree / "build") == {"a.py"}  # no repository, so nothing above it counts


@pytest.mark.parametrize(
    ("files", "left_out"),
    [
        # The nearest file that knows a path decides, of its lines the last.
        ({"": "*.log", "src": "!*.log"}, {"a.log"}),
        ({"": "*.log\n!b.log"}, {"a.log"}),
        ({"": "!b.log\n*.log"}, {"a.log", "src/b.log"}),
        # What is in a folder that is left out cannot be taken back.
        ({"": "build/\n!keep.py", "src/build": "!*"}, BUILD),
        ({"": "src/build/*\n!keep.py"}, {"src/build/a.py"}),
        # Patterns with a slash belong to the folder of their file.
        ({"src": "/build\n/a.py"}, {"src/build/a.py", "src/build/keep.py", "src/a.py"}),
        ({"src": "gen/*.py"}, {"src/gen/a.py"}),
        ({"": "**/deep/*.py"}, {"src/gen/deep/a.py"}),
        # A list of what is kept.
        ({"": "*\n!*/\n!*.py"}, {"node_modules/x/a.js", "src/gen/deep/b.txt", *LOGS}),
        ({"": "/*\n!/src/\n"}, {"a.py", "a.log", "build/a.py", "node_modules/x/a.js"}),
        # Lines that git cannot read, other line ends and a byte order mark.
        ({"": "\ufeff*.log\r\n[z-a]\n!\n\\\n  \n"}, {"a.log", "src/b.log"}),
    ],
)  # fmt: skip
def test_patterns_mean_what_git_says(
    tree: Path, write: Write, files: dict[str, str], left_out: set[str]
) -> None:
    for folder, text in files.items():
        write(f"tree/{folder}/.gitignore", text)
    assert set(FILES) - files_in(tree) == left_out
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q", tree], check=True)
        listing = ["git", "-C", tree, "ls-files", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
        assert set(FILES) - set(listed.splitlines()) == left_out


def test_files_above_a_folder_count_within_a_repository(tree: Path, write: Write) -> None:
    write(".gitignore", "*")  # above the repository
    write("tree/.git/HEAD", "ref: refs/heads/main\n")
    write("tree/.gitignore", "*.log\n/src/gen/deep/\nbuild/\n")
    write("tree/src/.gitignore", "gen/*\n!gen/deep\n")
    assert files_in(tree / "src") == {"a.py", "gen/deep/a.py", "gen/deep/b.txt"}
    assert files_in(tree / "src" / "gen" / "deep") == {"a.py", "b.txt"}  # it is given
    assert files_in(tree / "src" / "build") == {"a.py", "keep.py"}
    assert files_in(tree / "src", gitignore=False) == {
        name.removeprefix("src/") for name in FILES if name.startswith("src/")
    }


def test_files_that_are_given_are_read(tree: Path, write: Write) -> None:
    write("tree/.gitignore", "*")
    assert files_in(tree / "a.log") == {"a.log"}
    with pytest.raises(
        InputError, match=r"but what .gitignore leaves out, such as a.log \(--no-ig"
    ):
        find_units([tree])


def test_only_a_plain_file_is_a_gitignore(tree: Path, write: Write) -> None:
    (tree / ".gitignore").symlink_to(write("patterns", "*"))  # git follows no such links
    (tree / "src" / ".gitignore").mkdir()
    assert files_in(tree) == set(FILES)


def test_a_name_that_is_not_utf8_can_be_ignored(tree: Path, write: Write) -> None:
    (tree / "caf\udce9.txt").write_text("x")
    write("tree/.gitignore", b"caf\xe9*\n")
    assert files_in(tree) == set(FILES)
