"""One NgramDraft for several Llama objects, threads and processes."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import Any

import pytest

import ngramspec
from helpers.adversaries import FakeDrafter
from ngramspec import attach
from ngramspec.errors import StateError
from ngramspec.hosts.llama_cpp import NgramDraft

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
LOOP: dict[str, Any] = {"spec": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 16}


def test_more_streams_than_slots_reuse_the_oldest(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP, slots=2)
    llamas = [make_llama("markov", draft_model=draft) for _ in range(3)]
    texts = [
        llamas[i % 3].create_completion(PROSE, max_tokens=120, temperature=0.0) for i in range(6)
    ]
    assert len({str(text["choices"]) for text in texts}) == 1
    assert draft.counters.failures == 0
    assert draft.counters.accepted > 100


def test_the_text_used_longest_ago_gives_way(make_llama: Any) -> None:
    draft = NgramDraft(drafter=FakeDrafter(slots=2))
    llamas = [make_llama("markov", draft_model=draft) for _ in range(3)]
    for number, llama in enumerate(llamas):
        llama.input_ids[:] = number
        llama.n_tokens = 19
    for number, length in ((0, 20), (1, 20), (0, 21), (2, 20), (0, 22)):
        draft(llamas[number].input_ids[:length])
    assert draft.drafter.follows == [(0, -1), (1, -1), (0, 0), (1, -1), (0, 0)]


def test_load_state_replaces_the_buffer_and_nothing_breaks(make_llama: Any) -> None:
    plain, llama = make_llama("markov"), make_llama("markov", draft_model=NgramDraft(**LOOP))
    texts = []
    for one in (plain, llama):
        one.create_completion(PROSE, max_tokens=30, temperature=0.0)
        state = one.save_state()
        one.create_completion("other text", max_tokens=30, temperature=0.0)
        one.load_state(state)
        texts.append(
            one.create_completion(PROSE, max_tokens=60, temperature=0.8, seed=3)["choices"]
        )
    assert texts[0] == texts[1]
    assert len(llama.draft_model._streams) == 1


def test_several_llamas_share_one_pool(make_llama: Any) -> None:
    pool = ngramspec.HashPool(capacity=1 << 16)
    spec = {"spec": "ngram-mod", "pool": pool, "n_match": 4, "n_min": 4}
    first = make_llama("markov", draft_model=NgramDraft(**spec))
    second = make_llama("markov", draft_model=NgramDraft(**spec))
    first.create_completion(PROSE, max_tokens=80, temperature=0.0)
    # The second one drafts at its first chance, from what the first one said.
    seen = []
    inner = second.draft_model
    second.draft_model = lambda ids: seen.append(inner(ids)) or seen[-1]
    second.create_completion("vuifzwr", max_tokens=40, temperature=0.0)
    assert any(one.size for one in seen[:5])


def test_threads_with_a_llama_each_share_one_drafter(make_llama: Any) -> None:
    options = {"max_tokens": 60, "temperature": 0.8, "seed": 1}
    plain = make_llama("llama")
    # The second and third run decode the last prompt token alone: other rounding than in a prompt.
    expected = [plain.create_completion(PROSE, **options)["choices"] for _ in range(3)][-1]
    draft = NgramDraft("ngram-mod,ngram-cache", n_match=3, n_min=1, slots=3)
    llamas = [make_llama("llama", draft_model=draft) for _ in range(4)]
    results: list[Any] = [None] * 4

    def work(i: int) -> None:
        for _ in range(3):
            results[i] = llamas[i].create_completion(PROSE, **options)["choices"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results == [expected] * 4
    assert draft.counters.failures == 0


def test_pickling_keeps_the_settings_and_leaves_pool_and_histories_behind(make_llama: Any) -> None:
    draft = NgramDraft(
        "ngram-mod", max_draft=20, slots=3, n_match=3, n_min=1, policy="fixed",
        pool=ngramspec.HashPool(capacity=1 << 12),
    )  # fmt: skip
    llama = make_llama("markov", draft_model=draft)
    llama.input_ids[:36] = [5, 6, 7, 9] * 9
    llama.n_tokens = 35
    assert draft(llama.input_ids[:36]).size == 20
    copy = pickle.loads(pickle.dumps(draft))
    assert (copy.max_draft, copy.drafter.slots, copy.counters.calls) == (20, 3, 0)
    assert copy(llama.input_ids[:4]).size == 0
    assert copy(llama.input_ids[:36]).size == 20
    with pytest.raises(StateError, match="give its name"):
        pickle.dumps(NgramDraft(drafter=FakeDrafter()))


def test_a_pickled_llama_brings_its_drafter(make_llama: Any) -> None:
    llama = make_llama("markov", draft_model=NgramDraft(**LOOP))
    expected = llama.create_completion(PROSE, max_tokens=60, temperature=0.0)["choices"]
    copy = pickle.loads(pickle.dumps(llama))
    assert copy.create_completion(PROSE, max_tokens=60, temperature=0.0)["choices"] == expected
    assert copy.draft_model.counters.accepted > 10
    copy.close()


def test_the_drafter_keeps_no_llama_alive(make_llama: Any) -> None:

    from llama_cpp import Llama

    draft = NgramDraft(**LOOP)
    path = make_llama("markov").model_path
    llama = Llama(path, n_ctx=256, n_batch=256, verbose=False, draft_model=draft)
    llama.create_completion("abc", max_tokens=20)
    gone = weakref.ref(llama)
    del llama
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("attached", [False, True])
def test_a_drafter_goes_with_its_last_reference(make_llama: Any, attached: bool) -> None:
    from llama_cpp import Llama

    path = make_llama("markov").model_path
    gc.collect()
    gc.disable()
    try:
        draft = NgramDraft(**LOOP)
        options = {} if attached else {"draft_model": draft}
        llama = Llama(path, n_ctx=256, n_batch=256, verbose=False, **options)
        if attached:
            attach(llama, draft)
        llama.create_completion(PROSE, max_tokens=20)
        gone = weakref.ref(draft)
        del llama, draft, options
        assert gone() is None
    finally:
        gc.enable()
