"""Trees of drafts on the embedded model, in its exact setting: text and logprobs as without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ngramspec import LLM, embedded_model
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec._native.engine.slot import Slot
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, Generation, Request, Sampling, speculator
from ngramspec.engine.sequences import Sequences

FLAT = CostTable(((1, 1.0), (63, 1.1)))  # so that trees pay
PROMPTS = [
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef add3(",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k in range(",
    "x = 1\ny = 2\nz = 3\nprint(x)\nprint(y)\nprint(z)\nx = 4\ny = 5\nprint(",
    "class A:\n    def __init__(self):\n        self.a = 1\n\nclass B:\n    def __init__(self):\n",
]
FRESH = [  # begin what is not in them: there a draft model is right where n-grams find nothing
    "def mean(values):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\ndef read(path):\n",
    "def fibonacci(n):\n",
]
GREEDY = Sampling(temperature=0.0)
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 7},
    "hot, with penalties": {"temperature": 1.3, "seed": 3, "repeat_penalty": 1.2},
    "stop text": {"temperature": 0, "stop": ("return",)},
    "grammar": {"temperature": 0.8, "seed": 5, "grammar": 'root ::= ([a-z =().:]* "\\n")+'},
    "logprobs": {"temperature": 0.8, "seed": 1, "logprobs": 3},
    "logprobs of the sampler": {
        **{"temperature": 0.8, "seed": 1, "logprobs": 3},
        "post_sampling_probs": True,
    },
}
NEAR_TIE = 0.5  # of log-probability: more than what rounding moves


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LLM]]:
    """Return engines without drafts, without branches and with them, by name."""
    options: dict[str, Any] = {"slots": 1, "context_size": 1024, "exact": True}
    with (
        LLM(None, None, **options) as plain,
        LLM(policy=AutoPolicy(62, FLAT), tree="off", **options) as chains,
        LLM(policy=AutoPolicy(62, FLAT), tree=4, **options) as branched,
    ):
        yield {"plain": plain, "chains": chains, "branches": branched}


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the branches that were right."""
    noted: list[int] = []
    reject = Sequences.reject

    def noting(self: Sequences, slot: Slot) -> None:
        noted.append(slot.branch)
        reject(self, slot)

    monkeypatch.setattr(Sequences, "reject", noting)
    return noted


def content_of(answer: Generation) -> tuple[Any, ...]:
    return list(answer.token_ids), answer.text, answer.finish_reason, list(answer.logprobs)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_text_is_that_of_plain_decoding(
    still: None, engines: dict[str, LLM], branches: list[int], name: str
) -> None:
    options = {"max_tokens": 40, **OPTIONS[name]}
    texts = {}
    for kind, engine in engines.items():
        branches.clear()
        texts[kind] = [content_of(answer) for answer in engine.generate(PROMPTS, **options)]
    assert texts["chains"] == texts["plain"]
    assert texts["branches"] == texts["plain"]
    assert any(branches) or name not in ("greedy", "sampled")


def test_an_exact_target_has_branches_only_where_they_change_no_bit(
    engines: dict[str, LLM],
) -> None:
    assert engines["branches"].engine.drafting().branches == 4
    with LLM(slots=2, context_size=256, exact=True) as several:
        drafting = several.engine.drafting()
    assert drafting.branches == 1
    assert "drafts have no branches: each slot has a cache of its own" in drafting.notes


@pytest.mark.parametrize("kind", ["chains", "branches"])
def test_what_a_grammar_forbids_is_not_drafted(
    still: None, engines: dict[str, LLM], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The text before suggests digits, the grammar wants letters."""
    prompt = "c = 12 + 34\n" * 6
    engine, drafted = engines[kind], list[bytes]()
    decode = engine.target.decode

    def noting(batch: Batch, rows: Rows) -> None:
        tokens, _, _, outputs = batch.arrays()
        drafted.extend(engine.model.piece(token) for token in tokens[outputs][1:].tolist())
        decode(batch, rows)

    monkeypatch.setattr(engine.target, "decode", noting)
    engine.generate(prompt, max_tokens=40, temperature=0)
    assert any(set(piece) & set(b"1234") for piece in drafted)  # without a grammar
    drafted.clear()
    engine.generate(prompt, max_tokens=40, temperature=0, grammar='root ::= "c = " [a-z ]+')
    assert all(set(piece) <= set(b"abcdefghijklmnopqrstuvwxyz =") for piece in drafted)


def test_a_model_beside_a_tree_says_what_plain_decoding_says(
    still: None, engines: dict[str, LLM], branches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may differ in the fast setting, so token by token, each after the same text.

    The requests are handed in before the first pass: which of them share passes, and so what is
    drafted, hangs on no thread.
    """
    plain, same, total = engines["plain"], 0, 0
    monkeypatch.setattr(speculator, "FIRST_PRICE", 0.01)
    options: dict[str, Any] = {"slots": 2, "tree": 4}
    small = str(embedded_model())
    with LLM(draft_model=small, context_size=512, calibrate=0, **options) as llm:
        policy = AutoPolicy(62, FLAT)
        both = Engine(llm.target, draft_model=llm.engine._draft_model, policy=policy, **options)
        asked = [
            Request(prompt_ids=llm.model.tokenize(prompt), max_tokens=40, sampling=GREEDY)
            for prompt in (*FRESH[:3], *PROMPTS[:3])
        ]
        answers = both.generate(asked)
        sources = both.source_stats()
        both.close()
    assert sources["draft-simple"].num_accepted_tokens > 10
    assert sources["suffix"].num_accepted_tokens > 10
    assert any(branches)
    for one in answers:
        ids, emitted = one.request.prompt_ids.tolist(), list(one.token_ids)
        for i, token in enumerate(emitted):
            text = [ids + emitted[:i]]
            (alone,) = plain.generate(text, max_tokens=1, temperature=0, logprobs=8)
            same += list(alone.token_ids) == [token]
            total += 1
            likeliest = alone.logprobs[0]
            assert likeliest.logprob - dict(likeliest.top)[token] < NEAR_TIE
    assert same >= 0.95 * total
