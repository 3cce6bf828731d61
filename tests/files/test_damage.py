"""Statistics files that are damaged: what is found, when, and that the message says where."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.files import SAMPLE, entry_at, leftovers, patched, place, refused, section_table
from helpers.statistics_files import counts_of, entries_of, sources_of
from ngramspec import (
    DynamicFile,
    NgramCache,
    StaticCache,
    create_drafter,
    open_cache,
    open_pool,
    write_lookup_cache,
)
from ngramspec._native.files.entries import EntryReader
from ngramspec._native.files.image import ImageWriter, IndexWriter
from ngramspec.errors import FormatError, FormatVersionError, InputError
from ngramspec.files.cache_file import Origin, about_of, cache_of, check_cache, write_cache
from ngramspec.files.container import Header, is_container, new_container, open_container
from ngramspec.files.statistics import open_statistics
from reference.statistics import key_of

Open = Callable[[Path], Any]


ORDER = sorted([(1,), (2,), (9,)], key=key_of)  # of the 1-grams; (2,) is the one without a list
HEADS: dict[str, tuple[bytes, str, type[Exception]]] = {
    "empty": (b"", "the file is empty, not a statistics file", FormatError),
    "foreign": (
        b"GGUF" + bytes(2000),
        "a GGUF model, not a statistics file of ngramspec",
        FormatError,
    ),
    "a text file of DOS": (
        b"\x89NGRAM\n" + bytes(2000),
        "not a statistics file of ngramspec: it begins with b'\\x89NGRAM\\n",
        FormatError,
    ),
    "short": (b"\x89NGR", "expected 1024 bytes of head, found 4", FormatError),
    "magic only": (b"\x89NGRAM\r\n" + bytes(9), "1024 bytes of head, found 17", FormatError),
}
OPENERS: dict[str, Open] = {
    "cache": open_cache,
    "pool": open_pool,
    "container": open_container,
    "static": lambda path: create_drafter("ngram-cache", static=path),
    "pool of a drafter": lambda path: create_drafter("ngram-mod", pool=path),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", HEADS)
def test_what_is_not_a_statistics_file_is_refused(tmp_path: Path, name: str, opener: str) -> None:
    content, message, error = HEADS[name]
    path = tmp_path / "file.ngc"
    path.write_bytes(content)
    refused(path, lambda: OPENERS[opener](path), message, error)


@pytest.mark.parametrize("opener", OPENERS)
def test_directories_are_refused_and_missing_files_are_oserrors(
    tmp_path: Path, opener: str
) -> None:
    folder = tmp_path / "folder.ngc"
    folder.mkdir()
    refused(folder, lambda: OPENERS[opener](folder), "found a directory")
    assert not is_container(folder)
    missing = tmp_path / "none.ngc"
    if opener != "pool of a drafter":  # makes it
        refused(missing, lambda: OPENERS[opener](missing), "No such file", FileNotFoundError)
        assert not missing.exists()


HEADER_PATCHES: dict[str, tuple[int, str, int, str, type[Exception]]] = {
    "newer": (8, "<H", 2, "version 2 at offset 8 is newer than 1: update", FormatVersionError),
    "newest": (8, "<H", 65535, "version 65535 at offset 8", FormatVersionError),
    "version 0": (8, "<H", 0, "kind 1, version 0 or", FormatError),
    "kind 0": (10, "<H", 0, "kind 0, version 1", FormatError),
    "kind 6": (10, "<H", 6, "kind 6, version 1", FormatError),
    "wrong kind": (10, "<H", 2, "of kind ngram-cache, found hash-pool", FormatError),
    "29 sections": (12, "<I", 29, "29 sections: unknown", FormatError),
    "huge number of sections": (12, "<I", 2**32 - 1, "4294967295 sections", FormatError),
    "fewer sections": (12, "<I", 6, "expected the last section to end the file", FormatError),
    "no sections": (12, "<I", 0, "expected the last section to end the file", FormatError),
    "more sections": (12, "<I", 8, "section 7 at offset 352: expected an offset from", FormatError),
    "another size": (16, "<Q", 7, "expected 7 bytes (offset 16), found", FormatError),
    "huge size": (16, "<Q", 2**63, "expected 9223372036854775808 bytes", FormatError),
    "no vocabulary": (48, "<I", 0, "vocab_size must be in 1..2097152, got 0", FormatError),
    "huge vocabulary": (48, "<I", 2**21 + 1, "vocab_size must be in 1..2097152", FormatError),
}


@pytest.mark.parametrize("name", HEADER_PATCHES)
def test_a_head_that_cannot_be_right_is_refused(cache_path: Path, name: str) -> None:
    offset, code, value, message, error = HEADER_PATCHES[name]
    patched(cache_path, (offset, code, value))
    refused(cache_path, lambda: open_cache(cache_path), message, error)


def test_huge_counts_in_a_head_cost_nothing(cache_path: Path) -> None:
    patched(cache_path, (56, "<Q", 2**64 - 1), (64, "<Q", 2**64 - 1))
    assert len(open_cache(cache_path)) == 6
    assert create_drafter("ngram-cache", static=cache_path).sources == ("ngram-cache",)


@pytest.mark.parametrize("field", ["offset", "size"])
@pytest.mark.parametrize("value", [0, 1, 2**32, 2**63, 2**64 - 64, 2**64 - 1])
@pytest.mark.parametrize("section", ["records1", "lists1", "about"])
def test_a_section_out_of_its_place_is_refused(
    cache_path: Path, section: str, value: int, field: str
) -> None:
    at = entry_at(cache_path, section) + (8 if field == "offset" else 16)
    patched(cache_path, (at, "<Q", value))
    refused(cache_path, lambda: open_cache(cache_path, verify=False), "expected")


def test_any_changed_byte_of_a_checked_file_is_refused(cache_path: Path) -> None:
    whole = cache_path.read_bytes()
    for at in range(len(whole)):
        cache_path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(FormatError):
            open_cache(cache_path)
    cache_path.write_bytes(whole)
    check_cache(open_cache(cache_path))


def test_a_checksum_names_section_offset_and_both_values(cache_path: Path) -> None:
    data = bytearray(cache_path.read_bytes())
    at = place(cache_path, "records4", 0)
    data[at] ^= 1
    cache_path.write_bytes(data)
    message = f"section 'records4' at offset {at}: expected checksum "
    refused(cache_path, lambda: open_cache(cache_path), message)
    refused(cache_path, lambda: open_container(cache_path, verify=True), message)
    cache = open_cache(cache_path, verify=False)
    assert cache.followers([1]) == {2: 3, 3: 1}
    data[200] ^= 1
    cache_path.write_bytes(data)
    refused(cache_path, lambda: open_cache(cache_path, verify=False), "of the head at offset 24")


def test_something_between_two_sections_is_refused(cache_path: Path) -> None:
    offset, size = section_table(cache_path.read_bytes())["records1"]
    patched(cache_path, (offset + size, "<B", 1))
    refused(cache_path, lambda: open_cache(cache_path), f"expected zeros at offset {offset + size}")
    assert len(open_cache(cache_path, verify=False)) == 6


def test_missing_and_odd_sections_are_refused(cache_path: Path) -> None:
    whole = cache_path.read_bytes()
    for name, message in (("lists1", "a section 'lists1'"), ("index4", "a section 'index4'")):
        patched(cache_path, (entry_at(cache_path, name), "<8s", b"other"))
        refused(cache_path, lambda: open_cache(cache_path), f"expected {message}, found [")
        cache_path.write_bytes(whole)
    for name, cut, message in (
        ("records1", 1, "expected a multiple of 4 bytes, found 35 bytes"),
        ("records4", 4, "are not a whole number of records of 4-grams"),
        ("index1", 4, "an index must have 2**k + 1 words, got 1"),
    ):
        size = section_table(whole)[name][1]
        patched(cache_path, (entry_at(cache_path, name) + 16, "<Q", size - cut))
        refused(cache_path, lambda: open_cache(cache_path, verify=False), message)
        cache_path.write_bytes(whole)


LISTED, ALONE = 3 * (ORDER[0] == (2,)), 3 * ORDER.index((2,))  # the first words of records
DAMAGES: dict[str, tuple[str, int, int, str]] = {
    "key": ("records1", 1, 0xFFFFFFFF, "token ids below the vocabulary's"),
    "oldest token": ("records4", 2, 2**31, "a token id"),
    "oldest token above the vocabulary": ("records4", 2, 11, "token ids below the vocabulary's"),
    "follower": ("records4", 3, 10, "a follower below the vocabulary's size"),
    "no count": ("records4", 4, 0, "a count in 1..2147483647"),
    "huge count": ("records1", ALONE + 2, 2**31, "a count in 1..2147483647"),
    "place": ("records1", LISTED + 2, 1, "the place after the previous list"),
    "huge place": ("records1", LISTED + 2, 2**32 - 1, "the place after the previous list"),
    "one follower in a list": ("lists1", 0, 1, "a list of 2 followers or more"),
    "endless list": ("lists1", 0, 2**32 - 1, "a list within the followers section"),
    "long list": ("lists1", 0, 3, "followers that ascend"),
    "total": ("lists1", 1, 7, "the total of the followers' counts"),
    "count of the best": ("lists1", 2, 5, "the most frequent follower"),
    "list's follower": ("lists1", 3, 10, "a follower below the vocabulary's size"),
    "list's order": ("lists1", 5, 0, "followers that ascend"),
    "list's count": ("lists1", 4, 0, "a follower's count in 1..2147483647"),
    "huge list's count": ("lists1", 4, 2**31, "a follower's count in 1..2147483647"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_or_list_is_found_by_reading(cache_path: Path, name: str) -> None:
    section, word, value, message = DAMAGES[name]
    size, start = int(section[-1]), place(cache_path, f"records{section[-1]}", 0)
    record = (ALONE if word == ALONE + 2 else LISTED) if size == 1 and name != "key" else 0
    patched(cache_path, (place(cache_path, section, word), "<I", value))
    cache = open_cache(cache_path)
    refusal = f"{size}-gram record at offset {start + 4 * record}: expected {message}"
    refused(cache_path, lambda: check_cache(cache), refusal)
    with pytest.raises(FormatError):
        DynamicFile(cache_path)
    with pytest.raises(FormatError):
        write_cache(cache_path, {size: EntryReader(cache, size)}, Origin())
    assert leftovers(cache_path.parent, cache_path.name) == []


@pytest.mark.parametrize("size", [1, 4])
def test_records_out_of_order_are_found(cache_path: Path, size: int) -> None:
    start, words = place(cache_path, f"records{size}", 0), {1: 3, 4: 5}[size]
    data = cache_path.read_bytes()
    first, second = (data[start + 4 * words * i :][: 4 * words] for i in (0, 1))
    for content in (second + first, first + first):
        patched(cache_path, (start, f"<{len(content)}s", content))
        cache = open_cache(cache_path)
        with pytest.raises(FormatError, match=f"{size}-gram record at offset "):
            check_cache(cache)
    at = start + 4 * words
    cache = open_cache(cache_path)
    if size == 4:
        message = f"record at offset {at}: expected a record that sorts after the previous one"
        refused(cache_path, lambda: check_cache(cache), message)


def test_stray_lists_and_a_wrong_index_are_found(cache_path: Path) -> None:
    whole = cache_path.read_bytes()
    patched(cache_path, (place(cache_path, "index1", 0), "<I", 1))
    refused(
        cache_path, lambda: check_cache(open_cache(cache_path)),
        "index of 1-grams: word 0 does not match the records",
    )  # fmt: skip
    cache_path.write_bytes(whole)
    cache = open_cache(cache_path)
    records, lists, index = (np.array(words) for words in cache.sections(1) or ())
    longer = StaticCache({1: (records, np.append(lists, np.uint32(1)), index)}, 10, "here")
    with pytest.raises(FormatError, match=r"here: followers of 1-grams: .* found 1"):
        check_cache(longer)
    larger = StaticCache({1: (records, lists, np.repeat(index, [1, 4]))}, 10, "here")
    with pytest.raises(FormatError, match="here: index of 1-grams: expected 2 words, found 5"):
        check_cache(larger)


def test_provenance_must_be_an_object(cache_path: Path) -> None:
    assert about_of(open_container(cache_path)) == {"corpus": ["a"]}
    offset, size = section_table(cache_path.read_bytes())["about"]
    for text in (b"{", b"[1]", b"\xff"):
        patched(cache_path, (offset, f"<{size}s", text.ljust(size)))
        message = f"section 'about' at offset {offset}: expected a JSON object"
        refused(cache_path, lambda: about_of(open_container(cache_path)), message)
        assert len(cache_of(open_container(cache_path))) == 6
    write_cache(cache_path, sources_of(SAMPLE), Origin())
    assert about_of(open_container(cache_path)) == {}
    assert json.loads(json.dumps(about_of(open_container(cache_path)))) == {}


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"corpus": 5}, "expected 'corpus' to be a list of names"),
        ({"corpus": ["a", 5]}, "expected 'corpus' to be a list of names"),
        ({"merged": 5}, "expected 'merged' to be a list of objects"),
        ({"merged": [{"merged": [{"corpus": 5}]}]}, "expected 'corpus' to be a list of names"),
        ({"pruned": [5]}, "expected 'pruned' to be a list of objects"),
        ({"corpus": [], "options": []}, "expected 'options' to be an object"),
        ({"corpus": [], "documents": "9"}, "expected 'documents' to be a number"),
        ({"corpus": [], "tokens": None}, "expected 'tokens' to be a number"),
        ({"corpus": [], "more_files": {}}, "expected 'more_files' to be a number"),
        ('{"a": ' + "[" * 500 + "]" * 500 + "}", "expected at most 400 levels"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "expected a JSON object"),
    ],
)
def test_a_provenance_that_commands_cannot_show_is_refused(
    tmp_path: Path, about: Any, expected: str
) -> None:
    path = tmp_path / "a.ngc"
    data = (about if isinstance(about, str) else json.dumps(about)).encode()
    with new_container(path) as writer:
        writer.add("about", data)
        writer.finish(Header("ngram-cache", None, 1))
    refused(path, lambda: about_of(open_container(path)), expected)
    refused(path, open_statistics(path).check, expected)
    if not isinstance(about, str):
        with pytest.raises(InputError, match=expected):
            write_cache(path, sources_of(SAMPLE), Origin(about=about))


@pytest.mark.parametrize("kind", ["cache", "pool"])
def test_every_prefix_of_a_file_is_refused(cache_path: Path, pool_path: Path, kind: str) -> None:
    path = {"cache": cache_path, "pool": pool_path}[kind]
    whole = path.read_bytes()
    calls = {
        "cache": [open_cache, DynamicFile, lambda p: create_drafter("ngram-cache", static=p)],
        "pool": [open_pool],
    }[kind]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for call in calls:
            with pytest.raises(FormatError):
                call(path)
    path.write_bytes(whole + b"\0")
    for call in calls:
        refused(path, lambda call=call: call(path), f"expected {len(whole)} bytes (offset 16)")


def test_every_prefix_of_a_lookup_cache_between_records_is_refused(tmp_path: Path) -> None:
    cache = NgramCache()
    for size, pairs in SAMPLE.items():
        cache.add_entries(entries_of(pairs, size), size)
    path = tmp_path / "lookup.bin"
    write_lookup_cache(cache, path)
    whole = path.read_bytes()
    words, ends = np.frombuffer(whole, "<i4").tolist(), {0}
    while max(ends) < len(whole):
        ends.add(max(ends) + 20 + 8 * words[max(ends) // 4 + 4])
    for length in sorted(set(range(len(whole))) - ends):
        path.write_bytes(whole[:length])
        for call in (DynamicFile, lambda p: create_drafter("ngram-cache", static=p)):
            refused(path, lambda call=call: call(path), "at offset")


def test_a_list_that_changes_while_it_is_read_is_read_as_it_was() -> None:
    """As one of a large, mapped file may: its length was checked and counts from then on."""
    counts = Counter({(1, token): 1 + token % 7 for token in range(4000)})
    image = ImageWriter(1)
    image.feed(entries_of(counts, 1))
    image.finish()
    records, lists = image.take()
    index = IndexWriter(1, image.num_ngrams)
    index.feed(records)
    cache = StaticCache({1: (records, lists, index.finish())}, 4000)
    reader = EntryReader(cache, 1)
    parts = [reader.read(1024)]
    before, lists[0] = int(lists[0]), 1 << 30  # followers of the list
    records[:] = 0  # now of no list, with a count that is none
    while len(part := reader.read(1024)):
        parts.append(part)
    assert before == 4000
    assert counts_of(np.concatenate(parts), 1) == counts


def test_a_file_never_drafts_a_token_beyond_its_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "file.ngc"
    write_cache(path, sources_of({1: {(2, 19): 1}, 2: {(1, 2, 19): 1}}), Origin(None, 20))
    assert open_cache(path).followers([1, 2]) == {19: 1}
    patched(path, (48, "<I", 19))  # the token is the first one beyond
    assert open_cache(path).followers([1, 2]) == {}
    drafter = create_drafter("ngram-cache", static=path, static_min_sample=1)
    drafter.begin(0, [1, 2])
    assert drafter.propose(0, 1).tolist() == []
