"""Where text is bit-equal, and what holds where it is not: docs/explanation/exactness.md.

A verification batch computes several positions at once. Whether each row then has the same bits as
alone is up to llama.cpp's kernels. Where it has, text is equal (test_lossless). Where it has not,
two things are shown here: every token is the target's own choice from the logits of its row, and
texts part only where the two best tokens are as close as the rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helpers.adversaries import half_right
from ngramspec import attach
from ngramspec.hosts.llama_cpp import NgramDraft

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
CODE = (
    "<|im_start|>user\nRepeat this code:\n```python\ndef total(items):\n    result = 0\n"
    "    for item in items:\n        result += item.price * item.count\n    return result\n```"
    "<|im_end|>\n<|im_start|>assistant\n"
)
# Settings in which rounding depends on the batch.
INEXACT = {
    "two threads": ("embedded", {"n_threads": 2, "n_threads_batch": 2}),
    "no flash attention": ("embedded", {"flash_attn": False}),
    "f16 weights": ("llama-f16", {}),
    "f16 weights, two threads": ("llama-f16", {"n_threads": 2}),
    "sliding window that wraps": ("gemma3", {"swa_full": False, "n_batch": 64}),
    "drafts of 63 and more": ("llama", {}),
}
# What rounding may move logits by, on average, as a share of their standard deviation: 0.03 was
# measured. A single one of the embedded model moves by up to 1.7 of a range of 33, on some CPUs.
MOST = 0.1


class Recorder:
    """Keeps position, logits and token of every choice that a Llama makes."""

    def __init__(self, llama: Any) -> None:
        self.rows: list[np.ndarray] = []
        self.tokens: list[int] = []
        self._llama, self._sample = llama, llama.sample
        llama.sample = self._record

    def _record(self, *args: Any, idx: int, **kwargs: Any) -> int:
        import llama_cpp.llama_cpp as lib

        llama = self._llama
        pointer = lib.llama_get_logits_ith(llama.ctx, idx - llama.n_tokens)
        row = np.ctypeslib.as_array(pointer, shape=(llama.n_vocab(),)).copy()
        token = self._sample(*args, idx=idx, **kwargs)
        self.rows.append(row)
        self.tokens.append(token)
        return token


def choices(llama: Any, rows: Sequence[np.ndarray], temperature: float, seed: int) -> list[int]:
    """Return what a fresh sampler chain of the target chooses from these rows alone."""
    import llama_cpp.llama_cpp as lib

    llama.set_seed(seed)
    chain = llama._init_sampler(temp=temperature)
    chosen = []
    for row in rows:
        data = (lib.llama_token_data * row.size)()
        for token, logit in enumerate(row.tolist()):
            data[token].id, data[token].logit = token, logit
        candidates = lib.llama_token_data_array(data=data, size=row.size, selected=-1, sorted=False)
        lib.llama_sampler_apply(chain.sampler, ctypes.byref(candidates))
        chosen.append(int(candidates.data[candidates.selected].id))
        lib.llama_sampler_accept(chain.sampler, chosen[-1])
    chain.close()
    return chosen


def both_runs(
    make_llama: Any, setting: str, temperature: float, max_draft: int = 16
) -> tuple[Recorder, Recorder, Any]:
    """Run a request without and with drafts that are half right, recording both."""
    name, settings = INEXACT[setting]
    prompt_text = CODE if name == "embedded" else PROSE
    options = {"max_tokens": 80, "temperature": temperature, "seed": 11}
    plain = make_llama(name, **settings)
    prompt = plain.tokenize(prompt_text.encode(), special=True)
    before = Recorder(plain)
    plain.create_completion(prompt, **options)
    drafter = half_right([prompt + before.tokens], plain.n_vocab())
    llama = make_llama(name, **settings)
    attachment = attach(llama, NgramDraft(drafter=drafter, max_draft=max_draft))
    after = Recorder(llama)
    llama.create_completion(prompt, **options)
    assert attachment.draft.counters.drafted > 30
    return before, after, llama


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("setting", INEXACT)
def test_every_token_is_the_targets_own_choice(
    make_llama: Any, setting: str, temperature: float
) -> None:
    max_draft = 80 if "63" in setting else 16
    before, after, llama = both_runs(make_llama, setting, temperature, max_draft)
    assert after.tokens == choices(llama, after.rows, temperature, seed=11)
    if temperature == 0.0:
        assert after.tokens == [int(row.argmax()) for row in after.rows]
    for old, new, one, other in zip(
        before.rows, after.rows, before.tokens, after.tokens, strict=False
    ):
        moved = float(np.abs(old - new).max())
        assert np.abs(old - new).mean() <= MOST * old.std()
        if one != other:
            if temperature == 0.0:
                best = np.sort(old)[-2:]
                assert best[1] - best[0] <= 2 * moved
            break


@pytest.mark.parametrize("name", ["llama", "gemma3", "big-vocab", "embedded"])
def test_in_the_exact_setting_rows_do_not_depend_on_the_batch(make_llama: Any, name: str) -> None:
    llama = make_llama(name)
    rng = np.random.default_rng(0)
    tokens = rng.integers(270, 350, size=60 + 126).tolist()
    alone = rows_of(llama, tokens, 60, 1)
    for size in (2, 3, 4, 5, 8, 16, 17, 33, 62, 63):
        assert np.array_equal(rows_of(llama, tokens, 60, size), alone), size


def test_from_64_tokens_on_flash_attention_rounds_differently(make_llama: Any) -> None:
    """The reason for max_draft = 62. If this fails, llama.cpp has changed: adapt the default."""
    llama = make_llama("embedded")
    tokens = np.random.default_rng(0).integers(270, 350, size=60 + 128).tolist()
    alone, batched = rows_of(llama, tokens, 60, 1), rows_of(llama, tokens, 60, 64)
    assert not np.array_equal(alone, batched)
    assert np.abs(alone - batched).mean() < MOST * alone.std()
    assert NgramDraft("ngram-simple").max_draft + 1 < 64


def rows_of(llama: Any, tokens: list[int], start: int, size: int) -> np.ndarray:
    """Return the logits of tokens[start:], decoded in batches of `size` after the rest."""
    llama._ctx.kv_cache_clear()
    llama._batch.set_batch(tokens[:start], 0, False)
    llama._ctx.decode(llama._batch)
    rows = []
    for first in range(start, len(tokens), size):
        batch = tokens[first : first + size]
        llama._batch.set_batch(batch, first, True)
        llama._ctx.decode(llama._batch)
        shape = (len(batch), llama.n_vocab())
        rows.append(np.ctypeslib.as_array(llama._ctx.get_logits(), shape=shape).copy())
    return np.concatenate(rows)
