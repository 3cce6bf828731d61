"""Damages statistics files and uses what is left; run as a program, so that a crash is seen.

    fuzz.py FOLDER FIRST NUMBER

uses the seeds FIRST, FIRST + 1, ...; FOLDER/seed holds the one that is being tried.
"""

from __future__ import annotations

import mmap
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from helpers.files import resealed, section_table
from helpers.observing import observe
from helpers.statistics_files import open_successors, tally_of
from ngramspec import (
    DynamicFile,
    NgramCache,
    StaticCache,
    SuccessorPool,
    create_drafter,
    open_cache,
    open_pool,
    open_suffix_index,
    read_lookup_cache,
    write_lookup_cache,
)
from ngramspec._native.files.entries import EntryMerger, EntryReader
from ngramspec._native.files.image import useful_ngrams, usefulness
from ngramspec.errors import NgramspecError
from ngramspec.files.cache_file import Origin, about_of, check_cache, write_cache
from ngramspec.files.container import open_container
from ngramspec.files.entries import ArraySource, read_all
from ngramspec.files.pool_file import PoolShape, check_pool, create_pool
from ngramspec.files.prune import useful_sources
from ngramspec.files.slot_file import SavedSlot, read_slot, write_slot
from ngramspec.files.successor_file import facts_of, write_successors
from ngramspec.files.suffix_file import check_index, write_suffix_index

SIZES = (1, 2, 3, 4)
ODD = (
    0,
    1,
    2,
    3,
    7,
    8,
    63,
    64,
    255,
    1 << 16,
    (1 << 21) - 1,
    1 << 21,
    (1 << 31) - 1,
    1 << 31,
    2**32 - 1,
)
MEMORY = 8 << 30  # address space that the program may use
NOT_KNOWN = 2**31  # a file that names no vocabulary may hold any int32 id


def text_of(seed: int, length: int, num_tokens: int) -> list[int]:
    """A text with loops, whose n-grams have one or several followers."""
    rng = random.Random(seed)
    block = [rng.randrange(num_tokens) for _ in range(12)]
    text: list[int] = []
    while len(text) < length:
        text += [*block[: rng.randrange(13)], rng.randrange(num_tokens)]
    return text[:length]


TEXT = text_of(1, 160, 24)


class Case:
    """Whole files of each kind, damaged one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, bytes] = {}
        tally = tally_of([TEXT])
        sources = {size: ArraySource(tally.ngrams(size)) for size in SIZES}
        write_cache(folder / "whole", sources, Origin(b"0123456789abcdef", 24, {"a": 1}))
        self.files["ngc"] = (folder / "whole").read_bytes()
        self.whole = open_cache(folder / "whole")
        cache = NgramCache()
        cache.update(np.array(TEXT, np.int32))
        write_lookup_cache(cache, folder / "lookup")
        self.files["bin"] = (folder / "lookup").read_bytes()
        create_pool(folder / "pool", PoolShape(2, 1024, 4, 0.03), Origin(None, 24))
        pool = open_pool(folder / "pool")
        for i in range(2, len(TEXT)):
            pool.insert(np.array(TEXT[i - 2 : i], np.int32), TEXT[i])
        self.files["ngp"] = (folder / "pool").read_bytes()
        tokens = np.array([*TEXT[:90], -1, *TEXT[90:], -1], np.int32)
        write_suffix_index(folder / "index", tokens, Origin(None, 24, {"a": 1}))
        self.files["ngx"] = (folder / "index").read_bytes()
        ids = np.array(TEXT, np.int32)
        state = np.random.default_rng(1).integers(0, 256, 3000).astype(np.uint8)
        digest, adapters = b"0123456789abcdef", ((0, 0.5),)
        saved = SavedSlot(ids, state, ids, digest, 24, 100, 150, "one", adapters, state, 99)
        write_slot(folder / "slot", saved)
        self.files["slot"] = (folder / "slot").read_bytes()
        successors = SuccessorPool(1024)
        observe(successors, TEXT, 24)
        write_successors(folder / "successors", successors, Origin(None, 24, {"a": 1}))
        self.files["successors"] = (folder / "successors").read_bytes()

    def run(self, seed: int) -> None:
        """Damage a file as the seed says and use it; what may not happen raises."""
        rng = random.Random(seed)
        kind = rng.choice([*["ngc"] * 3, "ngp", "bin", *["ngx"] * 2, "slot", "successors"])
        data = damaged(rng, self.files[kind])
        if kind != "bin" and rng.random() < 0.8:
            data = resealed(data)
        self.use(rng, kind, data)

    def use(self, rng: random.Random, kind: str, data: bytes) -> None:
        """Use a file that may be damaged; what may not happen raises."""
        path = self.folder / f"damaged.{kind}"
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        uses = {"ngc": self.use_cache, "ngp": self.use_pool, "bin": self.use_lookup_cache}
        uses |= {"ngx": self.use_index, "slot": self.use_slot, "successors": self.use_successors}
        uses[kind](rng, path)

    def use_cache(self, rng: random.Random, path: Path) -> None:
        cache = tried(lambda: open_cache(path, verify=rng.random() < 0.2 and None))
        if cache is None:
            return
        draft(cache, cache.vocab_size)
        for size in SIZES:
            for start in rng.sample(range(100), 3):
                followers = cache.followers(TEXT[start : start + size])
                assert len(followers) <= len(self.files["ngc"])
            numbers, _ = usefulness(cache, size)
            keep, num_kept, _ = useful_ngrams(cache, size, rng.randrange(600), 9, 10**6)
            assert len(keep) == numbers.sum() == cache.num_ngrams(size)
            assert num_kept <= 9
        self.read(rng, cache)
        tried(lambda: about_of(open_container(path)))
        if rng.random() < 0.1:
            self.convert(rng, path, cache)

    def read(self, rng: random.Random, cache: StaticCache) -> None:
        """What reads as whole is whole: it can be merged, thinned out and written."""
        whole = True
        for size in SIZES:
            entries = tried(lambda size=size: read_all(EntryReader(cache, size)))
            if entries is None:
                whole = False
                continue
            sources = [ArraySource(entries), EntryReader(self.whole, size)]
            merged = tried(lambda sources=sources: read_all(EntryMerger(sources)))
            assert merged is not None
            assert len(merged) <= len(entries) + len(self.files["ngc"])
        checked = tried(lambda: check_cache(cache) or True)
        assert whole or not checked

    def convert(self, rng: random.Random, path: Path, cache: StaticCache) -> None:
        budget = rng.randrange(5000)
        target = self.folder / "converted.ngc"
        tried(
            lambda: write_cache(target, useful_sources(cache, max_bytes=budget), Origin()) and None
        )
        file = tried(lambda: DynamicFile(path))
        if file is not None:
            file.cache.update(np.array(TEXT, np.int32))
            tried(file.save)
            assert file.cache.check() == ""
            write_lookup_cache(file.cache, self.folder / "converted.bin")
            read_lookup_cache(self.folder / "converted.bin")
        tried(lambda: create_drafter("ngram-cache", static=path))

    def use_pool(self, rng: random.Random, path: Path) -> None:
        tried(lambda: check_pool(open_container(path)))
        n_match = rng.choice([None, 2])
        pool = tried(lambda: open_pool(path, n_match=n_match))
        if pool is None:
            return
        assert pool.check() == ""
        options: dict[str, Any] = {"pool": pool, "n_match": 2, "n_min": 0, "n_max": 16}
        drafter = create_drafter("ngram-mod", **options)
        drafter.begin(0, TEXT[:50])
        assert max(drafter.propose(0, 16).tolist(), default=0) < pool.vocab_size
        drafter.accept(0, TEXT[50:120], 0)
        assert max(drafter.propose(0, 16).tolist(), default=0) < pool.vocab_size
        assert pool.check() == ""
        assert max(pool.entries().tolist()) < pool.vocab_size

    def use_index(self, rng: random.Random, path: Path) -> None:
        tried(lambda: check_index(open_container(path)))
        index = tried(lambda: open_suffix_index(path, verify=rng.random() < 0.2 and None))
        if index is None:
            return
        bound = max(index.vocab_size, 24)
        drafter = create_drafter("suffix", static=index, min_probability=0.0)
        for first in rng.sample(range(100), 3):
            drafter.begin(0, TEXT[first : first + 20])
            for at in range(first + 20, first + 50, 10):
                assert all(0 <= token < bound for token in drafter.propose(0, 64).tolist())
                drafter.accept(0, TEXT[at : at + 10], 0)
        assert drafter.check() == ""

    def use_slot(self, rng: random.Random, path: Path) -> None:
        read = tried(lambda: read_slot(path))
        if read is None:
            return
        saved, size = read
        assert size == path.stat().st_size
        for ids in (saved.tokens, saved.history):
            assert all(0 <= token < saved.vocab_size for token in ids.tolist())
        assert max(saved.num_prompt, saved.num_reusable, saved.num_window) <= len(saved.tokens)
        write_slot(self.folder / "again.slot", saved)

    def use_successors(self, rng: random.Random, path: Path) -> None:
        tried(lambda: facts_of(open_container(path)))
        pool = tried(lambda: open_successors(path))
        if pool is None:
            return
        assert pool.check() == ""
        bound = open_container(path).header.vocab_size
        drafter = create_drafter("recycle", pool=pool)
        for start in rng.sample(range(100), 3):
            drafter.begin(0, TEXT[start : start + 9])
            assert all(0 <= token < bound for token in drafter.propose(0, 16).tolist())
        write_successors(self.folder / "again.successors", pool, Origin())

    def use_lookup_cache(self, rng: random.Random, path: Path) -> None:
        cache = tried(lambda: read_lookup_cache(path))
        if cache is not None:
            assert cache.check() == ""
            draft(cache, NOT_KNOWN, "dynamic")
        static = tried(lambda: create_drafter("ngram-cache", static=path))
        if static is not None:
            static.begin(0, TEXT[:50])
            static.propose(0, 16)
        if rng.random() < 0.1:
            file = tried(lambda: DynamicFile(path))
            if file is not None:
                file.cache.update(np.array(TEXT, np.int32))
                tried(file.save)


def draft(cache: StaticCache | NgramCache, vocab_size: int, role: str = "static") -> None:
    """Draft from a cache that may be damaged: tokens of the vocabulary, or of the history."""
    bound = max(vocab_size, 24)
    drafter = create_drafter("ngram-cache", n_draft=16, **{role: cache})
    drafter.begin(0, TEXT[:50])
    for at in range(50, 110, 20):
        tokens = drafter.propose(0, 16).tolist()
        assert all(0 <= token < bound for token in tokens)
        drafter.accept(0, TEXT[at : at + 20], 0)
    for start in range(0, 100, 9):  # nothing in the slot's own text but an n-gram of the file
        drafter.begin(0, TEXT[start : start + 4])
        tokens = drafter.propose(0, 16).tolist()
        assert all(0 <= token < bound for token in tokens)


def tried(call: Callable[[], Any]) -> Any:
    """The result, None when the call refused with an error of ngramspec's own."""
    try:
        return call()
    except NgramspecError:
        return None


def damaged(rng: random.Random, whole: bytes) -> bytes:
    """One to three changes of any kind."""
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        rng.choice(CHANGES)(rng, data)
    return bytes(data)


def some_place(rng: random.Random, data: bytearray, width: int) -> int:
    """An offset: in the head, within a section, at its beginning, or anywhere."""
    least = rng.random()
    if len(data) < 1024 or least < 0.2:
        return rng.randrange(max(1, len(data) // width)) * width
    table = section_table(bytes(data))
    if not table or least < 0.3:
        return rng.randrange(0, 128 + 32 * len(table), width)
    offset, size = rng.choice(sorted(table.values()))
    words = 5 if least < 0.5 else max(1, min(size, len(data)) // width)
    return min(offset + width * rng.randrange(words), len(data) - width)


def flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[some_place(rng, data, 1) % len(data)] ^= 1 << rng.randrange(8)


def overwrite(rng: random.Random, data: bytearray) -> None:
    at, length = some_place(rng, data, 4), rng.choice([1, 4, 16, 64, 300])
    end = min(len(data), at + length)
    data[at:end] = rng.randbytes(end - at)


def odd_word(rng: random.Random, data: bytearray) -> None:
    at = some_place(rng, data, 4)
    if at + 4 <= len(data):
        struct.pack_into("<I", data, at, rng.choice(ODD))


def near_word(rng: random.Random, data: bytearray) -> None:
    at = some_place(rng, data, 4)
    if at + 4 <= len(data):
        (value,) = struct.unpack_from("<I", data, at)
        struct.pack_into("<I", data, at, (value + rng.choice([-1, 1, 2, 64])) & 0xFFFFFFFF)


def odd_long(rng: random.Random, data: bytearray) -> None:
    at = some_place(rng, data, 8)
    if at + 8 <= len(data):
        struct.pack_into("<Q", data, at, rng.choice([0, 64, 1 << 31, 1 << 40, 2**63, 2**64 - 64]))


def cut(rng: random.Random, data: bytearray) -> None:
    del data[some_place(rng, data, rng.choice([1, 4])) :]
    resized(rng, data)


def repeat(rng: random.Random, data: bytearray) -> None:
    at, width = some_place(rng, data, 4), rng.choice([4, 12, 16, 20, 64])
    data[at:at] = data[at : at + width]
    resized(rng, data)


def swap(rng: random.Random, data: bytearray) -> None:
    width = rng.choice([4, 12, 16, 20, 64])
    first, second = some_place(rng, data, 4), some_place(rng, data, 4)
    if abs(first - second) >= width and max(first, second) + width <= len(data):
        piece = data[first : first + width]
        data[first : first + width] = data[second : second + width]
        data[second : second + width] = piece


def resized(rng: random.Random, data: bytearray) -> None:
    """Let the head agree with a new size, mostly; the last section then has it all."""
    if len(data) < 1024 or rng.random() < 0.2:
        return
    struct.pack_into("<Q", data, 16, len(data))
    (number,) = struct.unpack_from("<I", data, 12)
    if 1 <= number <= 28:
        at = 128 + 32 * (number - 1)
        (offset,) = struct.unpack_from("<Q", data, at + 8)
        if offset <= len(data):
            struct.pack_into("<Q", data, at + 16, len(data) - offset)


CHANGES = (flip, flip, overwrite, *[odd_word] * 3, *[near_word] * 3, odd_long, cut, repeat, swap)


def main() -> None:
    folder, first, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if "--bounded" in sys.argv:
        import resource  # not on Windows, where the module is imported as well

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    (folder / "seed").write_bytes(bytes(8))
    with open(folder / "seed", "r+b") as file:
        current = mmap.mmap(file.fileno(), 8)
    case = Case(folder)
    for seed in range(first, first + number):
        current[:] = struct.pack("<q", seed)
        case.run(seed)
    print(peak_kib())


def peak_kib() -> int:
    """The peak of this program alone: getrusage counts the process that started it too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    main()
