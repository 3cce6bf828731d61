"""attach(): what it saves, what it refuses, and that detach() leaves no trace."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import ngramspec
from ngramspec import attach
from ngramspec.errors import BackendError, InputError, StateError
from ngramspec.hosts.llama_cpp import NgramDraft
from ngramspec.hosts.llama_cpp.attach import IncrementalTokenizer, NoScores

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
LOOP: dict[str, Any] = {"spec": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 16}
PATCHED = ("scores", "_logits_all", "draft_model", "tokenizer_")
METHODS = ("sample", "generate")


def logit_rows(llama: Any) -> list[int]:
    """Record how many rows with logits every decode of this Llama makes."""
    rows: list[int] = []
    decode = llama._ctx.decode

    def counted(batch: Any) -> None:
        rows.append(sum(bool(batch.batch.logits[i]) for i in range(batch.batch.n_tokens)))
        decode(batch)

    llama._ctx.decode = counted
    return rows


def test_the_prompt_gets_one_row_of_logits_per_batch(make_llama: Any) -> None:
    draft = NgramDraft(**LOOP)
    plain = make_llama("markov", n_batch=64, logits_all=True, draft_model=NgramDraft(**LOOP))
    llama = make_llama("markov", n_batch=64)
    attach(llama, draft)
    counts = []
    for one in (plain, llama):
        rows = logit_rows(one)
        one.create_completion(PROSE, max_tokens=80, temperature=0.0)
        counts.append(rows)
    assert counts[0][:4] == [64, 64, 64, 5]
    assert counts[1][:4] == [1, 1, 1, 1]
    assert counts[0][4:] == counts[1][4:]
    assert max(counts[1]) == 17


def test_a_context_beyond_n_batch_works_with_and_without_own_draft_model(make_llama: Any) -> None:
    settings = {"n_ctx": 1024, "n_batch": 128}
    plain = make_llama("markov", **settings)
    prompt = plain.tokenize(PROSE.encode())
    expected = plain.create_completion(prompt, max_tokens=700, temperature=0.8, seed=2)
    crashing = make_llama("markov", **settings, draft_model=NgramDraft(**LOOP))
    with pytest.raises(ValueError, match="broadcast"):
        crashing.create_completion(prompt, max_tokens=700, temperature=0.8, seed=2)
    for llama in (crashing, make_llama("markov", **settings)):
        llama.reset()
        with attach(llama, **LOOP) as attachment:
            result = llama.create_completion(prompt, max_tokens=700, temperature=0.8, seed=2)
        assert result["choices"] == expected["choices"]
        assert attachment.draft.counters.accepted > 300


@pytest.mark.parametrize("own", [False, True])
def test_detach_restores_every_attribute(make_llama: Any, own: bool) -> None:
    llama = make_llama("markov", n_ctx=512, draft_model=NgramDraft(**LOOP) if own else None)
    batch = llama._batch
    state, batch_state = dict(llama.__dict__), dict(batch.__dict__)
    attachment = attach(llama, **LOOP)
    assert all(llama.__dict__[name] is not state[name] for name in PATCHED if name != "_logits_all")
    assert all(name in llama.__dict__ for name in METHODS)
    assert "set_batch" in batch.__dict__
    attachment.detach()
    assert not attachment.attached
    assert llama.__dict__.keys() == state.keys()
    assert all(llama.__dict__[name] is state[name] for name in state)
    assert batch.__dict__.keys() == batch_state.keys()
    attachment.detach()
    attach(llama, **LOOP).detach()


def shared(llama: Any) -> list[dict[str, Any]]:
    """Return what every Llama of the process has in common, and what `llama` has."""
    import llama_cpp

    return [dict(vars(one)) for one in (llama_cpp, llama_cpp.llama, llama_cpp.Llama, llama)]


def test_no_class_no_module_and_no_other_object_is_changed(make_llama: Any) -> None:
    other = make_llama("markov")
    before = shared(other)

    def unchanged() -> bool:
        return all(
            now.keys() == then.keys() and all(now[name] is then[name] for name in then)
            for now, then in zip(shared(other), before, strict=True)
        )

    draft = NgramDraft(**LOOP)
    assert unchanged()
    llama = make_llama("markov", draft_model=draft)
    llama.create_completion("abc", max_tokens=4)
    assert unchanged()
    attachment = attach(llama, draft)
    assert unchanged()
    llama.create_completion(PROSE, max_tokens=40)
    attachment.detach()
    assert unchanged()
    ours = ngramspec.Llama(llama.model_path, n_ctx=256, verbose=False)
    ours.create_completion(PROSE, max_tokens=4)
    assert unchanged()
    ours.close()
    assert unchanged()


def test_detach_leaves_alone_what_others_replaced(make_llama: Any) -> None:
    llama = make_llama("markov")
    attachment = attach(llama, **LOOP)
    llama.draft_model = other = NgramDraft(**LOOP)
    attachment.detach()
    assert llama.draft_model is other


def test_an_attached_llama_can_go_and_its_native_parts_with_it(make_llama: Any) -> None:
    from llama_cpp import Llama

    path = make_llama("markov").model_path
    gc.disable()
    try:
        llama = Llama(path, n_ctx=256, n_batch=256, verbose=False)
        attachment = attach(llama, **LOOP)
        llama.create_completion("abc", max_tokens=20)
        gone = weakref.ref(llama)
        del llama
        assert gone() is None
    finally:
        gc.enable()
    attachment.detach()


def test_what_cannot_be_safe_is_refused_with_a_reason(make_llama: Any) -> None:
    with pytest.raises(BackendError, match="recurrent"):
        attach(make_llama("mamba"))
    with pytest.raises(BackendError, match="hybrid"):
        attach(make_llama("lfm2"))
    with pytest.raises(BackendError, match="embedding"):
        attach(make_llama("llama", embedding=True))
    with pytest.raises(BackendError, match="n_batch must be >= 2 to verify a draft, got 1"):
        attach(make_llama("llama", n_batch=1))
    llama = make_llama("llama")
    with pytest.raises(InputError, match="ngram-mod"):
        attach(llama, "ngram-mood")
    with pytest.raises(InputError, match="size_n"):
        attach(llama, NgramDraft(**LOOP), size_n=3)
    with pytest.raises(InputError, match="Llama"):
        attach(object())
    attach(llama)
    with pytest.raises(StateError, match="attached already"):
        attach(llama)
    closed = make_llama("llama")
    closed.close()
    for bind in (attach, NgramDraft().bind):
        with pytest.raises(StateError, match="closed"):
            bind(closed)
    strange = make_llama("llama")
    del strange.tokenizer_
    with pytest.raises(BackendError, match=r"no tokenizer_: drafts need a release"):
        attach(strange)
    strange.tokenizer_ = None


@pytest.mark.parametrize("special", [False, True])
def test_detokenizing_piecewise_gives_the_same_bytes(make_llama: Any, special: bool) -> None:
    llama = make_llama("embedded")
    original, bos = llama.tokenizer_, llama.token_bos()
    ours = IncrementalTokenizer(original, bos)
    every = range(llama.n_vocab())  # of which the host leaves the long ones out
    whole = [token for token in every if original.detokenize([token], special=True)]
    rng = np.random.default_rng(1)
    tokens: list[int] = []
    for step in range(300):
        tokens.append(int(rng.choice(whole)))
        if step % 90 == 89:
            tokens = tokens[:20]
        if step % 50 == 49:
            tokens[3] = int(rng.choice(whole))
        expected = original.detokenize(tokens, special=special)
        assert ours.detokenize(tokens, prev_tokens=[1, 2], special=special) == expected
        short = tokens[-3:]
        assert ours.detokenize(short) == original.detokenize(short)
    assert ours.tokenize(b"a b", add_bos=False) == original.tokenize(b"a b", add_bos=False)
    assert ours.decode(tokens) == original.decode(tokens)


def test_a_long_token_is_not_left_out(make_llama: Any) -> None:
    llama = make_llama("embedded")
    text = b"def f():\n" + b" " * 36 + b"return " + b"-" * 34 + b"\n"
    tokens, bos = llama.tokenize(text, add_bos=False), llama.token_bos()
    lost = [token for token in tokens if not llama.detokenize([token])]
    assert lost
    with attach(llama, **LOOP):
        assert llama.detokenize(tokens) == text
        assert llama.detokenize([bos, *tokens]) == text
        assert llama.detokenize([bos], special=True) == b"<|endoftext|>"
        assert llama.detokenize([bos]) == b""
    tokenizer = IncrementalTokenizer(llama.tokenizer_, bos)
    assert b"".join(tokenizer.detokenize([token]) for token in tokens) == text


def test_a_completion_keeps_its_long_tokens(make_llama: Any) -> None:
    llama = make_llama("embedded", n_ctx=1024)
    code = "def f(a):\n    return [\n" + " " * 36 + "a,\n" + " " * 44 + "b,\n    ]"
    asked = [{"role": "user", "content": f"Repeat this code:\n\n```python\n{code}\n```"}]
    with attach(llama, **LOOP):
        answer = llama.create_chat_completion(asked, temperature=0.0, max_tokens=80)
    assert code in answer["choices"][0]["message"]["content"]


def test_the_hosts_rule_for_the_begin_token_is_kept(make_llama: Any) -> None:
    llama = make_llama("llama")
    bos, space = llama.token_bos(), llama.tokenize(b" a", add_bos=False)
    ours = IncrementalTokenizer(llama.tokenizer_, bos)
    for tokens in ([bos, *space], [*space, bos, *space], [bos, *space, *space], [], [bos]):
        for _ in range(2):
            assert ours.detokenize(tokens) == llama.tokenizer_.detokenize(tokens)


def test_whatever_holds_ids_is_detokenized_as_without(make_llama: Any) -> None:
    llama = make_llama("markov")
    llama.create_completion(PROSE, max_tokens=20)
    ids = llama.input_ids[: llama.n_tokens]
    texts = (ids, llama.eval_tokens, tuple(ids), list(ids), ids[:3], ids[:0], range(5, 20))
    expected = [llama.detokenize(text) for text in texts]
    with attach(llama, **LOOP):
        for _ in range(2):
            assert [llama.detokenize(text) for text in texts] == expected


def test_an_attachment_shows_what_it_did(make_llama: Any) -> None:
    llama = make_llama("markov")
    attachment = attach(llama, **LOOP, slots=3)
    llama.create_completion(PROSE, max_tokens=80, temperature=0.0)
    counters = attachment.draft.counters
    expected = (
        f"Attachment('ngram-simple', model={os.path.basename(llama.model_path)!r}, slots=3, "
        f"attached=True, drafted={counters.drafted}, accepted={counters.accepted})"
    )
    assert str(attachment) == expected
    attachment.detach()
    assert repr(attachment) == expected.replace("True", "False")


def test_another_draft_model_rests_with_a_warning(
    make_llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    other = LlamaPromptLookupDecoding()
    llama = make_llama("markov", draft_model=other)
    with attach(llama, **LOOP):
        pass
    assert llama.draft_model is other
    assert "LlamaPromptLookupDecoding rests until detach()" in caplog.text
    caplog.clear()
    attach(make_llama("markov", draft_model=NgramDraft(**LOOP)), **LOOP)
    assert not caplog.text


def test_a_late_attachment_of_a_used_llama_keeps_its_tokens(make_llama: Any) -> None:
    plain, llama = make_llama("llama"), make_llama("llama")
    for one in (plain, llama):
        one.create_completion(PROSE, max_tokens=20, temperature=0.0)
    expected = plain.create_completion(PROSE + "abc", max_tokens=40, temperature=0.8, seed=1)
    with attach(llama, **LOOP):
        rows = logit_rows(llama)
        result = llama.create_completion(PROSE + "abc", max_tokens=40, temperature=0.8, seed=1)
        assert rows[0] == 1
    assert result["choices"] == expected["choices"]


def test_no_scores_gives_no_numbers() -> None:
    scores = NoScores(8, 5)
    assert scores[:3, :].shape == (3, 5)
    assert scores[3:, :].shape == (5, 5)
    assert len(scores) == 8
    assert np.isnan(scores[-1, :]).all()
    assert scores[:3, :][-2, :].shape == (5,)
    scores[2:4, :] = 1.0
    rest = scores[2:, :]
    rest[rest > 0] = 0.0
    assert scores.copy().shape == (1, 5)
    with pytest.raises(StateError, match="logprobs"):
        np.amax(scores)


MEMORY = """
import re, sys
from llama_cpp import Llama
from ngramspec import NgramDraft, attach
path, attached = sys.argv[1], sys.argv[2] == "1"
draft = NgramDraft("ngram-simple")
llama = Llama(path, n_ctx=1024, n_batch=256, n_threads=1, n_threads_batch=1, verbose=False,
              logits_all=not attached, draft_model=None if attached else draft)
if attached:
    attach(llama, draft)
def peak():
    return int(re.findall(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[0])
before = peak()
llama.create_completion([5 + i % 90 for i in range(500)], max_tokens=4, temperature=0.0)
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_score_matrix_takes_no_memory(model_path: Any) -> None:
    grown = []
    for attached in ("0", "1"):
        command = [sys.executable, "-c", MEMORY, model_path("big-vocab"), attached]
        grown.append(int(subprocess.check_output(command, text=True, timeout=120)))
    # 500 rows of 150,016 floats are 293,000 kB, in the matrix and once more in the output buffer.
    assert grown[0] > 293_000
    assert grown[1] < grown[0] / 5
