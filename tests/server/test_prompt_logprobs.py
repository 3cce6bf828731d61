"""How likely a prompt is, asked by OpenAI's own client; against llama-cpp-python's own logits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np
import openai
import pytest

from helpers.serving import CHAT, Serving, Start
from ngramspec.models import embedded_model
from ngramspec.server.reply.logprobs import LogprobFormat

TEXTS = [
    "def area(width, height):\n    return width * height\n",
    "one two three",
    "The quick brown fox jumps over the lazy dog. " * 8,  # several batches
]


@pytest.fixture(scope="module")
def reference(server: Serving) -> Iterator[llama_cpp.Llama]:
    """The same model in the server's setting: others round otherwise."""
    most = server.engine.batch_capacity
    llama = llama_cpp.Llama(
        str(embedded_model()),
        n_ctx=2048,
        n_batch=most,
        n_ubatch=most,
        n_threads=1,
        n_threads_batch=1,
        flash_attn=True,
        logits_all=True,
        verbose=False,
    )
    yield llama
    llama.close()


def softmax_logs(llama: llama_cpp.Llama, ids: Sequence[int]) -> np.ndarray:
    """Return the logarithm of the softmax after each token, in double precision."""
    llama.reset()
    llama.eval(ids)
    scores = llama.scores[: len(ids)].astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def ids_of(server: Serving, text: str) -> list[int]:
    body = {"content": text, "add_special": True}
    ids: list[int] = server.post("/tokenize", **body).json()["tokens"]
    return ids


def check(probs: Any, ids: Sequence[int], logs: np.ndarray, top: int) -> None:
    """Compare an echoed prompt's log-probabilities with those of the reference."""
    count = len(ids)
    assert probs.token_logprobs[0] is None
    assert probs.top_logprobs[0] is None
    own = [logs[i - 1, ids[i]] for i in range(1, count)]
    assert probs.token_logprobs[1:count] == pytest.approx(own, abs=1e-4)
    for i, values in enumerate(probs.top_logprobs[1:count]):
        best = np.sort(logs[i])[::-1][:top]
        assert sorted(values.values(), reverse=True) == pytest.approx(best[: len(values)], abs=1e-4)


@pytest.mark.parametrize("most", [0, 1])
def test_an_echo_has_the_log_probabilities_of_the_whole_prompt(
    server: Serving, reference: llama_cpp.Llama, most: int
) -> None:
    prompts = [ids_of(server, text) for text in TEXTS]
    logs = [softmax_logs(reference, ids) for ids in prompts]
    assert max(map(len, prompts)) > 2 * server.engine.batch_capacity
    for _ in range(2):  # the second time slots hold the prompts
        answer = server.complete(prompt=prompts, max_tokens=most, logprobs=1, echo=True)
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        for choice, ids, own in zip(answer.choices, prompts, logs, strict=True):
            probs = choice.logprobs
            lengths = {len(ids) + most}
            members = (probs.tokens, probs.token_logprobs, probs.top_logprobs, probs.text_offset)
            assert set(map(len, members)) == lengths
            check(probs, ids, own, 1)
            plain = server.complete(prompt=ids, max_tokens=most, logprobs=1).choices[0]
            assert choice.text.endswith(plain.text)
            assert probs.token_logprobs[len(ids) :] == plain.logprobs.token_logprobs


def test_a_text_has_the_offsets_of_its_tokens(server: Serving) -> None:
    text = TEXTS[0]
    choice = server.complete(prompt=text, max_tokens=3, logprobs=0, echo=True).choices[0]
    probs = choice.logprobs
    assert choice.text.startswith(text)
    places = list(zip(probs.tokens, probs.text_offset, strict=True))
    assert all(choice.text[at : at + len(token)] == token for token, at in places[1:])
    assert all(top in (None, {}) for top in probs.top_logprobs)


def test_a_stream_tells_with_its_first_text(server: Serving) -> None:
    fields: dict[str, Any] = {"prompt": TEXTS[2], "max_tokens": 5, "logprobs": 2, "echo": True}
    whole = server.complete(**fields).choices[0]
    for extra in ({}, {"return_progress": True}):
        joined: dict[str, list[Any]] = {}
        text = ""
        for event in server.complete(stream=True, extra=extra, **fields):
            text += event.choices[0].text
            if event.choices[0].logprobs:
                for name, members in event.choices[0].logprobs.to_dict().items():
                    joined.setdefault(name, []).extend(members)
        assert text == whole.text
        assert joined == whole.logprobs.to_dict()
    ends = server.complete(stream=True, **{**fields, "max_tokens": 0})
    assert sum(event.choices[0].logprobs is not None for event in ends) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_holds_up_no_other_answer(
    server: Serving, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    echo, on_loop = LogprobFormat.echo, list[bool]()

    def watched(self: LogprobFormat, *arguments: Any) -> Any:
        on_loop.append(asyncio._get_running_loop() is not None)
        return echo(self, *arguments)

    monkeypatch.setattr(LogprobFormat, "echo", watched)
    answer = server.complete(prompt=TEXTS[2], max_tokens=1, logprobs=2, echo=True, stream=stream)
    assert [*answer]
    assert on_loop == [False]


def test_prompt_logprobs_have_vllms_shape(server: Serving, reference: llama_cpp.Llama) -> None:
    ids = ids_of(server, TEXTS[0])
    logs = softmax_logs(reference, ids)
    answer = server.complete(prompt=ids, max_tokens=1, extra={"prompt_logprobs": 3})
    entries = answer.choices[0].prompt_logprobs
    assert entries[0] is None
    for i, entry in enumerate(entries[1:]):
        own, order = entry[str(ids[i + 1])], np.argsort(-logs[i])
        assert own["logprob"] == pytest.approx(logs[i, ids[i + 1]], abs=1e-4)
        assert own["rank"] == 1 + (logs[i] > logs[i, ids[i + 1]]).sum()
        assert set(entry) >= {str(token) for token in order[:3]}
        assert len(entry) in (3, 4)
        assert {one["rank"] for one in entry.values()} >= {1, 2, 3}
        assert all(isinstance(one["decoded_token"], str) for one in entry.values())
    chat = server.chat(max_tokens=1, extra={"prompt_logprobs": 0})
    assert [len(entry or ()) for entry in chat.prompt_logprobs] == (
        [0] + [1] * (chat.usage.prompt_tokens - 1)
    )
    both = server.complete(
        prompt=ids, max_tokens=1, logprobs=1, echo=True, extra={"prompt_logprobs": 3}
    ).choices[0]
    assert both.prompt_logprobs == entries
    assert all(len(top or ()) <= 1 for top in both.logprobs.top_logprobs)


def test_an_end_token_keeps_its_place(start: Start) -> None:
    """Clients drop the last entry of a request for one token, whatever that token is."""
    server = start()
    end = server.served.model.eos
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "logit_bias": {str(end): 100}}
    ids = ids_of(server, TEXTS[1])
    choice = server.complete(prompt=ids, **body).choices[0]
    assert choice.finish_reason == "stop"
    assert len(choice.logprobs.token_logprobs) == len(ids) + 1
    assert math.isfinite(choice.logprobs.token_logprobs[-1])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 1, "extra": {"post_sampling_probs": True}}, "echo"),
        ({"echo": True, "logprobs": 1, "suffix": "x"}, "echo"),
        ({"echo": True, "logprobs": 1001}, "logprobs"),
        ({"echo": True, "logprobs": 1000, "prompt": list(range(300))}, "logprobs"),
        ({"extra": {"prompt_logprobs": -1}}, "prompt_logprobs"),
        ({"extra": {"prompt_logprobs": 1001}}, "prompt_logprobs"),
        ({"extra": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs"),
        ({"extra": {"prompt_logprobs": 900}, "prompt": list(range(300))}, "prompt_logprobs"),
    ],
)
def test_what_cannot_be_told_is_refused(
    server: Serving, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.complete(**{"max_tokens": 1, **fields})
    assert caught.value.param == param


def test_a_chat_does_not_stream_them(server: Serving) -> None:
    with pytest.raises(openai.BadRequestError, match="stream"):
        server.chat(messages=CHAT, stream=True, extra={"prompt_logprobs": 0})
