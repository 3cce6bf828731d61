"""Statistics files from Python: opened, checked, surveyed, merged, pruned, converted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from helpers.statistics_files import Chunks, entries_of, sizes_of, sources_of
from ngramspec import NgramCache, read_lookup_cache, write_lookup_cache
from ngramspec.errors import FormatError, InputError, VocabMismatchError
from ngramspec.files.cache_file import Origin, write_cache
from ngramspec.files.convert import from_lookup_cache, to_lookup_cache
from ngramspec.files.describe import describe, survey
from ngramspec.files.entries import Entries
from ngramspec.files.merge import merge_statistics
from ngramspec.files.pool_file import PoolShape, write_pool
from ngramspec.files.prune import prune_statistics
from ngramspec.files.statistics import LOOKUP_KIND, Statistics, open_statistics

FIRST = {1: Counter({(5, 6): 3, (6, 7): 2}), 2: Counter({(5, 6, 7): 2, (6, 7, 8): 1})}
SECOND = {1: Counter({(5, 6): 1, (6, 8): 2}), 3: Counter({(5, 6, 7, 8): 4})}
OURS, OTHERS = Origin(b"a" * 16, 50), Origin(b"b" * 16, 60)


@pytest.fixture
def a(tmp_path: Path) -> Statistics:
    write_cache(tmp_path / "a.ngc", sources_of(FIRST), OURS)
    return open_statistics(tmp_path / "a.ngc", verify=True)


@pytest.fixture
def b(tmp_path: Path) -> Statistics:
    write_cache(tmp_path / "b.ngc", sources_of(SECOND), OURS)
    return open_statistics(tmp_path / "b.ngc", verify=True)


def pool(path: Path, n_match: int = 2, **cells: int) -> Statistics:
    image = np.zeros(1024, np.uint32)
    for at, cell in cells.items():
        image[int(at[1:])] = cell
    write_pool(path, image, PoolShape(n_match, 1024), OURS)
    return open_statistics(path)


def random_entries(seed: int) -> Entries:
    """Return 4-grams, some of them with two entries of one pair, as counts above 4194303 are."""
    chance = np.random.default_rng(seed)
    pairs = (tuple(pair) for pair in chance.integers(0, 6, (3000, 5)).tolist())
    entries = entries_of(Counter(pairs), 4)
    return np.repeat(entries, np.arange(len(entries)) % 5 // 4 + 1, axis=0)


def test_what_an_open_file_tells(a: Statistics, tmp_path: Path) -> None:
    assert (a.kind, a.fingerprint, a.vocab_size) == ("ngram-cache", b"a" * 16, 50)
    assert (a.sizes, a.about, a.file_bytes) == ((1, 2), {}, a.path.stat().st_size)
    assert a.cache.followers([5]) == {6: 3}
    a.check()
    with pytest.raises(InputError, match=r"a\.ngc is a ngram-cache, not a hash-pool"):
        _ = a.shape
    with pytest.raises(InputError, match="not a suffix"):
        _ = a.index
    (tmp_path / "x").write_bytes(b"no")
    with pytest.raises(FormatError):
        open_statistics(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        open_statistics(tmp_path / "absent")


def test_a_survey_counts_and_finds_the_most_frequent(a: Statistics) -> None:
    tally = survey(a.sources()[1], 1, 1)
    assert (tally.num_ngrams, tally.num_pairs, tally.occurrences) == (2, 2, 5)
    assert (tally.top.tolist(), tally.counts.tolist()) == ([[5]], [3])


@pytest.mark.parametrize("num", [1, 3, 50])
def test_chunks_do_not_matter(num: int) -> None:
    one = random_entries(1)[:900]
    whole, chunked = (survey(Chunks(one, [n]), 4, 7) for n in (len(one), num))
    assert (chunked.num_ngrams, chunked.num_pairs) == (whole.num_ngrams, whole.num_pairs)
    assert chunked.num_pairs < len(one)
    assert chunked.occurrences == whole.occurrences
    assert chunked.top.tolist() == whole.top.tolist()
    assert chunked.counts.tolist() == whole.counts.tolist()


def test_what_a_file_holds_as_plain_data(a: Statistics, tmp_path: Path) -> None:
    facts = describe(a, 1)
    assert (facts["kind"], facts["num_ngrams"], facts["about"]) == ("ngram-cache", 4, {})
    assert facts["fingerprint"] == (b"a" * 16).hex()
    assert [size["num_pairs"] for size in facts["sizes"]] == [2, 2]
    assert facts["sizes"][0]["top"] == [
        {"token_ids": [5], "count": 3, "num_followers": 1, "follower": {"token_id": 6, "count": 3}}
    ]
    assert "top" not in describe(a, 0)["sizes"][0]
    facts = describe(pool(tmp_path / "1.pool", c3=7, c4=1 << 30 | 2))["pool"]
    assert (facts["num_used"], facts["by_confidence"]) == (2, [1, 1, 0, 0])


def test_merging_adds_up(a: Statistics, b: Statistics, tmp_path: Path) -> None:
    header = merge_statistics([a, b], tmp_path / "m.ngc")
    merged = {size: FIRST.get(size, Counter()) + SECOND.get(size, Counter()) for size in (1, 2, 3)}
    assert sizes_of(open_statistics(tmp_path / "m.ngc").cache) == merged
    assert (header.fingerprint, header.num_ngrams) == (b"a" * 16, 5)
    merge_statistics([a, b], tmp_path / "m.ngc", min_count=4)
    assert sizes_of(open_statistics(tmp_path / "m.ngc").cache) == {
        1: Counter({(5, 6): 4}), 3: SECOND[3],
    }  # fmt: skip


def test_files_of_two_tokenizers_are_merged_on_demand(a: Statistics, tmp_path: Path) -> None:
    write_cache(tmp_path / "o.ngc", sources_of(SECOND), OTHERS)
    other = open_statistics(tmp_path / "o.ngc")
    with pytest.raises(VocabMismatchError, match="counts of different tokens cannot be added up"):
        merge_statistics([a, other], tmp_path / "m.ngc")
    header = merge_statistics([a, other], tmp_path / "m.ngc", any_tokenizer=True)
    assert (header.fingerprint, header.vocab_size) == (None, 60)


def test_lookup_caches_are_merged_in_steps_as_at_once(tmp_path: Path) -> None:
    for name, token in (("a", 5), ("b", 9), ("c", 300)):
        cache = NgramCache(1, 2)
        cache.update([token, 1, 2, token])
        write_lookup_cache(cache, tmp_path / f"{name}.bin")
    opened = [open_statistics(tmp_path / f"{name}.bin") for name in "abc"]
    merge_statistics(opened, tmp_path / "once.ngc")
    merge_statistics(opened[:2], tmp_path / "ab.ngc")
    merge_statistics([open_statistics(tmp_path / "ab.ngc"), opened[2]], tmp_path / "steps.ngc")
    assert (tmp_path / "steps.ngc").read_bytes() == (tmp_path / "once.ngc").read_bytes()


def test_pools_are_merged_cell_by_cell(a: Statistics, tmp_path: Path) -> None:
    one = pool(tmp_path / "1.pool", c3=7, c4=8, c5=1 << 30 | 2)
    two = pool(tmp_path / "2.pool", c3=7, c5=3, c6=4)
    merge_statistics([one, two], tmp_path / "m.pool")
    merged = open_statistics(tmp_path / "m.pool")
    assert {at: int(merged.cells[at]) for at in np.flatnonzero(merged.cells)} == {
        3: 7, 4: 8, 5: 1 << 30 | 2, 6: 4,
    }  # fmt: skip
    assert merged.counters[0] == 4
    longer = pool(tmp_path / "3.pool", 3)
    for files, options, message in (
        ([one, longer], {}, r"3\.pool has n_match 3, .*1\.pool has 2: only pools of one shape"),
        ([one, a], {}, r"1\.pool is a hash-pool, .*a\.ngc is a ngram-cache"),
        ([one, two], {"min_count": 2}, "min_count and max_bytes are not for hash pools"),
    ):
        with pytest.raises(InputError, match=message):
            merge_statistics(files, tmp_path / "m.pool", **options)


def test_pruning_keeps_what_is_asked_for(a: Statistics, tmp_path: Path) -> None:
    header = prune_statistics(a, tmp_path / "p.ngc", min_count=2, ngram_max=1)
    assert (header.ngram_min, header.ngram_max, header.num_ngrams) == (1, 1, 2)
    many = {1: Counter({(token, token + 1): token for token in range(1, 400)})}
    write_cache(tmp_path / "many.ngc", sources_of(many), Origin())
    header = prune_statistics(
        open_statistics(tmp_path / "many.ngc"), tmp_path / "p.ngc", max_bytes=4096
    )
    assert 100 < header.num_ngrams < 399
    assert (tmp_path / "p.ngc").stat().st_size <= 4096
    with pytest.raises(InputError, match="has no n-grams of 3 to 4 tokens, only of 1 2"):
        prune_statistics(a, tmp_path / "p.ngc", ngram_min=3)
    with pytest.raises(InputError, match="holds no n-grams to prune"):
        prune_statistics(pool(tmp_path / "1.pool"), tmp_path / "p.ngc")


def test_to_a_lookup_cache_and_back(a: Statistics, tmp_path: Path) -> None:
    path = tmp_path / "a.cache"  # known by its contents
    assert to_lookup_cache(a, path) == path.stat().st_size
    assert read_lookup_cache(path).followers([5, 6]) == {7: 2}
    statistics = open_statistics(path)
    statistics.check()
    assert (statistics.kind, statistics.container, statistics.vocab_size) == (LOOKUP_KIND, None, 0)
    from_lookup_cache(statistics, tmp_path / "again.ngc", OURS)
    assert (tmp_path / "again.ngc").read_bytes() == a.path.read_bytes()
    for convert, source in ((to_lookup_cache, statistics), (from_lookup_cache, a)):
        with pytest.raises(InputError, match=r"is already a .* of"):
            convert(source, tmp_path / "x")
