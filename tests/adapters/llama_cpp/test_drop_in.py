"""NgramDraft as a plain draft_model: what it learns by itself and what it never returns."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ngramspec
from helpers.adversaries import FakeDrafter, garbage
from ngramspec.adapters.llama_cpp import NgramDraft
from ngramspec.errors import InputError, NgramspecError

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
LOOP: dict[str, Any] = {"spec": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 16}


def array(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.intc)


def longest(history: np.ndarray, limit: int) -> np.ndarray:
    return np.full(limit, history[-1])


def test_importing_it_does_not_import_llama_cpp() -> None:
    code = (
        "import sys, ngramspec; ngramspec.NgramDraft('ngram-simple'); ngramspec.attach;"
        "assert 'llama_cpp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_plain_llama_accepts_drafts_and_the_counters_tell(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP)
    llama = make_llama("markov", draft_model=draft)
    llama.create_completion(PROSE, max_tokens=200, temperature=0.0)
    counters = draft.counters
    assert counters.accepted > 100
    assert counters.calls < 100
    assert counters.drafted >= counters.accepted
    assert counters.seconds > 0
    source = draft.stats()["ngram-simple"]
    assert source.num_accepted_tokens == counters.accepted


def test_the_history_is_exactly_what_the_host_holds(make_llama: Any) -> None:
    drafter = ngramspec.create_drafter("ngram-simple", slots=2, size_n=3, size_m=8)
    draft = NgramDraft(drafter=drafter, max_draft=8)
    calls = []

    def spy(input_ids: np.ndarray) -> np.ndarray:
        proposed = draft(input_ids)
        calls.append(input_ids.copy())
        np.testing.assert_array_equal(drafter.history(0), input_ids)
        return proposed

    llama = make_llama("llama", draft_model=spy)
    llama.create_completion(PROSE, max_tokens=60, temperature=0.8, seed=1)
    assert len(calls) > 10
    before = drafter.stats()["ngram-simple"].begin_calls
    llama.create_completion(PROSE[:60] + "changed", max_tokens=20, temperature=0.8, seed=1)
    llama.create_completion(PROSE[:30], max_tokens=20, temperature=0.8, seed=1)
    assert drafter.stats()["ngram-simple"].begin_calls == before + 2


@pytest.mark.parametrize("n_batch", [32, 33, 64, 128])
def test_a_draft_always_fits_the_batch(make_llama: Any, n_batch: int) -> None:
    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=10_000)
    llama = make_llama("llama", n_batch=n_batch, n_ctx=512, logits_all=True, draft_model=draft)
    llama.create_completion(PROSE, max_tokens=12, temperature=0.8, seed=1)
    assert max(draft.drafter.limits) == n_batch - 1


def test_tokens_sent_into_generate_leave_less_room(make_llama: Any) -> None:
    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=10_000)
    llama = make_llama("llama", n_batch=64, logits_all=True, draft_model=draft)
    loop = llama.generate(llama.tokenize(PROSE.encode()), temp=0.0)
    token = next(loop)
    loop.send([token] * 5)
    assert draft.drafter.limits == [64 - 6]
    loop.close()


def test_a_host_that_is_not_found_gets_at_most_63_tokens() -> None:
    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=500)
    assert draft(array(1, 2, 3)).size == 63
    assert NgramDraft(drafter=FakeDrafter(longest), max_draft=500, n_batch=9)(array(1)).size == 8


def test_the_owner_of_a_buffer_is_found_behind_wrappers_and_after_calls_by_hand(
    make_llama: Any,
) -> None:
    class Strange:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __call__(self, input_ids: np.ndarray) -> np.ndarray:
            return draft(input_ids)

    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=500)
    llama = make_llama("llama", n_batch=32, n_ctx=256, logits_all=True, draft_model=Strange())
    assert draft(llama.input_ids[:9] * 0).size == 63  # an array of nobody
    llama.input_ids[:] = 5
    assert draft(llama.input_ids[:9]).size == 63  # by hand: no Llama up the stack
    llama.create_completion("abc", max_tokens=12, temperature=0.8, seed=1)
    assert max(draft.drafter.limits[2:]) == 31
    assert max(draft.drafter.limits) == 63


def test_a_draft_never_passes_the_end_of_the_buffer(make_llama: Any) -> None:
    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=60)
    llama = make_llama("llama", n_ctx=256, logits_all=True, draft_model=draft)
    prompt = llama.tokenize(PROSE.encode())[:157]
    result = llama.create_completion(prompt, max_tokens=256 - len(prompt), temperature=0.8, seed=1)
    assert result["usage"]["total_tokens"] == 256
    assert max(draft.drafter.limits) == 60
    assert min(draft.drafter.limits) < 5


def test_a_long_text_on_a_llama_without_logits_all_heals(make_llama: Any) -> None:
    plain = make_llama("markov", n_ctx=512, n_batch=128)
    expected = plain.create_completion("abc", max_tokens=400, temperature=0.8, seed=4)
    llama = make_llama("markov", n_ctx=512, n_batch=128, draft_model=NgramDraft(**LOOP))
    result = llama.create_completion("abc", max_tokens=400, temperature=0.8, seed=4)
    assert result["choices"] == expected["choices"]
    assert llama.draft_model.counters.accepted > 100


def test_a_llama_that_cannot_be_healed_is_tried_once(
    make_llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    llama = make_llama("markov")
    llama.draft_model = NgramDraft(**LOOP)
    kept = llama.__dict__.pop("context_params")  # attach() needs it, generate() does not
    loop = llama.generate(llama.tokenize(PROSE.encode()), temp=0.0)
    for _ in range(20):
        next(loop)
    loop.close()
    llama.context_params = kept
    assert llama.draft_model.counters.drafted == 0
    assert sum("attach() fails" in record.message for record in caplog.records) == 1


def test_without_healing_the_host_fails_as_it_always_did(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP, heal=False)
    llama = make_llama("markov", n_ctx=512, n_batch=128, draft_model=draft)
    with pytest.raises(ValueError, match="broadcast"):
        llama.create_completion("abc", max_tokens=400, temperature=0.0)


@pytest.mark.parametrize("heal", [True, False])
def test_a_draft_model_given_late_does_not_end_the_process(make_llama: Any, heal: bool) -> None:
    plain = make_llama("markov")
    expected = plain.create_completion(PROSE, max_tokens=100, temperature=0.0)
    llama = make_llama("markov")
    llama.draft_model = NgramDraft(**LOOP, heal=heal)
    result = llama.create_completion(PROSE, max_tokens=100, temperature=0.0)
    assert result["choices"] == expected["choices"]
    assert (llama.draft_model.counters.accepted > 0) is heal


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_recurrent_and_hybrid_models_get_no_drafts(make_llama: Any, name: str) -> None:
    expected = make_llama(name).create_completion(PROSE, max_tokens=60, temperature=0.0)
    draft = NgramDraft(drafter=garbage(300))
    llama = make_llama(name, draft_model=draft)
    result = llama.create_completion(PROSE, max_tokens=60, temperature=0.0)
    assert result["choices"] == expected["choices"]
    assert draft.counters.calls > 5
    assert draft.counters.drafted == 0


def test_a_logits_processor_sees_verified_tokens_only(make_llama: Any) -> None:
    from llama_cpp import LogitsProcessorList

    seen: list[int] = []

    def count(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        seen.append(len(input_ids))
        return scores

    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=8)
    llama = make_llama("llama", draft_model=draft)
    options = {"max_tokens": 20, "temperature": 0.8, "seed": 2}
    llama.create_completion(PROSE, logits_processor=LogitsProcessorList([count]), **options)
    assert seen == list(range(seen[0], seen[0] + 20))
    assert draft.counters.drafted == 0
    llama.create_completion(PROSE, **options)
    assert draft.counters.drafted > 0


@pytest.mark.parametrize("bad", [-1, -(2**31), 357, 2**31 - 1])
def test_stale_ids_give_an_empty_draft(make_llama: Any, bad: int) -> None:
    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=8)
    llama = make_llama("llama", draft_model=draft)
    llama.create_completion(PROSE, max_tokens=20, temperature=0.0)
    assert llama.n_vocab() == 356
    view = llama.input_ids[:100]
    assert draft(view).size == 8
    llama.input_ids[50] = bad
    assert draft(view).size == 0
    assert draft(llama.input_ids[:110]).size == 0
    assert draft.counters.failures == 2
    llama.input_ids[50] = 1
    assert draft(llama.input_ids[:110]).size == 8
    llama.input_ids[50] = bad  # in a part that was checked before
    assert draft(llama.input_ids[:120]).size == 0


def test_random_memory_instead_of_ids_never_raises(make_llama: Any) -> None:
    draft = NgramDraft("ngram-mod,ngram-cache", n_match=2, n_min=0)
    llama = make_llama("llama", draft_model=draft)
    draft.bind(llama)
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 50, 200, 512):
        llama.input_ids[:] = rng.integers(-(2**31), 2**31, size=512)
        assert draft(llama.input_ids[:size]).size == 0


def test_the_result_is_owned_and_of_the_type_of_the_host() -> None:
    draft = NgramDraft(**LOOP)
    ids = array(*[5, 6, 7, 8] * 6)
    result = draft(ids)
    assert result.dtype == np.intc
    assert result.base is None
    assert result.flags.writeable
    assert result.size == 16
    result[:] = 0
    assert draft(ids).tolist() == [5, 6, 7, 8] * 4


def test_given_end_tokens_and_vocabulary_cut_the_draft() -> None:
    ids = array(*[5, 6, 7, 8, 9] * 6)
    cut = NgramDraft(**LOOP, eog_ids=[8])(ids)
    assert cut.tolist() == [5, 6, 7]
    assert cut.base is None
    assert NgramDraft(**LOOP, eog_ids=[5])(ids).size == 0
    drafter = FakeDrafter(lambda history, limit: [1, 2, 99, 3])
    assert NgramDraft(drafter=drafter, n_vocab=50)(array(1, 2)).tolist() == [1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        {"max_draft": 0}, {"max_draft": 1.5}, {"slots": 0}, {"n_batch": -1}, {"n_vocab": True},
        {"spec": "ngram-mad"}, {"spec": ""}, {"no_such_parameter": 1},
        {"drafter": FakeDrafter(), "size_n": 3},
    ],
)  # fmt: skip
def test_bad_arguments_get_a_clear_error(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        NgramDraft(**bad)


def test_a_failing_drafter_costs_drafts_and_nothing_else(
    make_llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(history: np.ndarray, limit: int) -> np.ndarray:
        raise NgramspecError("broken")

    draft = NgramDraft(drafter=FakeDrafter(fail))
    llama = make_llama("markov", draft_model=draft)
    llama.create_completion(PROSE, max_tokens=20, temperature=0.0)
    assert draft.counters.failures == draft.counters.calls == 19
    assert sum("broken" in record.message for record in caplog.records) == 1
