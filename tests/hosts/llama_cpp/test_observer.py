"""A drafter that learns from logits, in a Llama: which rows it is shown, and after which tokens."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from ngramspec import NgramDraft, SuccessorPool, attach, create_drafter
from ngramspec.hosts.llama_cpp.draft import MOST_ROWS, LastBatch

TOP = 4
PROMPT = (
    "<|im_start|>user\nRepeat this code:\n```python\ndef total(items):\n    result = 0\n"
    "    for item in items:\n        result += item.price * item.count\n    return result\n```"
    "<|im_end|>\n<|im_start|>assistant\n"
)
WORDS = 'root ::= ([a-z] | " ")+ "."?'
MODES = pytest.mark.parametrize("mode", ["draft_model", "attach"])
Known = dict[tuple[int, ...], tuple[list[int], list[float]]]


class Reference:
    """Copies all rows of every decode, and notes what a drafter must know of them, one by one."""

    def __init__(self, llama: Any) -> None:
        self.by_context: Known = {}
        self.num_wrong = self.most_rows = 0
        self._llama, self._decode = llama, llama._ctx.decode
        self._text: list[int] = []  # evaluated last, with the tokens that proved wrong
        self._before: list[int] = []  # of the last call
        self._rows: dict[int, Any] = {}
        self._first = 0
        llama._ctx.decode = self.decode

    def decode(self, batch: Any) -> None:
        import llama_cpp.llama_cpp as lib

        self._decode(batch)
        raw, context = batch.batch, self._llama._ctx.ctx
        self._first = raw.pos[0]
        tokens = [raw.token[i] for i in range(raw.n_tokens)]
        self._text = [*self._llama.input_ids[: self._first].tolist(), *tokens]
        self._rows = {
            self._first + i: np.ctypeslib.as_array(
                lib.llama_get_logits_ith(context, i), (self.n_vocab,)
            ).copy()
            for i in range(raw.n_tokens)
            if raw.logits[i]
        }

    @property
    def n_vocab(self) -> int:
        return int(self._llama.n_vocab())

    def called(self, ids: list[int]) -> None:
        """Note the rows that follow the tokens evaluated last, before a call with `ids`."""
        before, newest = self._before, len(self._before) - 1
        if self._first <= newest and self._text[: newest + 1] == ids[: newest + 1] == before != []:
            places = [place for place in sorted(self._rows) if place >= newest][:MOST_ROWS]
        else:
            places = [place for place in sorted(self._rows) if place < len(ids) - 1][-MOST_ROWS:]
        self.most_rows = max(self.most_rows, len(self._rows))
        for place in places:
            self.num_wrong += place >= len(ids) - 1
            self._note(self._text[: place + 1], self._rows[place])
        self._before = ids

    def _note(self, text: list[int], row: Any) -> None:
        p = np.exp(row.astype(np.float64) - row.max())
        p /= p.sum()
        many = np.flatnonzero(
            p >= np.partition(p, -TOP)[-TOP]
        )  # a whole sort takes ten times longer
        likeliest = many[np.argsort(-p[many], kind="stable")[:TOP]]
        entry = (likeliest.tolist(), p[likeliest].tolist())
        self.by_context[text[-1],] = entry
        if len(text) > 1:
            self.by_context[text[-2], text[-1]] = entry


class Spied(NgramDraft):
    """Lets the reference note each call first."""

    reference: Reference

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        self.reference.called(input_ids.tolist())
        return super().__call__(input_ids, **kwargs)

    def finish(self, llama: Any, ids: Any) -> None:
        self.reference.called(ids.tolist())
        super().finish(llama, ids)


def make(make_llama: Any, mode: str, spec: str = "recycle", **settings: Any) -> tuple[Any, ...]:
    """Return a Llama with drafts, their NgramDraft, the pool and the reference beside it."""
    pool = SuccessorPool(1 << 14, TOP)
    drafter = create_drafter(spec, slots=2, params={"recycle": {"pool": pool}})
    draft = Spied(drafter=drafter, max_draft=24)
    llama = make_llama("embedded", **{"n_ctx": 512, **settings}, **model_of(draft, mode))
    if mode == "attach":
        attach(llama, draft)
    draft.reference = Reference(llama)
    return llama, draft, pool, draft.reference


def model_of(draft: NgramDraft, mode: str) -> dict[str, Any]:
    return {"draft_model": draft} if mode == "draft_model" else {}


def check(pool: SuccessorPool, reference: Reference) -> None:
    assert pool.num_entries == len(reference.by_context)
    for context, (tokens, p) in reference.by_context.items():
        ids, claimed = pool.successors(list(context))
        assert ids.tolist() == tokens[: ids.size], context
        np.testing.assert_allclose(claimed, p[: ids.size], atol=1e-4)
        assert max(p[ids.size :], default=0.0) < 1e-4  # only what rounds to 0 is left out


def tokens_of(llama: Any, text: str = PROMPT) -> list[int]:
    return list(llama.tokenize(text.encode(), special=True))


def some(generation: Iterable[int], count: int) -> list[int]:
    return list(islice(generation, count))


def hot(llama: Any, seed: int, **request: Any) -> str:
    """Return a text in which any token may come, so that many drafts are wrong."""
    settings = {"temperature": 2.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 40}
    answer = llama.create_completion(PROMPT, seed=seed, **{**settings, **request})
    return str(answer["choices"][0]["text"])


@MODES
@pytest.mark.parametrize("spec", ["recycle", "suffix,recycle"])
def test_the_pool_holds_what_the_model_said_after_each_token(
    make_llama: Any, mode: str, spec: str
) -> None:
    llama, draft, pool, reference = make(make_llama, mode, spec)
    for seed in range(3):
        llama.create_completion(PROMPT, max_tokens=60, temperature=0.0)
        hot(llama, seed)
    check(pool, reference)
    assert pool.num_entries > 100
    assert reference.num_wrong > 20
    assert reference.most_rows > MOST_ROWS  # of which only some are shown
    assert draft.counters.failures == 0
    if spec == "recycle":
        assert draft.stats()["recycle"].num_accepted_tokens > 50


@pytest.fixture(scope="module")
def plain_texts() -> dict[str, list[str]]:
    """Keep what is said without drafts, by the request's name."""
    return {}


@MODES
@pytest.mark.parametrize("request_name", ["greedy", "sampled", "hot", "grammar", "bias", "penalty"])
def test_text_is_the_same_with_what_was_learned(
    make_llama: Any, plain_texts: dict[str, list[str]], mode: str, request_name: str
) -> None:
    from llama_cpp import LlamaGrammar

    requests: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0, "max_tokens": 60},
        "sampled": {"temperature": 0.8, "min_p": 0.05, "top_k": 40},
        "hot": {"temperature": 1.8},
        "grammar": {"temperature": 0.8, "grammar": LlamaGrammar.from_string(WORDS, verbose=False)},
        "bias": {"temperature": 0.8, "logit_bias": {280: 4.0}},
        "penalty": {"temperature": 0.8, "repeat_penalty": 1.3},
    }
    request = requests[request_name]
    llama, draft, pool, reference = make(make_llama, mode)
    seeds = (1, 1, *range(2, 8 if request_name == "grammar" else 3))  # its texts are short
    if request_name not in plain_texts:
        plain = make_llama("embedded", n_ctx=512)
        plain_texts[request_name] = [hot(plain, seed, **request) for seed in seeds]
    assert [hot(llama, seed, **request) for seed in seeds] == plain_texts[request_name]
    check(pool, reference)
    accepted = draft.stats()["recycle"].num_accepted_tokens
    # A plain draft_model gets no drafts beside a logits processor, but learns all the same.
    alone = mode == "draft_model" and request_name == "bias"
    assert accepted == 0 if alone else accepted > 5
    assert pool.num_entries > 20


@MODES
def test_rows_are_shown_as_the_model_made_them(make_llama: Any, mode: str) -> None:
    llama, _, pool, _ = make(make_llama, mode)
    plain = make_llama("embedded", n_ctx=512, logits_all=True)
    prompt = tokens_of(llama)
    plain.eval(prompt)
    row = plain.scores[len(prompt) - 1].astype(np.float64)
    p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    rarest = int(row.argmin())
    text = hot(llama, 1, temperature=0.0, max_tokens=4, logit_bias={rarest: 100.0})
    assert text == llama.detokenize([rarest] * 4).decode()
    tokens, claimed = pool.successors(prompt[-2:])
    assert tokens.tolist() == np.argsort(-p)[: tokens.size].tolist()
    np.testing.assert_allclose(claimed, p[tokens], atol=1e-4)


def interrupt(llama: Any, prompt: list[int]) -> None:
    """Close a generator while a draft is under way, then ask for another text of its length."""
    loop = llama.generate(prompt, temp=0.0)
    text = [*prompt, *some(loop, 6)]
    loop.close()
    some(llama.generate([*text[:-2], 7, 8], temp=0.0), 6)


def ask_again(llama: Any, prompt: list[int]) -> None:
    """The whole prompt is cached: the host samples without a new pass."""
    for _ in range(3):
        some(llama.generate(prompt, temp=0.0), 1)
    some(llama.generate(prompt, temp=0.0), 8)


def start_anew(llama: Any, prompt: list[int]) -> None:
    """Forget all, while a draft is pending."""
    for length in (len(prompt), len(prompt) - 1, 3):
        some(llama.generate(prompt[:length], temp=0.0), 7)
        llama.reset()


def go_back(llama: Any, prompt: list[int]) -> None:
    """Take back a state of another text."""
    some(llama.generate(prompt, temp=0.0), 5)
    state = llama.save_state()
    some(llama.generate(prompt[::-1], temp=0.0), 9)
    llama.load_state(state)
    some(llama.generate(llama.input_ids[: llama.n_tokens].tolist(), temp=0.0), 9)


def fill(llama: Any, prompt: list[int]) -> None:
    """The host cuts the last drafts to the room that is left."""
    text = (prompt * llama.n_ctx())[50 - llama.n_ctx() :]
    some(llama.generate(text, temp=0.0), 50)


def say(llama: Any, prompt: list[int]) -> None:
    """Send tokens into the generator: the next pass holds more than a draft."""
    loop = llama.generate(prompt, temp=0.0)
    some(loop, 4)
    for tokens in ([5, 6], [9], prompt[:4]):
        loop.send(tokens)
        some(loop, 4)
    loop.close()


def cut(llama: Any, prompt: list[int]) -> None:
    """Take tokens back under the generator's hands, as an app that edits its context does."""
    some(llama.generate(prompt, temp=0.0), 9)
    for length in (len(prompt) + 3, len(prompt) // 2):
        llama.n_tokens = length
        llama._ctx.kv_cache_seq_rm(-1, length, -1)
        llama._requires_eval = True
        some(llama.generate(prompt, temp=0.0), 9)


def verify_another(llama: Any, prompt: list[int]) -> None:
    """Evaluate other tokens than the draft's, as an app that steps by itself may."""
    some(llama.generate(prompt, temp=0.0), 3)
    ids, length = llama.input_ids, llama.n_tokens
    ids[length] = 201
    others = [7] * min(llama.draft_model(ids[: length + 1]).size, MOST_ROWS - 1)
    llama.eval([201, *others])
    ids[llama.n_tokens] = 9
    llama.draft_model(ids[: llama.n_tokens + 1])


@MODES
@pytest.mark.parametrize(
    "event", [interrupt, ask_again, start_anew, go_back, fill, say, cut, verify_another]
)
def test_rows_are_paired_rightly_whatever_happens_between(
    make_llama: Any, mode: str, event: Any
) -> None:
    llama, draft, pool, reference = make(make_llama, mode, n_ctx=256, n_batch=256)
    prompt = tokens_of(llama)
    for _ in range(2):
        event(llama, prompt)
        check(pool, reference)
    assert draft.counters.failures == 0
    assert draft.counters.drafted > 0


def test_a_batch_of_another_text_shows_nothing(make_llama: Any) -> None:
    llama, draft, pool, _ = make(make_llama, "draft_model")
    prompt = tokens_of(llama)
    llama.eval(prompt)
    ids = llama.input_ids
    ids[len(prompt)] = 9  # as if it had been chosen
    evaluated = ids.copy()
    ids[len(prompt) - 2] = 9
    NgramDraft.__call__(draft, ids[: len(prompt) + 1])
    assert pool.num_observed == 0
    ids[:] = evaluated
    NgramDraft.__call__(draft, ids[: len(prompt) + 1])
    assert pool.num_observed == 2 * MOST_ROWS  # of each the token, and the pair


def test_long_prompts_in_several_batches_show_the_last_one(make_llama: Any) -> None:
    llama, draft, pool, reference = make(make_llama, "attach", n_batch=16)
    for seed in range(3):
        hot(llama, seed, temperature=0.0)
    check(pool, reference)
    assert draft.stats()["recycle"].num_accepted_tokens > 20


def test_who_learns_nothing_from_logits_reads_none(make_llama: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(LastBatch, "__init__", lambda *_: pytest.fail("it was read"))
    llama = make_llama("embedded", draft_model=NgramDraft("suffix"))
    llama.create_completion(PROMPT, max_tokens=20, temperature=0.0)
    assert llama.draft_model.counters.failures == 0


def test_a_batch_that_is_gone_has_no_rows(make_llama: Any) -> None:
    llama, draft, pool, _ = make(make_llama, "draft_model")
    some(llama.generate(tokens_of(llama), temp=0.0), 6)
    held, ids = pool.num_observed, llama.input_ids
    before = llama.n_tokens
    batch = LastBatch(llama)
    assert batch.rows(0, 1) is not None
    llama._ctx.close()
    assert batch.rows(0, 1) is None
    llama.close()
    assert batch.tokens()[1].size == 0
    ids[before] = 9
    NgramDraft.__call__(draft, ids[: before + 1])
    assert pool.num_observed == held
    assert draft.counters.failures == 0
