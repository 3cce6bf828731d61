"""Building: equal bytes for any split of a corpus, any resources, and after any stop."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.statistics as slow
from helpers.machines import SETTINGS
from helpers.statistics_files import sizes_of, sources_of
from ngramspec import embedded_model, open_cache
from ngramspec.errors import CapacityError, FormatError, InputError
from ngramspec.files.cache_file import Origin, check_cache, write_cache
from ngramspec.files.dates import changed_ns, date_of
from ngramspec.files.entries import ArraySource, EntrySource
from ngramspec.files.pool_file import PoolShape
from ngramspec.files.statistics import open_statistics
from ngramspec.lab.builder import BuildOptions, NoProgress, Resources, build, local, runs
from ngramspec.lab.builder.checkpoint import WorkFolder, has_checkpoint, identity_of
from ngramspec.lab.builder.feed import Totals
from ngramspec.lab.builder.local import BuildStopped
from ngramspec.lab.builder.result import provenance
from ngramspec.lab.corpus import Problems, document_digest, find_units, is_held_out
from ngramspec.text.tokenizers import Tokenizer, load_tokenizer

pytest.importorskip("llama_cpp")
WORDS = [
    "def",
    " area",
    "(width",
    ", ",
    "height",
    "):\n",
    "    ",
    "return ",
    "x",
    "é",
    "# 数\n",
    "0",
]
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=25).map("".join), min_size=1, max_size=8
)
POOL = PoolShape(3, 1024, 8, 0.3)
OPTIONS: dict[str, dict[str, Any]] = {
    "cache": {},
    "all sizes, often": {"ngram_min": 1, "min_count": 2},
    "small": {"max_bytes": 2600},
    "pool": {"kind": "hash-pool", "pool": POOL},
    "held out": {"held_out": 0.4},
}


STOPPED: dict[str, Any] = {"held_out": 0.4, "provenance": False}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(embedded_model())


class StopAfter(NoProgress):
    """Asks to stop once so many documents of a run are done; notes where."""

    def __init__(self, documents: int) -> None:
        self.left = documents

    def done(self, amount: int, tokens: int) -> None:
        self.left -= 1

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        return self.left <= 0


def lay_out(folder: Path, texts: list[str], groups: list[int]) -> list[Path]:
    """Documents as text files, and as lines of JSON where groups says so: number of a file or 0."""
    folder.mkdir()
    lines: dict[Path, str] = {}
    paths = []
    for number, text in enumerate(texts):
        group = groups[number % len(groups)]
        if group:
            path = folder / f"part-{group}.jsonl"
            lines[path] = lines.get(path, "") + json.dumps({"text": text}) + "\n"
        else:
            path = folder / f"{number:03d}.txt"
            path.write_text(text, encoding="utf-8")
            paths.append(path)
    for path, text in lines.items():
        path.write_text(text, encoding="utf-8")
    return [*paths, *lines]


@pytest.fixture(scope="module")
def few_at_once() -> Iterator[None]:
    """Runs are merged three at a time, so that a few documents need several rounds."""
    before = local.fewer_runs.__globals__["FAN_IN"]
    runs.FAN_IN = 3
    yield
    runs.FAN_IN = before


def built(
    folder: Path,
    name: str,
    paths: list[Path],
    tokenizer: Tokenizer,
    resources: Resources,
    **options: Any,
) -> bytes:
    target = folder / name
    build(paths, target, tokenizer, BuildOptions(**options), resources)
    assert not [*folder.glob(".*.build")]
    return target.read_bytes()


def expected_sizes(
    texts: list[str], tokenizer: Tokenizer, sizes: range, held_out: float
) -> dict[int, slow.Counts]:
    digests = {document_digest(text): text for text in texts}
    counted_texts = [text for digest, text in digests.items() if not is_held_out(digest, held_out)]
    tokens = [tokens.tolist() for tokens in tokenizer.encode_batch(counted_texts)]
    return {size: slow.count_pairs(tokens, size) for size in sizes}


@pytest.mark.parametrize("held_out", [0.0, 0.5])
@SETTINGS
@given(texts=TEXTS, ngram_min=st.integers(1, 4), min_count=st.integers(1, 2))
def test_a_build_counts_each_different_document_once(
    tokenizer: Tokenizer, held_out: float, texts: list[str], ngram_min: int, min_count: int
) -> None:
    sizes = expected_sizes(texts, tokenizer, range(ngram_min, 5), held_out)
    if not any(slow.merged(sizes.values())):
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = lay_out(folder / "corpus", texts, [0])
        options = {"ngram_min": ngram_min, "min_count": min_count, "provenance": False}
        contents = built(
            folder, "a.ngc", paths, tokenizer, Resources(), held_out=held_out, **options
        )
        digest = tokenizer.fingerprint
        write_cache(
            folder / "b.ngc", sources_of(sizes), Origin(digest.digest, digest.vocab_size),
            min_count=min_count,
        )  # fmt: skip
        assert contents == (folder / "b.ngc").read_bytes()


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("name", OPTIONS)
@SETTINGS
@given(
    texts=TEXTS,
    groups=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    data=st.data(),
    jobs=st.integers(1, 3),
    seconds=st.sampled_from([0.0, 60.0]),
)
def test_any_split_and_order_gives_equal_bytes(
    tokenizer: Tokenizer,
    name: str,
    texts: list[str],
    groups: list[int],
    data: st.DataObject,
    jobs: int,
    seconds: float,
) -> None:
    options = {"provenance": False, **OPTIONS[name]}
    if not counted_any(texts, tokenizer, options):
        return
    with TemporaryDirectory() as root:
        folder = Path(root)
        whole = lay_out(folder / "whole", texts, [0])
        again = data.draw(st.lists(st.sampled_from(texts), max_size=2))  # duplicates count once
        parts = lay_out(folder / "parts", data.draw(st.permutations(texts + again)), groups)
        first = built(folder, "a.ngc", whole, tokenizer, Resources(), **options)
        resources = Resources(jobs=jobs, seconds=seconds)
        assert built(folder, "b.ngc", parts, tokenizer, resources, **options) == first
        assert len(first) <= options.get("max_bytes", len(first))


def counted_any(texts: list[str], tokenizer: Tokenizer, options: dict[str, Any]) -> bool:
    sizes = expected_sizes(texts, tokenizer, range(1, 2), options.get("held_out", 0.0))
    return bool(sizes[1])


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("name", OPTIONS)
@SETTINGS
@given(
    texts=TEXTS,
    jobs=st.integers(1, 4),
    most=st.sampled_from([1, 30, 10**6]),
    seconds=st.sampled_from([0.0, 60.0]),
)
def test_means_do_not_change_a_byte_not_even_of_the_provenance(
    tokenizer: Tokenizer, name: str, texts: list[str], jobs: int, most: int, seconds: float
) -> None:
    if not counted_any(texts, tokenizer, OPTIONS[name]):
        return
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        folder = Path(root)
        paths = lay_out(folder / "corpus", texts, [0, 1])
        first = built(folder, "a.ngc", paths, tokenizer, Resources(), **OPTIONS[name])
        memory = 64 << 20
        patch.setattr(local, "tokens_within", lambda memory: most)
        resources = Resources(jobs=jobs, memory=memory, seconds=seconds, work=str(folder / "work"))
        assert built(folder, "b.ngc", paths, tokenizer, resources, **OPTIONS[name]) == first
        assert not [*(folder / "work").iterdir()]


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("name", OPTIONS)
@SETTINGS
@given(texts=TEXTS, stops=st.lists(st.integers(1, 4), min_size=1, max_size=5), data=st.data())
def test_stopping_anywhere_and_going_on_gives_equal_bytes(
    tokenizer: Tokenizer, name: str, texts: list[str], stops: list[int], data: st.DataObject
) -> None:
    options = BuildOptions(**OPTIONS[name])
    if not counted_any(texts, tokenizer, OPTIONS[name]):
        return
    with TemporaryDirectory() as root:
        folder = Path(root)
        paths = lay_out(folder / "corpus", [*texts, *texts[:2]], [0, 1, 1])
        whole = build(paths, folder / "a.ngc", tokenizer, options)
        target = folder / "b.ngc"
        for number, documents in enumerate(stops):
            resources = Resources(
                jobs=1 + number % 2, seconds=data.draw(st.sampled_from([0.0, 60.0]))
            )
            progress = StopAfter(documents)
            try:
                again = build(
                    paths, target, tokenizer, options, resources, progress, resume=number > 0
                )
                break
            except BuildStopped:
                assert not target.exists()
                if data.draw(st.booleans()):
                    begin_a_checkpoint(Path(resources.work_folder(target)), texts)
        else:
            again = build(paths, target, tokenizer, options, resume=True)
        assert target.read_bytes() == (folder / "a.ngc").read_bytes()
        assert (again.totals, again.held_out) == (whole.totals, whole.held_out)
        assert sorted(p.name for p in folder.iterdir()) == ["a.ngc", "b.ngc", "corpus"]


def begin_a_checkpoint(work: Path, texts: list[str]) -> None:
    """Leave what a process does that is killed before its next checkpoint is whole."""
    with open(work / "digests", "ab") as file:
        file.write(b"".join(document_digest(text) for text in texts)[:-3])
    with open(work / "held-out", "ab") as file:
        file.write(np.arange(30, 60, dtype="<i4").tobytes())
    (work / "run-000099").write_bytes(bytes(33))


def test_a_build_agrees_with_the_reference_on_a_larger_text(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Several batches and threads, and a part border within a document."""
    words = Counter[str]()
    texts = []
    for number in range(40):
        words.update([f" name_{number}", f" = {number}\n"])
        texts.append("".join(word * (1 + number % 7) for word in words) * 20)
    paths = lay_out(tmp_path / "corpus", texts, [0, 0, 1])
    sizes = expected_sizes(texts, tokenizer, range(2, 5), 0.0)
    for jobs, seconds in ((1, 60.0), (3, 0.0)):
        target = tmp_path / f"{jobs}.ngc"
        build(paths, target, tokenizer, BuildOptions(), Resources(jobs=jobs, seconds=seconds))
        cache = open_cache(target)
        check_cache(cache)
        assert sizes_of(cache) == sizes
    assert (tmp_path / "1.ngc").read_bytes() == (tmp_path / "3.ngc").read_bytes()


@pytest.fixture(scope="module")
def stopped_build(
    tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Path], bytes]:
    """The folder of a build that was stopped, its corpus, and what it would have made."""
    folder = tmp_path_factory.mktemp("stopped")
    texts = [" ".join(WORDS[i:] + WORDS[:i]) * 3 for i in range(len(WORDS))]
    paths = lay_out(folder / "corpus", texts, [1])
    whole = built(folder, "whole.ngc", paths, tokenizer, Resources(), **STOPPED)
    with pytest.raises(BuildStopped):
        build(
            paths, folder / "a.ngc", tokenizer, BuildOptions(**STOPPED), Resources(), StopAfter(6)
        )
    return folder, paths, whole


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("run-*", lambda data: bytes(len(data)), "expected checksum"),  # as after a power failure
        ("run-*", lambda data: data[:-16], "expected"),
        ("run-*", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "expected checksum"),
        ("digests", lambda data: bytes(len(data)), "expected checksum"),
        ("held-out", lambda data: bytes(len(data)), "expected checksum"),
        ("held-out", lambda data: data[:-4], "bytes, found"),
        ("held-out", lambda data: data + b"more", None),  # behind what the checkpoint counts
        ("state.json", lambda data: bytes(len(data)), "not a checkpoint of this version"),
        ("state.json", lambda data: data[:-9], "not a checkpoint of this version"),
        ("state.json", lambda data: data.replace(b'"version": 5', b'"version": 2'), "not a check"),
        ("state.json", lambda data: data.replace(b'"documents": ', b'"others": '), "damaged"),
        ("state.json", lambda data: data.replace(b'"runs": {', b'"runs": {"x": 1, '), "damaged"),
    ],
)
def test_a_damaged_checkpoint_is_not_gone_on_with(
    tokenizer: Tokenizer,
    stopped_build: tuple[Path, list[Path], bytes],
    tmp_path: Path,
    name: str,
    change: Any,
    message: str | None,
) -> None:
    folder, paths, whole = stopped_build
    work = tmp_path / ".a.ngc.build"
    shutil.copytree(folder / ".a.ngc.build", work)
    path = min(work.glob(name))
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    arguments = (paths, tmp_path / "a.ngc", tokenizer, BuildOptions(**STOPPED), Resources())
    if message is not None:
        with pytest.raises(FormatError, match=message) as caught:
            build(*arguments, resume=True)
        assert str(path) in str(caught.value)
        assert "--restart starts over" in str(caught.value)
        build(*arguments, restart=True)
    else:
        build(*arguments, resume=True)
    assert (tmp_path / "a.ngc").read_bytes() == whole
    assert not work.exists()


@pytest.mark.parametrize("length", [-1, -(2**31), 5, 2**31 - 1])
def test_documents_of_impossible_length_are_refused(tmp_path: Path, length: int) -> None:
    folder = WorkFolder(tmp_path, {})
    (tmp_path / "held-out").write_bytes(np.array([2, 7, 7, length, 7, 7], "<i4").tobytes())
    with pytest.raises(FormatError, match=f"a document of {length} tokens at offset 12"):
        folder.held_out()


def test_a_file_that_goes_away_is_a_problem_and_the_build_ends(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"the text of {name}, of {name} again\n")

    class Removing(NoProgress):
        def phase(self, name: str, total: int) -> None:
            (tmp_path / "b.txt").unlink(missing_ok=True)

    outcome = build([tmp_path], tmp_path / "out.ngc", tokenizer, progress=Removing())
    assert outcome.problems.total == 1
    assert open_cache(tmp_path / "out.ngc").num_ngrams(2) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
@pytest.mark.parametrize("kind", ["ngram-cache", "hash-pool", "suffix"])
def test_names_of_files_need_not_be_utf_8(tokenizer: Tokenizer, tmp_path: Path, kind: str) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("the text of a file, of a file\n" * 9)
    build([tmp_path], tmp_path / "out", tokenizer, BuildOptions(kind=kind))
    assert open_statistics(tmp_path / "out").about["corpus"] == [name]


def test_files_beside_a_build_are_left_alone_and_its_own_are_private(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    scratch, modes = tmp_path / "scratch", dict[str, int]()
    scratch.mkdir()
    for name in ("run-2024.log", "shard-1", "texts", "digests", "held-out", "state.json"):
        (scratch / name).write_text("mine")
    mine = {path.name for path in scratch.iterdir()}

    class Looking(NoProgress):
        def phase(self, name: str, total: int) -> None:
            for path in work.iterdir():
                modes[path.name] = path.stat().st_mode & 0o777

    resources = Resources(work=str(scratch), seconds=0.0)
    work = Path(resources.work_folder(tmp_path / "out.ngc"))
    work.mkdir()
    (work / "texts").write_text("of a build before")
    work.chmod(0o755)
    paths = lay_out(tmp_path / "corpus", [" ".join(WORDS) * 9, "other words"], [0])
    build(paths, tmp_path / "out.ngc", tokenizer, BuildOptions(held_out=0.1), resources, Looking())
    assert {path.name for path in scratch.iterdir()} == mine
    assert {path.read_text() for path in scratch.iterdir()} == {"mine"}
    del modes["lock"]
    assert modes.keys() >= {"run-000001", "digests", "held-out", "texts", "state.json"}
    assert set(modes.values()) == {0o600}


@pytest.mark.skipif(os.name == "nt", reason="folders have no modes there")
def test_a_work_folder_that_others_may_write_to_is_refused(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    paths = lay_out(tmp_path / "corpus", ["one text of some words"], [0])
    work, other = tmp_path / ".a.ngc.build", tmp_path / "other"
    other.mkdir(0o700)
    (other / "texts").write_text("mine")
    work.symlink_to(other)
    message = "is not a folder that only this user can write to: remove it, or"
    with pytest.raises(InputError, match=message):
        build(paths, tmp_path / "a.ngc", tokenizer)
    assert (other / "texts").read_text() == "mine"
    work.unlink()
    work.mkdir()
    for mode in (0o770, 0o707):
        work.chmod(mode)
        with pytest.raises(InputError, match=message):
            build(paths, tmp_path / "a.ngc", tokenizer, restart=True)
    work.chmod(0o755)
    build(paths, tmp_path / "a.ngc", tokenizer)
    assert {path.name for path in tmp_path.iterdir()} == {"a.ngc", "corpus", "other"}


def test_outputs_of_one_name_share_no_work_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Resources(work=tmp_path / "work")
    first, second = (shared.work_folder(tmp_path / name / "x.ngc") for name in "ab")
    assert first != second
    assert Path(first).parent == Path(second).parent == tmp_path / "work"
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert shared.work_folder("x.ngc") == first


@pytest.mark.parametrize("error", [CapacityError, MemoryError])
def test_what_was_counted_is_kept_and_may_be_written_with_another_min_count(
    tokenizer: Tokenizer, tmp_path: Path, error: type[Exception]
) -> None:
    class TooMany(NoProgress):
        def phase(self, name: str, total: int) -> None:
            if name == "writing":
                raise error("more than a file can hold")

    paths = lay_out(tmp_path / "corpus", [" ".join(WORDS) * 9, "other words"], [0])
    options: dict[str, Any] = {"min_count": 2, "max_bytes": 4000}
    whole = built(tmp_path, "whole.ngc", paths, tokenizer, Resources(), **options)
    with pytest.raises(error):
        build(paths, tmp_path / "a.ngc", tokenizer, progress=TooMany())
    again = build(paths, tmp_path / "a.ngc", tokenizer, BuildOptions(**options), resume=True)
    assert again.seconds.tokenising == 0
    assert (tmp_path / "a.ngc").read_bytes() == whole


def test_large_runs_are_seldom_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FAN_IN", 8)
    paths: list[Path] = []
    num_again = 0

    def write(source: EntrySource) -> Path:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        runs.write_run(path, source)
        return path

    def write_again(source: EntrySource) -> Path:
        nonlocal num_again
        path = write(source)
        num_again += path.stat().st_size // runs.ENTRY_BYTES
        return path

    for i in range(200):
        entry = np.array([[i, 1]], np.uint64)
        paths = runs.fewer_runs([*paths, write(ArraySource(entry))], write_again, 1 << 20)
        assert len(paths) <= 8
    assert num_again < 1000  # the number of runs times a logarithm of it, not times itself
    merged = runs.merged(paths, 1 << 20).read()
    assert merged[:, 0].tolist() == [*range(200)]


class StopAtSecondLook(NoProgress):
    """Is told to stop between two looks at `stopped`."""

    looks = 0

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        self.looks += 1
        return self.looks > 1


def test_a_stop_between_two_looks_keeps_what_was_counted(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    paths = lay_out(tmp_path / "corpus", ["one text", "and another", "and one more"], [0])
    whole = built(tmp_path, "whole.ngc", paths, tokenizer, Resources())
    with pytest.raises(BuildStopped):
        build(paths, tmp_path / "a.ngc", tokenizer, progress=StopAtSecondLook())
    assert has_checkpoint(tmp_path / ".a.ngc.build")
    build(paths, tmp_path / "a.ngc", tokenizer, resume=True)
    assert (tmp_path / "a.ngc").read_bytes() == whole


def test_a_build_stops_among_duplicates_too(tokenizer: Tokenizer, tmp_path: Path) -> None:
    texts = ["one text of some words", *["another text"] * 50, "and one more"]
    paths = lay_out(tmp_path / "corpus", texts, [1])
    whole = build(paths, tmp_path / "whole.ngc", tokenizer)
    with pytest.raises(BuildStopped, match="stopped after 2 documents"):
        build(paths, tmp_path / "a.ngc", tokenizer, progress=StopAfter(20))
    again = build(paths, tmp_path / "a.ngc", tokenizer, resume=True)
    assert again.totals == whole.totals
    assert (tmp_path / "a.ngc").read_bytes() == (tmp_path / "whole.ngc").read_bytes()


@pytest.mark.parametrize("kind", ["lines", "files"])
def test_a_build_stops_where_there_are_no_documents_too(
    tokenizer: Tokenizer, tmp_path: Path, kind: str
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("one text of some words")
    if kind == "lines":
        (corpus / "b.jsonl").write_text('{"id": 1}\n{"text": ""}\nno JSON\n' * 20)
    else:
        for i in range(50):
            (corpus / f"b{i:02}.bin").write_bytes(bytes(i))
    whole = build([corpus], tmp_path / "whole.ngc", tokenizer)
    with pytest.raises(BuildStopped, match="stopped after 1 documents"):
        build([corpus], tmp_path / "a.ngc", tokenizer, progress=StopAfter(20))
    again = build([corpus], tmp_path / "a.ngc", tokenizer, resume=True)
    assert (again.totals, again.problems) == (whole.totals, whole.problems)
    assert (tmp_path / "a.ngc").read_bytes() == (tmp_path / "whole.ngc").read_bytes()


def test_short_documents_that_are_held_out_are_not_kept(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    paths = lay_out(tmp_path / "corpus", [f"text {i}" for i in range(200)], [1])
    options = BuildOptions(held_out=0.9)
    with pytest.raises(BuildStopped):
        build(paths, tmp_path / "a.ngc", tokenizer, options, progress=StopAfter(150))
    assert len(WorkFolder(tmp_path / ".a.ngc.build", {}).held_out()) == 1
    outcome = build(paths, tmp_path / "a.ngc", tokenizer, options, resume=True)
    assert outcome.totals.held_out > 150
    assert outcome.held_out is not None
    assert outcome.held_out.documents == 0


def test_an_output_among_the_texts_is_none_of_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    output = tmp_path / "out.ngc"
    (tmp_path / "a.txt").write_text("one text of some words, of some words")
    (tmp_path / "b.bin").write_bytes(bytes(9))
    os.utime(tmp_path / "a.txt", (10, 10))
    build([tmp_path], output, tokenizer)
    first = output.read_bytes()
    again = build([tmp_path], output, tokenizer)
    assert output.read_bytes() == first
    assert again.problems.num_skipped == 1
    about = open_statistics(output).about  # b.bin is newer, but nothing was made from it
    assert about["newest_input"] == "1970-01-01T00:00:10+00:00"
    with pytest.raises(InputError, match=r"nothing to read but .*out\.ngc, the output itself"):
        build([output], output, tokenizer)
    assert output.read_bytes() == first


def test_a_folder_for_an_output_is_refused_before_anything_is_counted(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "corpora").mkdir()
    (tmp_path / "a.txt").write_text("one text of some words, of some words")
    with pytest.raises(IsADirectoryError, match=r"is a folder, not a file to write: .*corpora"):
        build([tmp_path / "a.txt"], tmp_path / "corpora", tokenizer)
    assert len(list(tmp_path.iterdir())) == 2  # no counts that wait for a resume


def test_what_writers_of_shards_left_is_removed_with_the_folder(tmp_path: Path) -> None:
    for end in ("remove", "close"):
        work = WorkFolder(tmp_path / "work", {})
        work.open(resume=False, restart=False)
        (tmp_path / "work" / ".shard-000003-0123456789abcdef.89abcdef").write_bytes(bytes(9))
        getattr(work, end)()
        assert not (tmp_path / "work").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_the_time_of_a_pipe_means_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("text")
    plan = find_units([tmp_path / "pipe", tmp_path / "file"])

    def identity_and_time() -> tuple[Any, Any]:
        about = provenance(plan, BuildOptions(), Totals(), Problems(), "name")
        assert about is not None
        return identity_of(plan, BuildOptions(), b""), about["newest_input"]

    os.utime(tmp_path / "file", (10, 10))
    before = identity_and_time()
    assert before[1] == "1970-01-01T00:00:10+00:00"
    os.utime(tmp_path / "pipe", (77, 77))
    assert identity_and_time() == before
    os.utime(tmp_path / "file", (11, 11))
    after = identity_and_time()
    assert after[0] != before[0]
    assert after[1] != before[1]


@pytest.mark.parametrize("text", ["1700000000000", "²", "٣", "-1", "1e9", "now", "9" * 5000])
def test_a_date_that_is_none_is_refused_before_anything_is_counted(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    paths = lay_out(tmp_path / "corpus", ["one text"], [0])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH must be a number of seconds since"):
        build(paths, tmp_path / "a.ngc", tokenizer, progress=StopAfter(0))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    build(paths, tmp_path / "a.ngc", tokenizer, BuildOptions(provenance=False))  # it has no date
    for stated in ("0", "1700000000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", stated)
        build(paths, tmp_path / "a.ngc", tokenizer)
        newest = open_statistics(tmp_path / "a.ngc").about["newest_input"]
        assert datetime.fromisoformat(newest).timestamp() == int(stated)


def test_times_beyond_the_calendar_are_no_dates(tmp_path: Path) -> None:
    assert date_of(253402300799) == "9999-12-31T23:59:59+00:00"
    assert date_of(253402300800) is date_of(-(1 << 60)) is date_of(1 << 70) is None
    assert changed_ns(tmp_path / "absent") is changed_ns(tmp_path) is None
