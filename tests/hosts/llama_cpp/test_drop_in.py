"""NgramDraft as a plain draft_model: what it learns of a Llama and what it never returns."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ngramspec
from helpers.adversaries import FakeDrafter, garbage
from ngramspec.errors import InputError, NgramspecError
from ngramspec.hosts.llama_cpp import NgramDraft

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
    settings = {"n_batch": n_batch, "logits_all": True}
    llama = make_llama("llama", n_ctx=512, draft_model=draft, **settings)
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


def test_a_draft_never_passes_the_end_of_the_buffer(make_llama: Any) -> None:
    draft = NgramDraft(drafter=FakeDrafter(longest), max_draft=60)
    llama = make_llama("llama", n_ctx=256, logits_all=True, draft_model=draft)
    prompt = llama.tokenize(PROSE.encode())[:157]
    result = llama.create_completion(prompt, max_tokens=256 - len(prompt), temperature=0.8, seed=1)
    assert result["usage"]["total_tokens"] == 256
    assert max(draft.drafter.limits) == 60
    assert min(draft.drafter.limits) < 5


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", {}),
        ("llama", {"n_batch": 8, "logits_all": True}),  # a longer draft would end the process
        ("mamba", {}),  # cannot take tokens back
        ("lfm2", {}),
        ("chat", {}),  # its end tokens are among the drafts
        ("llama", {"late": True}),  # makes no logits for drafts: one would end the process
    ],
)
def test_whatever_the_llama_a_draft_model_cannot_harm_it(
    make_llama: Any, name: str, settings: dict[str, Any], caplog: Any
) -> None:
    def answers(llama: Any) -> list[Any]:
        options = {"max_tokens": 60, "temperature": 0.8, "seed": 3}
        return [llama.create_completion(PROSE, **options)["choices"] for _ in range(2)]

    late = settings.get("late", False)
    settings = {key: value for key, value in settings.items() if key != "late"}
    expected = answers(make_llama(name, **settings))
    draft = NgramDraft(drafter=garbage(300), max_draft=16)
    llama = make_llama(name, **settings, draft_model=None if late else draft)
    llama.draft_model = draft
    assert answers(llama) == expected
    assert draft.counters.calls > 5
    drafts = not late and name in ("llama", "chat")
    assert (draft.counters.drafted > 0) is drafts
    assert len(caplog.records) == 1
    assert "ngramspec" in caplog.text or "no drafts" in caplog.text


def test_what_needs_attach_is_said_once_while_the_text_is_short(
    make_llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    llama = make_llama("markov", n_batch=128, draft_model=NgramDraft(**LOOP))
    for _ in range(2):
        llama.create_completion("abc", max_tokens=20, temperature=0.0)
    (line,) = caplog.messages
    assert re.search(
        r"logits of the whole prompt.*ValueError on a text of more than 128 tokens.*attach", line
    )
    for prompt, limit in ((PROSE, 1), ("abc", 400)):  # the host's own limit
        with pytest.raises(ValueError, match="broadcast"):
            llama.create_completion(prompt, max_tokens=limit, temperature=0.0)


def test_ids_of_nobody_get_no_draft_and_a_warning(
    make_llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    draft, llama = NgramDraft(**LOOP), make_llama("markov")
    for ids in (array(*[5, 6, 7, 8] * 6), np.zeros(50, dtype=np.intc)[:24]):
        assert draft(ids).size == 0
    assert re.search(r"in the buffer of no llama_cpp.Llama.*attach", caplog.text)
    assert len(caplog.messages) == 1
    llama.input_ids[:24] = [5, 6, 7, 8] * 6
    assert draft(llama.input_ids[:24]).size == 0  # its constructor did not get a draft model


def test_each_llama_is_found_by_its_ids_also_when_they_move(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP)
    llamas = [make_llama("markov", draft_model=draft) for _ in range(3)]
    llamas[1].input_ids = llamas[1].input_ids.copy()  # as attach() does to make it longer
    for count, llama in enumerate(llamas, start=1):
        llama.create_completion("abc", max_tokens=80, temperature=0.0)
        assert draft.bind(llama).llama() is llama
        assert draft.counters.accepted > 20 * count


def test_a_llama_keeps_its_logprobs_and_is_known_behind_wrappers(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP)
    llama = make_llama("markov", draft_model=lambda input_ids: draft(input_ids))
    options = {"max_tokens": 80, "temperature": 0.0, "logprobs": 1}
    expected = make_llama("markov", logits_all=True).create_completion("abc", **options)
    assert llama.create_completion("abc", **options)["choices"] == expected["choices"]
    assert draft.counters.accepted > 20
    assert draft(llama.input_ids[:50].copy()).size == 0  # an array of nobody


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
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 50, 200, 512):
        llama.input_ids[:] = rng.integers(-(2**31), 2**31, size=512)
        assert draft(llama.input_ids[:size]).size == 0


def read_by_hand(make_llama: Any, draft: NgramDraft) -> Any:
    """Return a Llama as if it had read a text of 24 tokens."""
    llama = make_llama("llama", draft_model=draft)
    llama.input_ids[:24] = [5, 6, 7, 8] * 6
    llama.n_tokens = 23
    return llama


def test_the_end_of_another_text_is_no_end_of_the_draft(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP)
    llama = read_by_hand(make_llama, draft)
    other = array(*[9] * 24, *draft(llama.input_ids[:24])[:3])
    draft.finish(llama, other)
    assert draft.drafter.history(0).tolist() == other.tolist()
    assert draft.counters.accepted == 0


def test_the_result_is_owned_and_of_the_type_of_the_host(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP)
    llama = read_by_hand(make_llama, draft)
    result = draft(llama.input_ids[:24])
    assert result.dtype == np.intc
    assert result.base is None
    assert result.flags.writeable
    assert result.size == 16
    result[:] = 0
    assert draft(llama.input_ids[:24]).tolist() == [5, 6, 7, 8] * 4


@pytest.mark.parametrize(
    "bad",
    [
        {"max_draft": 0}, {"max_draft": 1.5}, {"slots": 0}, {"slots": True}, {"n_batch": 64},
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
