"""The host's own loop with drafts attached: the same tokens, and figures that add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.adversaries import FakeDrafter, garbage, half_right
from helpers.host_loop import Generation, TokenEvent, generate_tokens, stream_tokens
from ngramspec import NgramDraft, attach
from ngramspec.errors import BackendError, InputError

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
LOOP: dict[str, Any] = {"spec": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 16}


def prompt_of(llama: Any) -> list[int]:
    return list(llama.tokenize(PROSE.encode()))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_the_same_with_and_without_drafts(make_llama: Any, temperature: float) -> None:
    llama = make_llama("llama")
    options = {"max_tokens": 100, "temperature": temperature, "seed": 3, "fresh": True}
    plain = generate_tokens(llama, prompt_of(llama), **options)
    assert plain.token_ids.size == 100
    assert plain.steps == 99
    assert plain.stats == {}
    assert not plain.accepted.any()
    assert plain.draft_seconds == 0
    assert plain.acceptance == 0
    answer = prompt_of(llama) + plain.token_ids.tolist()
    for drafter in (half_right([answer], llama.n_vocab()), garbage(llama.n_vocab())):
        draft = NgramDraft(drafter=drafter, max_draft=12)
        got = generate_tokens(llama, prompt_of(llama), draft=draft, **options)
        np.testing.assert_array_equal(got.token_ids, plain.token_ids)
        assert got.finish_reason == plain.finish_reason == "length"
    assert "generate" not in llama.__dict__


def test_the_figures_add_up(make_llama: Any) -> None:
    llama = make_llama("markov")
    prompt = np.array(prompt_of(llama), dtype=np.int32)
    seen: list[TokenEvent] = []
    got = generate_tokens(
        llama, prompt, max_tokens=150, draft=NgramDraft(**LOOP), on_token=seen.append
    )
    assert isinstance(got, Generation)
    assert got.token_ids.dtype == np.int32
    assert got.accepted.dtype == np.bool_
    assert [event.token_id for event in seen] == got.token_ids.tolist()
    assert [event.accepted for event in seen] == got.accepted.tolist()
    # Every token but the first is either an accepted one or the target's own, one per step.
    assert got.steps + got.num_accepted in (149, 150)
    assert not got.accepted[0]
    assert got.num_accepted > 100
    assert got.drafted >= got.num_accepted
    assert got.drafts <= got.steps
    assert 0 < got.prompt_seconds < got.seconds
    assert 0 < got.draft_seconds < got.seconds
    assert got.mean_accepted_length > 4
    assert got.tokens_per_second > 0
    assert got.stats["ngram-simple"].num_drafts == got.drafts
    times = [event.seconds for event in seen]
    assert times == sorted(times)


def test_accepted_marks_exactly_the_draft_tokens_that_held(make_llama: Any) -> None:
    llama = make_llama("markov")
    prompt = prompt_of(llama)
    plain = generate_tokens(llama, prompt, max_tokens=40).token_ids.tolist()

    def two_right(history: np.ndarray, limit: int) -> list[int]:
        done = history.size - len(prompt)
        return [*plain[done : done + 2], 0] if done + 2 <= len(plain) else []

    draft = NgramDraft(drafter=FakeDrafter(two_right))
    got = generate_tokens(llama, prompt, max_tokens=40, draft=draft, fresh=True)
    assert got.token_ids.tolist() == plain
    assert got.accepted.tolist() == [i % 3 != 0 for i in range(40)]


def test_a_draft_that_failed_marks_nothing_as_accepted(make_llama: Any) -> None:
    llama = make_llama("markov")
    prompt = prompt_of(llama)
    plain = generate_tokens(llama, prompt, max_tokens=30).token_ids.tolist()

    def once(history: np.ndarray, limit: int) -> list[int]:
        done = history.size - len(prompt)
        if done > 1:
            raise InputError("no more")
        return [0, *plain[done + 1 : done + 20]]

    draft = NgramDraft(drafter=FakeDrafter(once))
    got = generate_tokens(llama, prompt, max_tokens=30, draft=draft, fresh=True)
    assert got.token_ids.tolist() == plain
    assert got.num_accepted == 0
    assert draft.counters.failures > 20


def test_an_attached_llama_uses_its_own_drafter(make_llama: Any) -> None:
    llama = make_llama("markov")
    with attach(llama, **LOOP) as attachment:
        got = generate_tokens(llama, prompt_of(llama), max_tokens=80)
        again = generate_tokens(llama, prompt_of(llama), max_tokens=80, draft=attachment)
        assert got.num_accepted > 20
        assert again.num_accepted > 20
        np.testing.assert_array_equal(got.token_ids, again.token_ids)
        assert attachment.attached
    with pytest.raises(InputError, match="detached"):
        generate_tokens(llama, prompt_of(llama), draft=attachment)


def test_names_of_drafters_are_enough(make_llama: Any) -> None:
    llama = make_llama("markov")
    got = generate_tokens(llama, prompt_of(llama), max_tokens=80, draft="ngram-map-k,ngram-cache")
    assert set(got.stats) == {"ngram-map-k", "ngram-cache"}
    assert all(stats.propose_calls == got.steps for stats in got.stats.values())


def test_it_ends_at_an_end_token_and_at_a_full_context(make_llama: Any) -> None:
    llama = make_llama("chat")
    reasons = {}
    for seed in range(6):
        got = generate_tokens(
            llama, prompt_of(llama), temperature=0.9, seed=seed, draft="ngram-cache"
        )
        reasons[got.finish_reason] = got
    assert llama.token_eos() not in reasons["stop"].token_ids
    assert 0 < reasons["stop"].token_ids.size < 128
    llama = make_llama("markov", n_ctx=256)
    got = generate_tokens(llama, prompt_of(llama), max_tokens=500, draft=NgramDraft(**LOOP))
    assert (got.token_ids.size, got.finish_reason) == (256 - len(prompt_of(llama)), "length")
    assert generate_tokens(llama, prompt_of(llama), max_tokens=1).token_ids.size == 1


def test_a_stream_closed_early_detaches(make_llama: Any) -> None:
    llama = make_llama("markov")
    stream = stream_tokens(llama, prompt_of(llama), draft=NgramDraft(**LOOP))
    assert next(next(stream).accepted for _ in range(3)) is False
    assert "generate" in llama.__dict__
    stream.close()
    assert "generate" not in llama.__dict__


def test_bad_requests_get_a_clear_error(make_llama: Any) -> None:
    llama = make_llama("markov", n_ctx=256)
    with pytest.raises(InputError, match="prompt"):
        generate_tokens(llama, [])
    with pytest.raises(InputError, match="max_tokens"):
        generate_tokens(llama, [5], max_tokens=0)
    with pytest.raises(BackendError, match="n_ctx is 256"):
        generate_tokens(llama, [5] * 256)
    with pytest.raises(InputError, match="ngram-mod"):
        generate_tokens(llama, [5], draft="ngram-mood")
