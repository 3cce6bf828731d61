"""Known small cases of ngram-cache and its files, written as in ../map/test_vectors.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.backends import Backend, Native, Reference, int32
from helpers.recordings import GOLDEN_DATA, read_records
from ngramspec import NgramCache, read_lookup_cache, write_lookup_cache
from ngramspec.errors import FormatError

NATIVE_AND_REFERENCE = pytest.mark.parametrize(
    "backend", [Native(), Reference()], ids=["native", "reference"]
)
RECORD = bytes.fromhex("0f0000001b000000ffffffffffffffff010000002a00000003000000")


def seen(key: list[int], counts: dict[int, int]) -> list[int]:
    """A text in which the key is followed by each token as often as counted."""
    return [t for token, count in counts.items() for t in [*key, token] * count]


def first(
    backend: Backend, key: list[int], counts: dict[int, int], static: Any = None, **params: Any
) -> list[int]:
    """The first drafted token after the key, by n-grams of the key's size alone."""
    size = {"ngram_min": len(key), "ngram_max": len(key)}
    drafter = backend.drafter("ngram-cache", static=static, **size, **params)
    drafter.begin(0, [*seen(key, counts), *key])
    return drafter.propose(0, 1)


def counted(backend: Backend, counts: dict[int, int]) -> Any:
    """A cache in which 1 2 is followed by each token as often as counted."""
    cache = backend.cache(ngram_min=2, ngram_max=2)
    for token, count in counts.items():
        for _ in range(count):
            cache.update([1, 2, token])
    return cache


@NATIVE_AND_REFERENCE
class TestRules:
    def test_c1_the_draft_extends_its_own_suffix(self, backend: Backend) -> None:
        drafter = backend.drafter("ngram-cache")
        drafter.begin(0, [1, 2, 3, 4, 5, 1, 2, 3, 4])
        assert drafter.propose(0, 64) == [5, 1, 2, 3, 4, 5, 1, 2]

    def test_c2_an_update_counts_whole_ngrams_only(self, backend: Backend) -> None:
        cache = backend.cache()
        cache.update([7])
        assert len(cache) == 0
        cache.update([7, 8])
        assert len(cache) == 1
        assert cache.followers([7]) == {8: 1}

    def test_c2_generated_text_is_learnt_across_steps(self, backend: Backend) -> None:
        """Upstream learns nothing from steps of one token."""
        drafter = backend.drafter("ngram-cache")
        drafter.begin(0, [9])
        for token in [1, 2, 3, 4, 5, 1, 2, 3, 4]:
            drafter.accept(0, [token], 0)
        assert drafter.propose(0, 64) == [5, 1, 2, 3, 4, 5, 1, 2]

    def test_the_context_of_another_request_is_gone(self, backend: Backend) -> None:
        """Upstream keeps the first request's counts and skips as much of the next prompt."""
        drafter = backend.drafter("ngram-cache")
        drafter.begin(0, [1, 2, 3, 4, 5, 1, 2, 3, 4])
        drafter.begin(0, [6, 7, 8, 9, 6, 7, 8])
        assert drafter.propose(0, 2) == [9, 6]
        drafter.begin(0, [1, 2, 3, 4])
        assert drafter.propose(0, 64) == []

    @pytest.mark.parametrize(
        ("counts", "draft"),
        [
            ({7: 1}, []),
            ({7: 2}, [7]),
            ({7: 2, 8: 1}, [7]),
            ({7: 65, 8: 35}, []),
            ({7: 66, 8: 34}, [7]),
        ],
    )
    def test_c3_one_gram_needs_two_samples_and_66_percent(
        self, backend: Backend, counts: dict[int, int], draft: list[int]
    ) -> None:
        assert first(backend, [5], counts) == draft

    def test_c4_longer_ngrams_need_half(self, backend: Backend) -> None:
        assert first(backend, [1, 2], {7: 1}) == []
        assert first(backend, [1, 2], {7: 2}) == [7]
        assert first(backend, [1, 2], {7: 1, 8: 1}) in ([7], [8])
        assert first(backend, [1, 2, 3], {7: 1}) == [7]

    @pytest.mark.parametrize(
        ("counts", "draft"), [({7: 2}, []), ({7: 3}, [7]), ({7: 2, 8: 1}, [7]), ({7: 3, 8: 2}, [])]
    )
    def test_c5_dynamic_counts_are_read_strictly(
        self, backend: Backend, counts: dict[int, int], draft: list[int]
    ) -> None:
        assert first(backend, [1, 2], {}, dynamic=counted(backend, counts)) == draft

    @pytest.mark.parametrize(
        ("counts", "draft"),
        [({7: 1}, []), ({7: 2}, [7]), ({7: 2, 3: 1, 4: 1}, [7]), ({7: 2, 3: 1, 4: 1, 5: 1}, [])],
    )
    def test_c6_static_counts_are_the_last_resort(
        self, backend: Backend, counts: dict[int, int], draft: list[int]
    ) -> None:
        assert first(backend, [1, 2], {}, static=counted(backend, counts)) == draft

    def test_c7_static_counts_decide_between_equals(self, backend: Backend) -> None:
        assert first(backend, [1, 2], {7: 2, 3: 2}, static=counted(backend, {3: 1})) == [3]

    def test_c8_static_counts_may_veto_a_frequent_token(self, backend: Backend) -> None:
        """Upstream always lets them; static_veto=False weighs only the frequent tokens."""
        static = counted(backend, {3: 1})
        assert first(backend, [1, 2], {7: 9, 3: 1}, static=static) == []
        assert first(backend, [1, 2], {7: 9, 3: 1}, static=static, static_veto=False) == [7]

    def test_committed_tokens_reach_the_dynamic_cache(self, backend: Backend) -> None:
        dynamic = backend.cache()
        drafter = backend.drafter("ngram-cache", dynamic=dynamic)
        drafter.begin(0, [1, 2, 3])
        assert len(dynamic) == 0
        drafter.accept(0, [4], 0)
        assert [dynamic.followers(n) for n in ([3], [2, 3], [1, 2, 3])] == [{4: 1}] * 3
        drafter.truncate(0, 1)
        assert len(dynamic) == 3

    def test_dynamic_update_can_be_switched_off(self, backend: Backend) -> None:
        dynamic = backend.cache()
        drafter = backend.drafter("ngram-cache", dynamic=dynamic, dynamic_update=False)
        drafter.begin(0, [1, 2, 3])
        drafter.accept(0, [4], 0)
        assert len(dynamic) == 0


class TestFiles:
    """Upstream aborts the whole process on every file that is an error here."""

    def loaded(self, path: Path, data: bytes) -> NgramCache:
        path.write_bytes(data)
        return read_lookup_cache(path)

    def test_c9_the_bytes_of_a_record(self, tmp_path: Path) -> None:
        cache = self.loaded(tmp_path / "in", RECORD)
        assert cache.followers(int32([15, 27])) == {42: 3}
        write_lookup_cache(cache, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == RECORD

    @pytest.mark.parametrize("which", ["static", "dynamic"])
    def test_c9_a_recorded_file_survives_the_round_trip(self, tmp_path: Path, which: str) -> None:
        recorded = GOLDEN_DATA / f"cache_static_dynamic.{which}.bin"
        cache = self.loaded(tmp_path / "in", recorded.read_bytes())
        write_lookup_cache(cache, tmp_path / "out")
        records = dict(read_records(recorded))
        assert dict(read_records(tmp_path / "out")) == records
        assert len(cache) == len(records)

    def test_c9_merging_a_file_with_itself_doubles_the_counts(self, tmp_path: Path) -> None:
        cache = self.loaded(tmp_path / "a", RECORD)
        cache.merge(self.loaded(tmp_path / "b", RECORD))
        assert cache.followers(int32([15, 27])) == {42: 6}

    @pytest.mark.parametrize("length", range(1, len(RECORD)))
    def test_c9_a_record_cut_short_is_an_error(self, tmp_path: Path, length: int) -> None:
        """Upstream ignores 1 to 15 stray bytes at the end."""
        with pytest.raises(FormatError):
            self.loaded(tmp_path / "in", RECORD + RECORD[:length])

    @pytest.mark.parametrize("offset", [16, 24], ids=["followers", "count"])
    @pytest.mark.parametrize("number", [0, -1])
    def test_c9_numbers_below_one_are_an_error(
        self, tmp_path: Path, offset: int, number: int
    ) -> None:
        bad = number.to_bytes(4, "little", signed=True)
        with pytest.raises(FormatError):
            self.loaded(tmp_path / "in", RECORD[:offset] + bad + RECORD[offset + 4 :])

    def test_an_empty_file_is_an_empty_cache(self, tmp_path: Path) -> None:
        assert len(self.loaded(tmp_path / "in", b"")) == 0
