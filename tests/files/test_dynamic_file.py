"""Several processes' dynamic caches on one file, in any order of learning, saving and going."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import reference.statistics as slow
from helpers.backends import int32
from helpers.machines import SETTINGS, texts
from helpers.statistics_files import (
    SIZES,
    counts_of_records,
    entries_of,
    file_order,
    sizes_of,
    sources_of,
)
from ngramspec import DynamicFile, open_cache, read_lookup_cache
from ngramspec.files.cache_file import cache_in_memory, check_cache

NUM_FILES = 3
FILES = st.integers(0, NUM_FILES - 1)
TEXTS = texts(3, 10)


def learn(model: slow.Counts, text: list[int], ngram_min: int, ngram_max: int) -> slow.Counts:
    new: slow.Counts = Counter()
    for size in range(ngram_min, ngram_max + 1):
        new += slow.count_pairs([text], size)
    return slow.merged([model, new])


class Sharing(RuleBasedStateMachine):
    """The file holds the sum of what was saved; a cache what was in the file at its last save."""

    name = "shared.ngc"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp())
        self.path = self.folder / self.name
        self.on_disk: slow.Counts = Counter()
        self.sizes = (1, 4)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(sizes=st.sampled_from([(1, 4), (1, 4), (2, 3), (1, 1)]))
    def start(self, sizes: tuple[int, int]) -> None:
        self.sizes = sizes
        self.files: list[DynamicFile] = [None] * NUM_FILES  # type: ignore[list-item]
        self.learned: list[slow.Counts] = [Counter()] * NUM_FILES  # since the last save
        self.cached: list[slow.Counts] = [Counter()] * NUM_FILES
        for i in range(NUM_FILES):
            self.drop(i)

    @rule(i=FILES)
    def drop(self, i: int) -> None:
        """A process dies without saving, another one comes."""
        self.files[i] = DynamicFile(self.path, *self.sizes)
        self.learned[i] = Counter()
        self.cached[i] = Counter(self.on_disk)

    @rule(i=FILES, text=TEXTS)
    def learn(self, i: int, text: list[int]) -> None:
        self.files[i].cache.update(int32(text))
        self.learned[i] = learn(self.learned[i], text, *self.sizes)
        self.cached[i] = learn(self.cached[i], text, *self.sizes)

    @rule(i=FILES)
    def learn_very_often(self, i: int) -> None:
        often = Counter({(1,) * (self.sizes[0] + 1): slow.COUNT_MAX - 1})
        self.files[i].cache.add_entries(entries_of(often, self.sizes[0]), self.sizes[0])
        self.cached[i] = slow.merged([self.cached[i], often])
        self.learned[i] = slow.merged([self.learned[i], often])

    @rule(i=FILES)
    def save(self, i: int) -> None:
        before = self.path.read_bytes() if self.path.exists() else None
        saved = self.files[i].save()
        assert not self.files[i].save()
        if not saved:
            assert not self.learned[i]
            assert before == (self.path.read_bytes() if self.path.exists() else None)
            return
        self.saved(i)

    def saved(self, i: int) -> None:
        self.on_disk = slow.merged([self.on_disk, self.learned[i]])
        self.cached[i] = self.cached[i] | self.on_disk  # the larger count of each pair
        self.learned[i] = Counter()

    @rule(i=FILES)
    def close(self, i: int) -> None:
        self.files[i].close()
        if self.learned[i]:
            self.saved(i)

    @invariant()
    def the_file_holds_the_sum_of_what_was_saved(self) -> None:
        assert self.read() == self.on_disk
        assert {path.name for path in self.folder.iterdir()} <= {self.name, f"{self.name}.lock"}

    @invariant()
    def each_cache_holds_its_own_and_what_it_has_seen(self) -> None:
        for file, expected in zip(self.files, self.cached, strict=True):
            assert counts_of_records(file.cache.records()) == expected
            assert file.cache.check() == ""

    def read(self) -> slow.Counts:
        if not self.path.exists():
            return Counter()
        if self.name.endswith(".bin"):
            return counts_of_records(read_lookup_cache(self.path).records())
        cache = open_cache(self.path)
        check_cache(cache)
        reread = DynamicFile(self.path)
        return counts_of_records(reread.cache.records())


class SharingLookupCache(Sharing):
    """The same for one of llama.cpp's files."""

    name = "shared.bin"


@pytest.mark.hypothesis
def test_a_statistics_file_that_several_learn_into() -> None:
    run_state_machine_as_test(Sharing, settings=SETTINGS)


@pytest.mark.hypothesis
def test_a_lookup_cache_that_several_learn_into() -> None:
    run_state_machine_as_test(SharingLookupCache, settings=SETTINGS)


@given(first=texts(30, 60), second=texts(30, 60), name=st.sampled_from(["a.ngc", "a.bin"]))
def test_a_bounded_file_keeps_the_most_useful_ngrams(
    first: list[int], second: list[int], name: str
) -> None:
    """Two caches within their bound make a file that must be thinned out."""
    folder = Path(mkdtemp())
    try:
        files = [DynamicFile(folder / name, max_ngrams=40) for _ in range(2)]
        held = []
        for file, text in zip(files, (first, second), strict=True):
            file.cache.update(int32(text))
            held.append(counts_of_records(file.cache.records()))
            file.save()
        everything = slow.merged(held)
        by_size = {size: Counter({p: c for p, c in everything.items() if len(p) == size + 1})
                   for size in SIZES}  # fmt: skip
        whole = cache_in_memory(sources_of({s: c for s, c in by_size.items() if c}))
        useful = slow.most_useful(everything, file_order(whole), float("inf"), 40)
        if name.endswith(".bin") and (folder / name).exists():
            counts = counts_of_records(read_lookup_cache(folder / name).records())
        elif (folder / name).exists():
            counts = slow.merged(sizes_of(open_cache(folder / name)).values())
        else:
            counts = Counter()
        assert counts == {pair: count for pair, count in everything.items() if pair[:-1] in useful}
    finally:
        shutil.rmtree(folder)
