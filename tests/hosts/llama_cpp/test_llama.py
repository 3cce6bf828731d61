"""ngramspec.Llama beside llama_cpp.Llama: the same answers, errors and attributes; but drafts."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import ngramspec
from helpers.adversaries import garbage
from ngramspec import NgramDraft

llama_cpp = pytest.importorskip("llama_cpp")

CODE = "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n"
TASK = f"Repeat this code:\n\n```python\n{CODE}```"
PROMPT = f"<|im_start|>user\n{TASK}<|im_end|>\n<|im_start|>assistant\n"
CHAT = {"messages": [{"role": "user", "content": TASK}], "max_tokens": 60, "seed": 5}
WORDS = 'root ::= ([a-z] | " ")+ "."?'


@pytest.fixture
def make_both(make_llama: Any) -> Callable[..., tuple[Any, Any]]:
    """Return a function that loads a model by llama_cpp's class and by ours."""

    def make(name: str = "embedded", **settings: Any) -> tuple[Any, Any]:
        return make_llama(name, **settings), make_llama(name, ngramspec.Llama, **settings)

    return make


def complete(llama: Any, **request: Any) -> Any:
    return llama.create_completion(
        **{"prompt": PROMPT, "max_tokens": 60, "temperature": 0.0, **request}
    )


def count_ids(input_ids: Any, scores: Any) -> Any:
    scores = scores.copy()
    scores[300 + len(input_ids) % 40] += 3.0
    return scores


def states(llama: Any) -> list[Any]:
    answers = [complete(llama)]
    state = llama.save_state()
    answers.append(complete(llama, prompt="def other"))
    llama.load_state(state)
    return [*answers, state.input_ids[: state.n_tokens].tolist(), llama.n_tokens, complete(llama)]


def cached(llama: Any) -> list[Any]:
    llama.set_cache(llama_cpp.LlamaRAMCache())
    answers = [complete(llama), complete(llama, max_tokens=5), complete(llama)]
    llama.set_cache(None)
    return answers


def by_hand(llama: Any) -> list[Any]:
    tokens = llama.tokenize(PROMPT.encode(), special=True)
    llama.reset()
    llama.eval(tokens)
    chosen = [llama.sample(temp=0.0), llama.sample(temp=0.0, idx=len(tokens) - 1)]
    text = list(islice(llama.generate(tokens, temp=0.0), 30))
    return [tokens, chosen, text, llama.n_tokens, list(llama.eval_tokens)]


def pickled(llama: Any) -> Any:
    copy = pickle.loads(pickle.dumps(llama))
    assert type(copy) is type(llama)
    try:
        return complete(copy)
    finally:
        copy.close()


def ended(llama: Any) -> list[Any]:
    llama.close()
    llama.close()
    return [llama._ctx.ctx, llama._model.model, llama._batch.batch]


CALLS: dict[str, Callable[[Any], Any]] = {
    "greedy": complete,
    "sampled": lambda llama: complete(llama, temperature=1.2, seed=3),
    "called": lambda llama: llama(PROMPT, max_tokens=30, temperature=0.0, stop=["item"]),
    "echo": lambda llama: complete(llama, echo=True, suffix=" end"),
    "stream": lambda llama: list(complete(llama, stream=True, stop=["price"])),
    "penalties": lambda llama: complete(llama, temperature=0.8, seed=1, repeat_penalty=1.3),
    "mirostat": lambda llama: complete(llama, temperature=0.8, seed=1, mirostat_mode=2),
    "bias": lambda llama: complete(llama, logit_bias={280: 4.0}),
    "grammar": lambda llama: complete(
        llama, grammar=llama_cpp.LlamaGrammar.from_string(WORDS, verbose=False)
    ),
    "processor": lambda llama: complete(
        llama, logits_processor=llama_cpp.LogitsProcessorList([count_ids])
    ),
    "criterion": lambda llama: complete(
        llama, stopping_criteria=llama_cpp.StoppingCriteriaList([lambda ids, row: len(ids) > 99])
    ),
    "logprobs": lambda llama: complete(llama, logprobs=2),
    "whole context": lambda llama: llama.create_completion(PROMPT, max_tokens=None, seed=2),
    "too long": lambda llama: llama.create_completion(PROMPT * 20),
    "chat": lambda llama: llama.create_chat_completion(**CHAT, temperature=0.0),
    "chat stream": lambda llama: list(llama.create_chat_completion(**CHAT, stream=True)),
    "chat json": lambda llama: llama.create_chat_completion(
        **CHAT, response_format={"type": "json_object"}
    ),
    "chat logprobs": lambda llama: llama.create_chat_completion(**CHAT, logprobs=True),
    "openai": lambda llama: llama.create_chat_completion_openai_v1(**CHAT).model_dump(),
    "embed": lambda llama: llama.embed("abc"),
    "embedding": lambda llama: llama.create_embedding("abc"),
    "texts": lambda llama: [
        llama.tokenizer().encode(CODE),
        llama.detokenize(llama.tokenize(CODE.encode())),
        *(llama.token_bos(), llama.token_eos(), llama.token_nl(), llama.n_ctx(), llama.n_vocab()),
        *(llama.n_embd(), llama.metadata, llama.chat_format, llama.model_path, llama.n_batch),
    ],
    "states": states,
    "cache": cached,
    "by hand": by_hand,
    "pickle": pickled,
    "close": ended,
}


def outcome(call: Callable[[Any], Any], llama: Any) -> Any:
    """Return the result without what differs from call to call, or the error."""
    try:
        return strip(call(llama))
    except (ImportError, RuntimeError, ValueError) as error:
        return type(error), str(error)


def strip(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: strip(one) for key, one in node.items() if key not in ("id", "created")}
    return [strip(one) for one in node] if isinstance(node, list) else node


@pytest.mark.parametrize("name", CALLS)
def test_each_call_gives_what_llama_cpp_gives(make_both: Any, name: str) -> None:
    plain, ours = make_both(n_batch=64)
    for _ in range(2):
        assert outcome(CALLS[name], ours) == outcome(CALLS[name], plain)
        if name == "close":
            return
    assert not plain.draft_model
    complete(ours)
    assert ours.draft_model.counters.accepted > 10


@pytest.mark.parametrize(
    ("name", "settings", "call"),
    [
        ("embedded", {"logits_all": True}, CALLS["logprobs"]),
        ("embedded", {"logits_all": True}, lambda llama: [complete(llama), llama.scores[3].sum()]),
        ("embedded", {"embedding": True}, CALLS["embedding"]),
        ("embedded", {"n_batch": 1}, complete),
        ("embedded", {"vocab_only": True}, lambda llama: llama.tokenize(CODE.encode())),
        ("embedded", {"draft_model": lambda ids: ids[:0]}, complete),
        ("mamba", {}, complete),
        ("lfm2", {"draft_model": NgramDraft(drafter=garbage(300))}, complete),
    ],
)
def test_where_it_cannot_draft_it_is_llama_cpps_and_says_so(
    make_both: Any, name: str, settings: dict[str, Any], call: Any, caplog: Any
) -> None:
    plain, ours = make_both(name, **settings)
    if isinstance(plain.draft_model, NgramDraft):  # which llama_cpp's own class keeps
        plain.draft_model = None
    assert "does not draft" in caplog.messages[-1]
    assert vars(ours).keys() == vars(plain).keys()
    assert ours.draft_model is plain.draft_model
    for _ in range(2):
        assert outcome(call, ours) == outcome(call, plain)
    assert sum("does not draft" in line for line in caplog.messages) == 1


def test_the_class_looks_like_llama_cpps(make_both: Any) -> None:
    plain, ours = make_both(draft_model=NgramDraft("ngram-cache", max_draft=7))
    assert isinstance(ours, llama_cpp.Llama)
    assert inspect.signature(ngramspec.Llama) == inspect.signature(llama_cpp.Llama)
    assert {name for name in dir(ngramspec.Llama) if not name.startswith("__")} == {
        name for name in dir(llama_cpp.Llama) if not name.startswith("__")
    }
    assert "generate" in vars(ours)
    assert ours.draft_model is plain.draft_model
    assert ours.draft_model.max_draft == 7
    assert not np.shares_memory(ours.input_ids, plain.input_ids)


def test_it_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, ngramspec; assert 'Llama' in dir(ngramspec); from ngramspec import *;"
        "assert 'llama_cpp' not in sys.modules; ngramspec.Llama; assert 'llama_cpp' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_generator_may_live_until_the_process_ends() -> None:
    lines = (
        "from ngramspec import Llama, embedded_model",
        "llama = Llama(str(embedded_model()), n_ctx=256, verbose=False)",
        "tokens = llama.generate([5, 6, 7] * 5)",
        "print(next(tokens), next(tokens))",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
