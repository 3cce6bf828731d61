"""Known small cases of ngram-simple, ngram-map-k, ngram-map-k4v and of chains, one by one.

Each case has the letter and number of a run of llama.cpp's own drafters. Where upstream's answer
is a defect, the docstring says what it does and the test demands ours.
"""

from __future__ import annotations

from typing import Any

import pytest

from helpers.backends import Backend, Native, Reference

pytestmark = pytest.mark.parametrize(
    "backend", [Native(), Reference()], ids=["native", "reference"]
)

P_SEVENS = [7] * 7
C_PROMPT = [*range(100, 180), *range(100, 124)]
K_PROMPT = [9, 1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22, 23, 24, 25]


def asked(drafter: Any, prompt: list[int], *committed: int, max_tokens: int = 64) -> list[int]:
    """Begin with the prompt, commit the tokens, propose."""
    drafter.begin(0, prompt)
    drafter.accept(0, list(committed), 0)
    return drafter.propose(0, max_tokens)


class TestSimple:
    def draft(self, backend: Backend, history: list[int], n: int = 3, m: int = 4) -> list[int]:
        drafter = backend.drafter("ngram-simple", size_n=n, size_m=m)
        return asked(drafter, history[:-1], history[-1])

    def test_s1_the_continuation_of_the_key_is_drafted(self, backend: Backend) -> None:
        assert self.draft(backend, [9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3]) == [4, 5, 6, 7]

    def test_s2_an_occurrence_at_position_0_counts(self, backend: Backend) -> None:
        """Upstream drafts nothing: its position 0 means "no match"."""
        assert self.draft(backend, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]) == [4, 5, 6, 7]

    def test_s3_a_short_history_drafts(self, backend: Backend) -> None:
        """Upstream needs n + m + 2 tokens before the newest: no draft in the first case."""
        assert self.draft(backend, [9, 1, 2, 3, 4, 5, 1, 2, 3]) == [4, 5, 1, 2]
        assert self.draft(backend, [9, 1, 2, 3, 4, 5, 6, 1, 2, 3]) == [4, 5, 6, 1]

    def test_s4_a_match_close_to_the_end_runs_on_through_the_draft(self, backend: Backend) -> None:
        """Upstream drafts nothing: fewer than n tokens follow its match."""
        history = [9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 1, 2, 3]
        assert self.draft(backend, history) == [1, 2, 3, 1]

    def test_s5_the_latest_occurrence_wins(self, backend: Backend) -> None:
        history = [9, 1, 2, 3, 4, 4, 4, 4, 1, 2, 3, 5, 5, 5, 5, 7, 7, 1, 2, 3]
        assert self.draft(backend, history) == [5, 5, 5, 5]

    def test_s6_a_draft_may_be_shorter_than_the_key(self, backend: Backend) -> None:
        """Upstream never drafts when m < n, and says nothing."""
        history = [9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
        assert self.draft(backend, history, n=4, m=3) == [5, 6, 7]

    @pytest.mark.parametrize("period", range(1, 7))
    def test_s7_a_loop_is_drafted_in_full(self, backend: Backend, period: int) -> None:
        """Upstream stops one token before the period ends and skips periods up to n."""
        cycle = [10 + i % period for i in range(60)]
        assert self.draft(backend, [9, *cycle[:41]], n=3, m=8) == cycle[41:49]


class TestMapK:
    def drafter(self, backend: Backend, m: int = 3, **params: Any) -> Any:
        return backend.drafter("ngram-map-k", size_n=2, size_m=m, **params)

    def test_k1_the_continuation_of_the_key_is_drafted(self, backend: Backend) -> None:
        drafter = self.drafter(backend)
        assert asked(drafter, K_PROMPT, 30) == []
        drafter.accept(0, [1, 2], 0)
        assert drafter.propose(0, 64) == [3, 4, 5]

    def test_k2_the_newer_text_is_drafted_after_a_part_was_right(self, backend: Backend) -> None:
        """Upstream drafts the single token 3: the length can only fall."""
        drafter = self.drafter(backend)
        assert asked(drafter, K_PROMPT, 30, 1, 2) == [3, 4, 5]
        drafter.accept(0, [3, 31], 1)
        drafter.accept(0, [1, 2], 0)
        assert drafter.propose(0, 64) == [3, 31, 1]

    def test_k3_a_full_rejection_does_not_silence_a_key(self, backend: Backend) -> None:
        """Upstream never drafts for this key again; our drafts shrink to 4 and grow again."""
        drafter = self.drafter(backend, m=16)
        prompt = [1, 2, *range(50, 80)]
        assert len(asked(drafter, prompt, 1, 2)) == 16
        drafter.accept(0, [99], 0)
        drafter.truncate(0, len(prompt) + 2)
        assert drafter.propose(0, 64) == [50, 51, 52, 53]
        for length in (8, 16, 16):
            draft = drafter.propose(0, 64)
            drafter.accept(0, draft, len(draft))
            drafter.truncate(0, len(prompt) + 2)
            assert len(drafter.propose(0, 64)) == length

    def test_a_draft_cut_from_outside_leaves_the_length_alone(self, backend: Backend) -> None:
        """Upstream shortens the key for good when the room was short."""
        drafter = self.drafter(backend, m=16)
        assert asked(drafter, [1, 2, *range(50, 80)], 1, 2, max_tokens=2) == [50, 51]
        drafter.accept(0, [50, 51, 52], 2)
        drafter.truncate(0, 34)
        assert len(drafter.propose(0, 64)) == 16
        drafter.accept(0, [50, 51], 2)  # 16 tokens drafted, two of them verified
        drafter.truncate(0, 34)
        assert len(drafter.propose(0, 64)) == 16

    def test_what_a_key_has_learnt_survives_a_long_cut(self, backend: Backend) -> None:
        drafter = self.drafter(backend, m=24)
        drafter.begin(0, [0] * 11)
        assert len(drafter.propose(0, 64)) == 24
        drafter.accept(0, [1], 0)
        drafter.accept(0, [0] * 40, 0)
        drafter.truncate(0, 11)
        assert len(drafter.propose(0, 64)) == 4

    @pytest.mark.parametrize("fill", [range(10, 18), range(10, 19)], ids=["k4", "k5"])
    def test_k4_and_k5_the_end_of_the_prompt_is_known(self, backend: Backend, fill: range) -> None:
        """K5: upstream never looks at the last n + m + 1 tokens of a prompt."""
        prompt = [9, *fill, 1, 2, 3, 4, 5, 6]
        assert asked(self.drafter(backend), prompt, 30, 1, 2) == [3, 4, 5]

    def test_k6_and_k7_the_newest_occurrence_wins(self, backend: Backend) -> None:
        """K7: upstream still drafts 5 5 5, the newest of the first batch it indexed."""
        prompt = [9, 1, 2, 3, 3, 3, 8, 8, 1, 2, 4, 4, 4, 8, 8, 1, 2, 5, 5, 5, *P_SEVENS]
        drafter = self.drafter(backend)
        assert asked(drafter, prompt, 30, 1, 2) == [5, 5, 5]
        drafter.accept(0, [30, 1, 2, 6, 6, 6, 7, 7, 7, 7, 7, 7, 1, 2], 0)
        assert drafter.propose(0, 64) == [6, 6, 6]

    @pytest.mark.parametrize("min_hits", [1, 3, 4])
    def test_k8_min_hits_counts_earlier_occurrences(self, backend: Backend, min_hits: int) -> None:
        """Upstream stores min_hits and ignores it."""
        prompt = [9, 1, 2, 3, 3, 3, 8, 1, 2, 4, 4, 4, 8, 1, 2, 5, 5, 5, *P_SEVENS]
        draft = asked(self.drafter(backend, min_hits=min_hits), prompt, 30, 1, 2)
        assert draft == ([5, 5, 5] if min_hits <= 3 else [])

    def test_k9_the_next_conversation_of_a_slot_is_known_from_its_start(
        self, backend: Backend
    ) -> None:
        """Upstream never looks at as many leading tokens as the last conversation had."""
        drafter = self.drafter(backend)
        asked(drafter, list(range(100, 121)), 30)
        assert asked(drafter, [9, 1, 2, 3, 4, 5, *range(200, 230)], 6, 1, 2) == [3, 4, 5]

    def test_k10_a_history_that_shrank_is_followed(self, backend: Backend) -> None:
        """Upstream aborts the process. Here truncate, begin and follow take any history."""
        drafter = self.drafter(backend)
        asked(drafter, K_PROMPT, 30, 1, 2)
        drafter.truncate(0, 5)
        drafter.accept(0, [1, 2], 0)
        assert drafter.propose(0, 64) == [3, 4, 1]
        assert drafter.follow(0, [9, 1, 2, 3, 1, 2]) == -1
        assert drafter.propose(0, 64) == [3, 1, 2]


class TestMapK4v:
    def drafter(self, backend: Backend, **params: Any) -> Any:
        return backend.drafter("ngram-map-k4v", size_n=2, size_m=2, **params)

    def test_v1_the_text_that_won_the_vote_is_drafted(self, backend: Backend) -> None:
        """Upstream lets 3 3 win and drafts 4 4, the text after the newest occurrence."""
        prompt = [9, *[1, 2, 3, 3, 8] * 3, 1, 2, 4, 4, *P_SEVENS]
        assert asked(self.drafter(backend), prompt, 30, 1, 2) == [3, 3]

    def test_v2_asking_again_does_not_change_the_votes(self, backend: Backend) -> None:
        """1:1 drafts the newer text. Upstream has no draft at first, then counts one text twice."""
        prompt = [9, 1, 2, 3, 3, 8, 1, 2, 4, 4, *P_SEVENS]
        drafter = self.drafter(backend)
        assert asked(drafter, prompt, 30, 1, 2) == [4, 4]
        for _ in range(3):
            assert drafter.propose(0, 64) == [4, 4]
        drafter.accept(0, [30, 1, 2], 0)
        assert drafter.propose(0, 64) == []  # 30 1, 4 4 and 3 3: one vote each

    def test_v3_min_hits_counts_earlier_occurrences(self, backend: Backend) -> None:
        """Upstream counts the calls that asked for the key."""
        prompt = [9, 1, 2, 3, 3, 8, *P_SEVENS]
        drafter = self.drafter(backend, min_hits=2)
        assert asked(drafter, prompt, 30, 1, 2) == []
        drafter.accept(0, [3, 3, 8, 1, 2], 0)
        assert drafter.propose(0, 64) == [3, 3]

    @pytest.mark.parametrize(("times", "draft"), [(2, []), (5, [7, 7])])
    def test_v4_a_continuation_seen_late_can_still_win(
        self, backend: Backend, times: int, draft: list[int]
    ) -> None:
        """Upstream has no place for a fifth continuation and never counts it."""
        others = [token for x in (3, 4, 5, 6) for token in (1, 2, x, x)]
        prompt = [9, *others, *[1, 2, 7, 7] * times, 8, 8, 8]
        assert asked(self.drafter(backend), prompt, 30, 1, 2) == draft


class TestChain:
    def test_d1_the_first_source_with_a_draft_gets_the_slot(self, backend: Backend) -> None:
        drafter = backend.drafter("ngram-mod,ngram-simple", params={"ngram-mod": {"n_min": 1}})
        assert drafter_sources(drafter) == ("ngram-simple", "ngram-mod")
        assert asked(drafter, C_PROMPT, 124) == [*range(125, 173)]

    def test_d2_the_next_source_is_asked_when_the_first_has_none(self, backend: Backend) -> None:
        drafter = backend.drafter("ngram-simple,ngram-mod", size_n=30, n_min=1, n_max=64)
        assert asked(drafter, C_PROMPT, 124) == [*range(125, 180), *range(100, 109)]

    def test_d3_a_draft_is_cut_to_the_room(self, backend: Backend) -> None:
        drafter = backend.drafter("ngram-simple")
        assert asked(drafter, C_PROMPT, 124, max_tokens=5) == [*range(125, 130)]

    def test_d4_feedback_goes_to_the_drafts_owner_only(self, backend: Backend) -> None:
        options = {"ngram-simple": {"size_n": 4}, "ngram-map-k": {"size_n": 2, "size_m": 16}}
        drafter = backend.drafter("ngram-simple,ngram-map-k", params=options)
        prompt = [50, 51, 1, 2, 3, 4, *range(60, 90)]
        assert len(asked(drafter, prompt, 1, 2, 3, 4)) == 48
        drafter.accept(0, [99, 3, 4], 0)  # simple's draft is rejected
        drafter.truncate(0, len(prompt))
        drafter.accept(0, [3, 4], 0)  # a key of ngram-map-k only
        assert len(drafter.propose(0, 64)) == 16


def drafter_sources(drafter: Any) -> tuple[str, ...]:
    return tuple(getattr(drafter, "core", drafter).sources)
