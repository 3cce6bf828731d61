"""Which files are found, in which order, and how they are split."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from reading import Write

from ngramspec.errors import InputError
from ngramspec.lab.corpus import Unit, find_units


def sources(*paths: str | os.PathLike[str], **options: object) -> list[str]:
    return [unit.source for unit in find_units(paths, **options).units]  # type: ignore[arg-type]


@pytest.fixture
def tree(write: Write, tmp_path: Path) -> Path:
    for name in (
        *("b.py", "a/z.py", "a/b/c.md", "a.txt", ".git/config", ".hidden", "a/.env"),
        *("node_modules/x.js", "tests/b.py", "data.jsonl"),
    ):
        write(f"tree/{name}", f"{name}\n")
    return tmp_path / "tree"


def test_a_folder_is_read_by_relative_path_without_hidden_files(tree: Path) -> None:
    assert sources(tree) == [
        *("a/b/c.md", "a/z.py", "a.txt", "b.py", "data.jsonl", "node_modules/x.js", "tests/b.py")
    ]


def test_arguments_keep_their_order_and_name_hidden_files(tree: Path) -> None:
    assert sources(tree / "b.py", tree / ".hidden", tree / "a") == [
        *("b.py", ".hidden", "b/c.md", "z.py")
    ]
    assert sources(tree / ".git") == ["config"]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["*.py"], [], ["a/z.py", "b.py", "tests/b.py"]),
        (["*.py", "*.md"], ["tests"], ["a/b/c.md", "a/z.py", "b.py"]),
        (["a/**"], [], ["a/b/c.md", "a/z.py"]),
        (["a/*"], [], ["a/b/c.md", "a/z.py"]),
        (["a/*.py"], [], ["a/z.py"]),
        (["/*.py"], [], ["b.py"]),
        (["tests/"], [], ["tests/b.py"]),
        (["*.py", "!b.py"], [], ["a/z.py"]),
        (["!b.py", "*.py"], [], ["a/z.py", "b.py", "tests/b.py"]),
        ([], ["*", "!*/", "!*.py"], ["a/z.py", "b.py", "tests/b.py"]),
        ([], ["/a/*", "!/a/b/", "*.js*", "/tests"], ["a/b/c.md", "a.txt", "b.py"]),
        (["**/b.py"], [], ["b.py", "tests/b.py"]),
        (["*.py"], ["*.py"], None),
        ([], ["node_modules/", "*.jsonl", "a/b/**"], ["a/z.py", "a.txt", "b.py", "tests/b.py"]),
        (["[ab].*"], ["a"], ["a.txt", "b.py", "tests/b.py"]),
        (["[!ab].*"], ["a/b"], ["a/z.py", "node_modules/x.js"]),
        (["\\!*", "?.txt"], [], ["a.txt"]),
        (["?.py"], ["b.py"], ["a/z.py"]),
    ],
)
def test_patterns_choose(
    tree: Path, include: list[str], exclude: list[str], expected: list[str] | None
) -> None:
    if expected is None:
        with pytest.raises(InputError, match="that include and exclude let through"):
            sources(tree, include=include, exclude=exclude)
    else:
        assert sources(tree, include=include, exclude=exclude) == expected


def test_patterns_apply_to_files_that_are_named(tree: Path) -> None:
    assert sources(tree / "b.py", tree / "a.txt", include=["*.py"]) == ["b.py"]
    assert sources(tree / "b.py", tree / "a.txt", exclude=["*.py"]) == ["a.txt"]


@pytest.mark.parametrize("pattern", ["", " ", "/", "!", "# all", "a\\"])
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_bad_pattern_is_refused(tree: Path, option: str, pattern: str) -> None:
    with pytest.raises(InputError, match=r"not a pattern as in a \.gitignore: "):
        sources(tree, **{option: ["*.py", pattern]})


def test_links_are_followed_once(tree: Path) -> None:
    for i in range(3):  # 3 ** 40 ways through, until the system refuses
        (tree / "a" / f"loop{i}").symlink_to(tree)
    (tree / "again").symlink_to(tree / "a")
    (tree / "b2.py").symlink_to(tree / "b.py")
    (tree / "broken").symlink_to(tree / "nowhere")
    (tree / "self").symlink_to(tree / "self")
    os.mkfifo(tree / "pipe")
    names = sources(tree, tree, tree / "b.py")
    assert len(names) == 7
    assert names == sources(tree)


@pytest.mark.parametrize("name", ["-", "pipe.parquet"])
def test_parquet_that_is_in_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_bytes(b"another file, not standard input")
    os.mkfifo("pipe.parquet")
    place = "standard input" if name == "-" else name
    with pytest.raises(InputError, match=f"{place} is no file: parquet cannot be read from a pipe"):
        find_units([name], format="parquet")


def test_what_is_linked_from_outside_is_read_only_when_asked(tree: Path, write: Write) -> None:
    secret = write("other/c.py", "c")
    before = sources(tree)
    (tree / "link").symlink_to(tree.parent / "other")
    (tree / "a" / "key").symlink_to(secret)
    (tree / "a" / "by_way").symlink_to(tree / "link")  # inside, but what it names is not
    plan = find_units([tree])
    assert [unit.source for unit in plan.units] == before
    assert [link.source for link in plan.left_out] == ["link", "a/by_way", "a/key"]
    assert [link.source for link in find_units([tree], include=["*.txt"]).left_out] == [
        *("link", "a/by_way")
    ]
    assert "a/by_way/c.py" in sources(tree, follow_links=True)
    assert sources(tree / "a" / "key") == ["key"]  # named by the user
    (tree.parent / "itself").symlink_to(tree)
    assert sources(tree.parent / "itself") == before


def test_a_folder_of_links_says_how_they_are_read(tmp_path: Path, write: Write) -> None:
    write("other/c.py", "c")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "c.py").symlink_to(tmp_path / "other" / "c.py")
    with pytest.raises(InputError, match=r"but links out of it, such as c.py \(--follow-links\)"):
        find_units([tmp_path / "links"])


@pytest.mark.parametrize(
    ("name", "format", "compression"),
    [
        ("a.py", "text", ""),
        ("README", "text", ""),
        ("a.json", "text", ""),
        ("a.JSONL", "jsonl", ""),
        ("a.ndjson", "jsonl", ""),
        ("a.parquet", "parquet", ""),
        ("a.txt.gz", "text", "gz"),
        ("a.gz", "text", "gz"),
        ("a.jsonl.zst", "jsonl", "zst"),
        ("a.jsonl.xz", "jsonl", "xz"),
        ("a.ndjson.bz2", "jsonl", "bz2"),
    ],
)
def test_the_name_tells_format_and_compression(
    write: Write, name: str, format: str, compression: str
) -> None:
    path = write(name, "12345")
    (unit,) = find_units([path]).units
    assert unit == Unit(str(path), name, format, compression, num_bytes=5)
    assert find_units([path], format="jsonl").units[0].format == "jsonl"


def test_a_large_jsonl_file_is_split_by_bytes(write: Write) -> None:
    path = write("a.jsonl", b"x" * 25)
    plan = find_units([path], chunk_bytes=10)
    assert [(unit.start, unit.stop, unit.num_bytes) for unit in plan.units] == [
        *((0, 10, 10), (10, 20, 10), (20, 25, 5))
    ]
    assert (plan.num_files, plan.num_bytes) == (1, 25)
    assert len(find_units([path], chunk_bytes=25).units) == 1
    assert len(find_units([write("a.txt", b"x" * 25)], chunk_bytes=10).units) == 1


def test_standard_input_is_a_unit_once() -> None:
    plan = find_units(["-", "-"], include=["*.py"])
    assert plan.units == (Unit("-", "-"),)


def test_a_plan_can_be_sent_to_workers(tree: Path) -> None:
    plan = find_units([tree])
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert not hasattr(plan.units[0], "__dict__")  # there may be millions
    assert hash(plan.units[0])


def test_a_missing_path_is_named(tree: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        find_units([tree, tree / "nothing_here"])


def test_nothing_found_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"no file to read in {tmp_path}$"):
        find_units([tmp_path])
    with pytest.raises(InputError, match="no file to read in no path"):
        find_units([])


def test_a_single_text_in_place_of_a_list_is_refused(tree: Path) -> None:
    for paths in (str(tree), tree):
        with pytest.raises(InputError, match=f"paths must be a list.*{tree}"):
            find_units(paths)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"include must be a list.*\['\*\.py'\]"):
        sources(tree, include="*.py")


def test_bad_options_are_refused(tree: Path) -> None:
    with pytest.raises(InputError, match="format must be one of text, jsonl, parquet, got 'csv'"):
        find_units([tree], format="csv")
    with pytest.raises(InputError, match="chunk_bytes must be at least 1, got 0"):
        find_units([tree], chunk_bytes=0)
