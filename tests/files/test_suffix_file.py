"""Files of kind suffix: what is written is drafted, the same bytes each time; damage is found."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.files import OTHERS, OURS, leftovers, patched, place, refused, section_table
from ngramspec import create_drafter, open_cache, open_suffix_index
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.files.suffix_image import SuffixImage
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec.errors import FormatError, InputError, VocabMismatchError
from ngramspec.files.cache_file import Origin, about_of
from ngramspec.files.container import open_container
from ngramspec.files.suffix_file import check_index, write_suffix_index
from ngramspec.models import confidence_weights
from ngramspec.text.tokenizers import Fingerprint


def words(seed: int, length: int = 200) -> np.ndarray:
    """Random tokens; hardly any of them comes twice."""
    return np.random.default_rng(seed).integers(0, 100_000, length, dtype=np.int32)


def joined(*texts: Any) -> np.ndarray:
    return int32([token for text in texts for token in [*text, -1]])


TEXTS = [words(seed) for seed in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of four texts."""
    file = tmp_path / "corpus.ngx"
    write_suffix_index(file, joined(*TEXTS), Origin(OURS, 100_000, {"corpus": ["a"]}))
    return file


def drafted(prompt: np.ndarray, num: int = 16, **params: Any) -> list[int]:
    drafter = create_drafter("suffix", **params)
    drafter.begin(0, prompt)
    return drafter.propose(0, num).tolist()


@pytest.mark.parametrize("share", [True, False])
def test_what_a_file_holds_is_drafted(path: Path, share: bool) -> None:
    for text in TEXTS:
        assert drafted(text[50:60], static=path, share=share) == text[60:76].tolist()
        assert drafted(text[50:52], 1, static=str(path), share=share) == [text[52]]
        assert drafted(text[:1], 1, static=path) == [text[1]]
    assert drafted(TEXTS[0][50:60]) == []


def test_drafts_end_where_a_text_does(path: Path) -> None:
    assert drafted(TEXTS[1][180:190], 64, static=path) == TEXTS[1][190:].tolist()
    assert drafted(TEXTS[1][180:], 64, static=path) == []


def test_an_edited_copy_is_taken_up_again(path: Path) -> None:
    source = SuffixSource(1, None, 8, 0.0, True, confidence_weights(), open_suffix_index(path))
    drafter, text = Drafter([source]), TEXTS[2]
    drafter.begin(0, text[:40])
    drafter.propose(0, 8)
    drafter.accept(0, [*text[40:44], 77], 4)
    assert drafter.propose(0, 4).tolist() == text[45:49].tolist()  # in spite of the last token
    assert source.index is not None
    assert source.index.num_texts == 4


def test_one_index_serves_many_drafters_and_says_what_it_holds(path: Path) -> None:
    index = open_suffix_index(path)
    assert (index.num_tokens, index.num_texts, index.vocab_size) == (800, 4, 100_000)
    assert (index.name, index.fingerprint) == (str(path), OURS)
    assert repr(index) == f"SuffixIndex({str(path)!r}, num_tokens=800)"
    sections = section_table(path.read_bytes())
    assert index.nbytes == sections["tokens"][1] + sections["lines"][1]
    path.unlink()  # what is mapped stays
    for _ in range(2):
        assert drafted(TEXTS[3][50:60], static=index) == TEXTS[3][60:76].tolist()


def test_the_head_tells_what_the_file_is_for(path: Path) -> None:
    container = open_container(path)
    header = container.header
    assert (header.kind, header.ngram_min, header.ngram_max) == ("suffix", 1, 16)
    assert (header.num_pairs, header.vocab_size, header.fingerprint) == (800, 100_000, OURS)
    lines = np.frombuffer(container.view("lines"), "<u4")
    assert header.num_ngrams == np.count_nonzero(lines)
    assert about_of(container) == {"corpus": ["a"]}
    check_index(container)


def test_equal_texts_give_equal_bytes_whatever_memory_there_is(tmp_path: Path) -> None:
    tokens = joined(*[words(seed, 3000) % 500 for seed in range(5)])
    contents = []
    for memory in (2 << 30, 1 << 16):
        write_suffix_index(tmp_path / "x.ngx", tokens, Origin(OURS), memory=memory)
        contents.append((tmp_path / "x.ngx").read_bytes())
    assert contents[0] == contents[1]
    assert len(contents[0]) < 40 * len(tokens)


@pytest.mark.parametrize("max_bytes", [65536, 100_000, 150_000])
def test_a_file_keeps_its_size_and_what_comes_often(tmp_path: Path, max_bytes: int) -> None:
    often = words(0, 1500)
    tokens = joined(*[words(seed, 2000) for seed in range(1, 9)], *[[*often, 1], [*often, 2]])
    path = tmp_path / "x.ngx"
    write_suffix_index(path, tokens, Origin(OURS), max_bytes=max_bytes)
    assert max_bytes * 0.7 < path.stat().st_size <= max_bytes
    check_index(open_container(path))
    assert open_suffix_index(path).num_tokens < len(tokens) / 2 + max_bytes / 20
    assert drafted(often[1000:1010], static=path) == often[1010:1026].tolist()


def test_a_file_that_need_not_lose_text_loses_lines_only(tmp_path: Path) -> None:
    tokens, path = joined(*[words(seed, 2000) for seed in range(4)]), tmp_path / "x.ngx"
    write_suffix_index(path, tokens, Origin(OURS))
    whole = path.stat().st_size
    write_suffix_index(path, tokens, Origin(OURS), max_bytes=whole - 9000)
    assert whole - 9300 < path.stat().st_size <= whole - 9000
    assert open_suffix_index(path).num_tokens == 8000
    write_suffix_index(path, tokens, Origin(OURS), max_bytes=whole + 999)
    assert path.stat().st_size == whole


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (int32([]), {}, "an index holds 1 to 536,870,910 tokens, got 0"),
        (int32([[1], [2]]), {}, "tokens must be an int32 array"),
        (np.array([1, -1]), {}, "tokens must be an int32 array"),
        (int32([7, -1]), {"origin": Origin(None, 7)}, "token id 7 is not below 7"),
        (int32([7, -1]), {"max_bytes": 1300}, "max_bytes leaves 68 bytes, too few for any text"),
    ],
)
def test_what_makes_no_index_is_refused(
    tmp_path: Path, tokens: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        write_suffix_index(tmp_path / "x.ngx", tokens, **{"origin": Origin(), **options})
    assert leftovers(tmp_path) == []


def test_files_of_another_tokenizer_are_refused(path: Path) -> None:
    refused(path, lambda: open_suffix_index(path, fingerprint=OTHERS), "", VocabMismatchError)
    open_suffix_index(path, fingerprint=OTHERS, any_tokenizer=True)
    open_suffix_index(path, fingerprint=OURS)
    other = Fingerprint(OTHERS, 100_000)
    with pytest.raises(VocabMismatchError, match="built with another tokenizer"):
        create_drafter("suffix", static=path, tokenizer=other)
    create_drafter("suffix", static=path, tokenizer=other, any_tokenizer=True)


def test_other_kinds_of_files_and_values_are_refused(path: Path) -> None:
    refused(path, lambda: open_cache(path), "of kind ngram-cache, found suffix")
    with pytest.raises(InputError, match="static must be a SuffixIndex or a path, got int"):
        create_drafter("suffix", static=3)
    with pytest.raises(FileNotFoundError):
        create_drafter("suffix", static=path.parent / "none.ngx")


Damage = tuple[Callable[[Path], int], str, int | bytes, str]
SHAPES: dict[str, Damage] = {
    "too few bits": (lambda p: place(p, "shape", 0), "<I", 24, "position_bits must be in 25..29"),
    "too many bits": (lambda p: place(p, "shape", 0), "<I", 2**32 - 1, "25..29"),
    "texts": (lambda p: place(p, "shape", 2), "<Q", 2**64 - 1, "18446744073709551615 texts in 804"),
    "no vocabulary": (lambda p: 48, "<I", 0, "vocab_size in 1..2**31 - 1"),
    "huge vocabulary": (lambda p: 48, "<I", 2**31, "vocab_size in 1..2**31 - 1"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_impossible_shapes_are_refused(path: Path, name: str) -> None:
    offset, code, value, message = SHAPES[name]
    patched(path, (offset(path), code, value))
    refused(path, lambda: open_suffix_index(path), message)


WORDS: dict[str, Damage] = {
    "token": (lambda p: place(p, "tokens", 5), "<i", 100_000, "in 'tokens'"),
    "border": (lambda p: place(p, "tokens", 5), "<i", -2, "in 'tokens'"),
    "one text more": (lambda p: place(p, "tokens", 5), "<i", -1, "4 texts, found 5 borders"),
    "no end": (lambda p: place(p, "tokens", 803), "<i", 1, "4 texts, found 3 borders"),
    "position": (lambda p: place(p, "lines", 0), "<I", 805, "in 'lines'"),
    "no position": (lambda p: place(p, "lines", 0), "<I", 1 << 25, "in 'lines'"),
    "position of a border": (lambda p: place(p, "lines", 0), "<I", 201, "in 'lines'"),
}


@pytest.mark.parametrize("name", WORDS)
def test_impossible_words_are_found_on_demand_and_harmless(path: Path, name: str) -> None:
    offset, code, value, message = WORDS[name]
    patched(path, (offset(path), code, value))
    refused(path, lambda: check_index(open_container(path)), message)
    for text in TEXTS:
        for at in range(1, 190, 9):
            draft = drafted(text[max(0, at - 9) : at], 64, static=path)
            assert all(0 <= token < 100_000 for token in draft)


def test_every_flipped_byte_is_noticed_when_a_small_file_is_opened(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        refused(path, lambda: open_suffix_index(path), "")
    for length in (0, 500, 1024, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path, lambda: open_suffix_index(path), "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": int32([])}, "got shape (1, 16) and 0"),
        ({"tokens": np.zeros(3)}, "tokens must be int32 of shape"),
        ({"lines": np.zeros((1, 15), np.uint32)}, "got shape (1, 15) and 2"),
        ({"lines": np.zeros((0, 16), np.uint32)}, "got shape (0, 16) and 2"),
        ({"position_bits": 30}, "position_bits must be in 25..29"),
        ({"vocab_size": 0}, "got 25 and 0"),
    ],
)
def test_an_index_checks_its_arrays(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "tokens": int32([1, -1]), "lines": np.zeros((1, 16), np.uint32), "position_bits": 25,
        "vocab_size": 9,
    }  # fmt: skip
    assert SuffixIndex(**fields).num_tokens == 2
    with pytest.raises(InputError) as caught:
        SuffixIndex(**{**fields, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize(("num", "first", "stop"), [(0, 0, 0), (3, 2, 1), (3, 0, 4), (2**32, 0, 1)])
def test_an_image_checks_which_lines_are_wanted(num: int, first: int, stop: int) -> None:
    image = SuffixImage(int32([1, 2, -1]))
    with pytest.raises(InputError, match="expected first <= stop <= num_lines"):
        image.lines(num, first, stop)
    with pytest.raises(InputError, match="window must be at least 1, got 0"):
        image.repeats(0)
    assert image.lines(3, 1, 1).shape == (0, 16)


def test_arrays_that_are_read_in_place_cannot_move() -> None:
    """A buffer that is viewed refuses to change its size."""
    tokens = array("i", [1, 2, 3, 4, -1])
    image = SuffixImage(tokens)
    with pytest.raises(BufferError):
        tokens.append(5)
    lines = memoryview(bytearray(image.lines(2, 0, 2).tobytes()))
    memory = lines.obj
    index = SuffixIndex(tokens, lines.cast("I", (2, 16)), image.position_bits, 10)
    del image, lines
    for held, more in ((tokens, [5]), (memory, b"1234")):
        with pytest.raises(BufferError):
            held.extend(more)
    assert index.num_tokens == 5
    del index
    tokens.extend([5])
    memory.extend(b"1234")


def test_a_missing_section_is_named(path: Path) -> None:
    at = 128 + 32 * [*section_table(path.read_bytes())].index("lines")
    patched(path, (at, "8s", b"other"))
    refused(path, lambda: open_suffix_index(path), "expected a section 'lines'", FormatError)


@pytest.mark.parametrize("position", [2, 3, 1000, 2**29 - 2])
def test_positions_beyond_the_tokens_are_passed_over(position: int) -> None:
    # One line with all tags twice: every lookup finds the first or the impossible position.
    tags = np.arange(8, dtype=np.uint32) << 29
    line = np.concatenate([tags | np.uint32(position + 1), tags | np.uint32(2)])
    index = SuffixIndex(int32([5, 7]), line.reshape(1, 16), 29, 9)
    assert drafted(int32([5]), 8, static=index) == [7]
    assert drafted(int32([1, 5]), 8, static=index, share=False) == [7]
