"""Files of kind successors: what recycle learned, kept from one run to the next."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.files import OTHERS, finished, is_private
from helpers.logits import teach
from helpers.statistics_files import open_successors
from ngramspec import SuccessorPool, create_drafter
from ngramspec.errors import FormatError, InputError, VocabMismatchError
from ngramspec.files.cache_file import Origin, about_of
from ngramspec.files.container import Header, new_container, open_container
from ngramspec.files.describe import describe
from ngramspec.files.dynamic_file import Autosave
from ngramspec.files.statistics import open_statistics
from ngramspec.files.successor_file import SuccessorFile, write_successors

FORKED = """
import os, sys
from ngramspec.files.cache_file import Origin
from ngramspec.files.successor_file import SuccessorFile
file = SuccessorFile(sys.argv[1], 64, 8, Origin())
with file._saving:  # as another thread has it while it writes
    child = os.fork()
    if child == 0:
        file.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("ended")
"""
KNOWN = Origin(b"0123456789abcdef", 1000, {"made": "by a test"})
PRINTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=120)


def filled(pairs: list[tuple[int, int]], top: int = 8) -> SuccessorPool:
    pool = SuccessorPool(64, top)
    drafter = create_drafter("recycle", pool=pool)
    for before, last in pairs:
        drafter.begin(0, [before, last])
        row = np.zeros((1, 40), np.float32)
        row[0, [last, before, 35]] = 4 + last % 3, 3, 2.5
        drafter.observe_logits(0, row)
    return pool


@given(pairs=PRINTS, top=st.integers(1, 16))
def test_a_pool_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]], top: int
) -> None:
    folder = tmp_path_factory.mktemp("pools")
    pool = filled(pairs, top)
    header = write_successors(folder / "one", pool, KNOWN)
    read = open_successors(folder / "one", fingerprint=KNOWN.fingerprint)
    assert (read.capacity, read.top, read.num_entries) == (pool.capacity, top, pool.num_entries)
    assert read.entries().tolist() == pool.entries().tolist()
    for before, last in pairs:
        for context in ([last], [before, last]):
            for mine, other in zip(pool.successors(context), read.successors(context), strict=True):
                assert mine.tolist() == other.tolist()
    assert (header.num_ngrams, header.ngram_min, header.ngram_max) == (pool.num_entries, 1, 2)
    write_successors(folder / "two", read, KNOWN)
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()
    assert read.check() == ""


def test_what_one_run_learned_the_next_one_drafts(tmp_path: Path) -> None:
    path = tmp_path / "model.successors"
    for expected in ([], [4, 5, 6]):
        drafter = create_drafter("recycle", pool=path, save_interval=0)
        drafter.begin(0, [2, 3])
        assert drafter.propose(0, 3).tolist() == expected
        drafter.begin(0, list(range(10)))
        teach(drafter)
        assert path.exists() == bool(expected)  # it is saved when the drafter goes
        del drafter
        assert path.exists()
        assert is_private(path)


def observe(file: SuccessorFile) -> None:
    """Let something be observed: that 41 follows 40, and 42 follows 41."""
    drafter = create_drafter("recycle", pool=file.pool)
    drafter.begin(0, [40, 41, 42])
    teach(drafter)


def test_a_file_is_saved_only_if_something_was_observed(tmp_path: Path) -> None:
    file = SuccessorFile(tmp_path / "pool", 64, 8, Origin())
    file.close()
    assert not file.path.exists()
    observe(file)
    file.close()
    before = file.path.stat().st_mtime_ns
    file.close()
    assert file.path.stat().st_mtime_ns == before
    file.failed(OSError("disk"))
    assert file.save_error == "OSError: disk"


def test_a_file_goes_on_stating_tokenizer_and_provenance(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    write_successors(path, filled([(1, 2)]), KNOWN)
    file = SuccessorFile(path, 64, 8, Origin())  # whose maker knows nothing of the tokenizer
    observe(file)
    file.close()
    container = open_container(path)
    assert container.header.fingerprint == KNOWN.fingerprint
    assert container.header.vocab_size == 1000
    assert about_of(container) == KNOWN.about
    assert open_successors(path).successors([40])[0].tolist() == [41]


@pytest.mark.parametrize(("stated", "vocab_size"), [(KNOWN, 1000), (Origin(), 36)])
def test_a_file_of_a_larger_vocabulary_can_be_saved(
    tmp_path: Path, stated: Origin, vocab_size: int
) -> None:
    path = tmp_path / "pool"
    write_successors(path, filled([(1, 2)]), stated)  # 35 follows 2
    file = SuccessorFile(path, 64, 8, Origin(OTHERS, 20), any_tokenizer=True)
    drafter = create_drafter("recycle", pool=file.pool)
    drafter.begin(0, [5, 6, 7])
    teach(drafter)
    file.close()
    header = open_container(path).header
    assert (header.fingerprint, header.vocab_size) == (OTHERS, vocab_size)
    assert 35 in open_successors(path).successors([2])[0]
    assert open_successors(path).successors([5])[0].tolist() == [6]


def test_a_save_that_fails_is_noted_and_tried_again(tmp_path: Path) -> None:
    file = SuccessorFile(tmp_path / "folder" / "pool", 64, 8, Origin(None, 50))
    observe(file)
    with pytest.raises(OSError, match="folder") as caught:
        file.close()
    assert file.save_error == f"{type(caught.value).__name__}: {caught.value}"
    file.path.parent.mkdir()
    Autosave(file, 300).stop()
    assert (file.save_error, file.path.exists()) == ("", True)


def test_a_token_that_the_tokenizer_does_not_have_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    write_successors(path, filled([]), Origin(KNOWN.fingerprint, 42))
    before = path.read_bytes()
    file = SuccessorFile(path, 64, 8, Origin())
    observe(file)
    for _ in range(2):
        with pytest.raises(InputError, match="token id 42 is not below 42"):
            file.close()
    assert file.save_error == "InputError: token id 42 is not below 42"
    assert path.read_bytes() == before


def test_a_file_of_another_kind_or_target_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    write_successors(path, filled([(1, 2)]), KNOWN)
    with pytest.raises(VocabMismatchError, match="another tokenizer"):
        open_successors(path, fingerprint=b"f" * 16)
    open_successors(path, fingerprint=b"f" * 16, any_tokenizer=True)
    with pytest.raises(InputError, match="keeps 8 successors, top is 4"):
        create_drafter("recycle", pool=path, top=4)
    with pytest.raises(InputError, match="token id 35 is not below 10"):
        write_successors(path, filled([(1, 2)]), Origin(None, 10))
    with new_container(tmp_path / "other") as writer:
        writer.add("cells", b"")
        writer.finish(Header("hash-pool"))
    with pytest.raises(FormatError, match="expected a file of kind successors, found hash-pool"):
        open_successors(tmp_path / "other")
    for wrong in (7, 1.5, object()):
        with pytest.raises(InputError, match="pool must be a SuccessorPool or a path"):
            create_drafter("recycle", pool=wrong)


def written(path: Path, shape: bytes, entries: bytes) -> Path:
    with new_container(path) as writer:
        writer.add("shape", shape)
        writer.add("entries", entries)
        writer.finish(Header("successors", vocab_size=50))
    return path


SHAPE = struct.pack("<IIQ", 2, 0, 64)
ROW = (0xFFFFFFFF, 7, 2 | 1 << 8, 3, 4, 200 << 16 | 300)


@pytest.mark.parametrize(
    ("shape", "row", "message"),
    [
        (SHAPE[:-1], ROW, "expected 16 bytes, found 15"),
        (struct.pack("<IIQ", 17, 0, 64), ROW, "impossible"),
        (struct.pack("<IIQ", 2, 0, 1 << 40), ROW, "impossible"),
        (SHAPE, ROW[:-1], "expected a multiple of 24"),
        (SHAPE, (0xFFFFFFFE, *ROW[1:]), "row 0 is no context"),
        (SHAPE, (*ROW[:1], 1 << 31, *ROW[2:]), "row 0 is no context"),
        (SHAPE, (*ROW[:2], 3 | 1 << 8, *ROW[3:]), "row 0 is no context"),
        (SHAPE, (*ROW[:2], 2 | 16 << 8, *ROW[3:]), "row 0 is no context"),
        (SHAPE, (*ROW[:3], 1 << 31, *ROW[4:]), "row 0 is no context"),
        (SHAPE, (*ROW[:4], 3, *ROW[5:]), "row 0 is no context"),
        (SHAPE, (*ROW[:5], 300 << 16 | 200), "row 0 is no context"),
        (SHAPE, (*ROW[:5], 200), "row 0 is no context"),
        (SHAPE, (*ROW[:3], 60, *ROW[4:]), "expected token ids below 50, found 60"),
    ],
)
def test_impossible_contents_are_refused(
    tmp_path: Path, shape: bytes, row: tuple[int, ...], message: str
) -> None:
    pool = open_successors(written(tmp_path / "sound", SHAPE, np.array(ROW, "<u4").tobytes()))
    assert pool.successors([7])[0].tolist() == [3, 4]
    path = written(tmp_path / "damaged", shape, np.array(row, "<u4").tobytes())
    with pytest.raises(FormatError, match=message):
        open_successors(path)
    with pytest.raises(FormatError, match=message):
        open_statistics(path).check()


def test_it_is_described_but_has_no_counts(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    write_successors(path, filled([(1, 2), (3, 2)]), KNOWN)
    statistics = open_statistics(path, verify=True)
    statistics.check()
    facts = describe(statistics)
    assert facts["kind"] == "successors"
    held = facts["successors"]
    assert (held["num_tokens"], held["num_pairs"], held["top"]) == (1, 2, 8)
    assert held["num_successors"] == sum((found_row & 0xFF) for found_row in pool_counts(path))
    for task in ("merge", "prune"):
        with pytest.raises(InputError, match=f"kind successors: it has no counts to {task}"):
            statistics.need_ngrams(task)


def pool_counts(path: Path) -> list[int]:
    return [int(row[2]) for row in open_successors(path).entries()]


def test_how_often_a_context_was_seen_is_kept_when_it_is_worn_down(tmp_path: Path) -> None:
    pool = filled([(token % 40, token % 37) for token in range(400)])
    used = pool.entries()[:, 2] >> 8
    assert 0 in used
    write_successors(tmp_path / "pool", pool, Origin())
    assert open_successors(tmp_path / "pool").entries().tolist() == pool.entries().tolist()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_that_began_while_the_file_was_saved_ends(tmp_path: Path) -> None:
    assert finished(FORKED, tmp_path / "pool") == "ended\n"
