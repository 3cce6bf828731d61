"""How many tokens of an answer are reasoning: by place in the text, and in every API's usage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from helpers.protocols import Chat, Protocol, events_in, of
from helpers.scripted_serving import serving_script
from helpers.serving import THINK, Serving
from ngramspec.server.reply.timings import reasoning_tokens
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.parser import ChatParser
from ngramspec.text.chat.tools import Tool, Tools

NOW = Tools((Tool("now", {}, {}),))
QWEN = "<tool_call> <function= <parameter= <think>"
CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
GPT_OSS, MUSE = "<|channel|> <|message|>", "<atem:function_calls> <|eom|>"
# template, end of the prompt, and the answer, with [[ ]] around its reasoning
ANSWERS = [
    ("<think>", "", "[[<think>\na</b> c\n</think>]]\n\nx "),
    ("<think>", "", "[[\n<think>a</think>]]x"),
    ("<think>", "<think>\n", "[[a\n</think>]]\n\nx"),
    ("<think>", "<think>\n", "[[\n\n</think>]]\n\nx"),
    ("<think>", "<think>\n", "[[never ended]]"),
    ("<think>", "<think>\n\n</think>\n\n", "x"),
    ("<think>", "", "</think>x"),
    ("<think>", "", "<thin"),
    ("<think>", "", "x <think>y</think>"),
    ("", "", "\U0001f600"),
    ("<think>", "", "[[<think>\u00e9\U0001f600</think>]]\u00e9"),
    ("<|channel>thought", "",
     "[[<|channel>thought\na<channel|>]]x[[<|channel>thought\nb<channel|>]]y"),
    ("<|START_THINKING|> <|START_TEXT|>", "<|START_THINKING|>", "[[a<|START_TEXT|>]]x"),
    (QWEN, "<think>\n", f"[[I look: <tool_call> or not.\n]]{CALL}"),
    (QWEN, "", f"[[<think>\nI look.</think>]]\n{CALL} {CALL}"),
    (GPT_OSS, "<|start|>assistant",
     "[[<|channel|>analysis<|message|>Hm.<|end|>]]<|start|>assistant<|channel|>final<|message|>x"),
    (GPT_OSS, "<|start|>assistant",
     "[[<|channel|>analysis<|message|>a<|end|>]][[<|start|>assistant<|channel|>analysis<|message|>b<|end|>]]"
     "<|start|>assistant<|channel|>final<|message|>x"),
    (MUSE, "<|start|>assistant",
     " [[to=self<|message|>Hm.<|eom|>]]<|start|>assistant to=user<|message|>x<|eot|>"),
]  # fmt: skip


def marked(parser: ChatParser, answer: str) -> str:
    """Return an answer with [[ ]] around what a parser took for reasoning."""
    text, at = "", 0
    for start, end in parser.thoughts:
        assert at <= start <= end
        text, at = f"{text}{answer[at:start]}[[{answer[start:end]}]]", end
    return text + answer[at:]


@pytest.mark.parametrize(("template", "prompt", "expected"), ANSWERS)
def test_a_parser_tells_where_the_reasoning_stood(
    template: str, prompt: str, expected: str
) -> None:
    answer = expected.replace("[[", "").replace("]]", "")
    format = chat_format(template, prompt, NOW, parses_reasoning=True)
    pieces = [[answer[:cut], answer[cut:]] for cut in range(len(answer))]
    for cut in [*pieces, list(answer)]:
        parser = format.parser()
        for piece in cut:
            parser.feed(piece)
        parser.feed("", last=True)
        assert marked(parser, answer) == expected


def test_where_reasoning_is_not_told_apart_there_is_none() -> None:
    parser = chat_format("<think>", "").parser()
    parser.feed("<think>a</think>x", last=True)
    assert parser.thoughts == []


def counted(tokens: list[bytes], thoughts: list[tuple[int, int]]) -> int:
    text = b"".join(tokens).decode()
    request = SimpleNamespace(special=True)
    generation: Any = SimpleNamespace(
        text=text, token_ids=list(range(len(tokens))), request=request
    )
    model: Any = SimpleNamespace(piece=lambda token, special: tokens[token] if special else b"")
    return reasoning_tokens(generation, thoughts, model)


@pytest.mark.parametrize(
    ("tokens", "thoughts", "expected"),
    [
        ([b"<think>", b"a", b"</think>", b"x"], [(0, 16)], 3),
        ([b"<think>", b"a", b"</thi", b"nk>\n\nx", b"y"], [(0, 16)], 4),  # one holds the answer too
        ([b"<think>a</think>xy"], [(0, 16)], 1),
        ([b"<think>", b"a"], [(0, 8)], 2),
        ([b"a"], [], 0),
        ([b"x", b"<a>", b"b", b"y", b"<a>", b"c"], [(1, 5), (6, 10)], 4),
        ([b"x<a>b", b"y", b"<a>c"], [(1, 5), (6, 10)], 2),
        ([b"x<a>by<a>c", b"z"], [(1, 5), (6, 10)], 1),  # counts once
        ([b"<a>", b"\xf0\x9f", b"\x98\x80", b"</a>", b"x"], [(0, 8)], 4),
        ([b"<a>", b"", b"b", b"</a>", b"", b"x"], [(0, 8)], 4),  # one without a text is among them
    ],
)
def test_tokens_count_up_to_the_one_that_holds_the_closing_mark(
    tokens: list[bytes], thoughts: list[tuple[int, int]], expected: int
) -> None:
    assert counted(tokens, thoughts) == expected


# -- in every API's usage ------------------------------------------------------------------------

THOUGHT = "<think>Well.</think>"  # the scripted model's tokens are bytes


@of("/v1/chat/completions", "/v1/responses", "/v1/messages")
@pytest.mark.parametrize("thought", [THOUGHT, ""])
def test_usage_tells_of_the_reasoning(protocol: Protocol, thought: str) -> None:
    body = protocol.body("?")
    with serving_script(f"{thought}Yes.") as client:
        whole = protocol.read(client.post(protocol.path, json=body).json())
        stream = client.post(protocol.path, json={**body, "stream": True}).text
    for answer in (whole, protocol.join(events_in(stream))):
        assert answer.reasoning_tokens == len(thought)
        assert answer.tokens == len(f"{thought}Yes.")


@pytest.mark.parametrize(
    ("fields", "count"), [({"n": 2}, 2 * len(THOUGHT)), ({"reasoning_format": "none"}, 0)]
)
def test_the_reasoning_of_all_choices_is_summed_where_it_is_told_apart(
    fields: dict[str, Any], count: int
) -> None:
    body = Chat().body("?", **fields)
    with serving_script(f"{THOUGHT}Yes.") as client:
        whole = client.post(Chat.path, json=body).json()["usage"]
        stream = client.post(Chat.path, json={**body, "stream": True}).text
    for usage in (whole, events_in(stream)[-1]["usage"]):
        assert usage["completion_tokens_details"]["reasoning_tokens"] == count


def test_no_text_is_tokenized_for_the_usage(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    tokenize = type(server.served.model).tokenize

    def noted(model: Any, text: str, **settings: Any) -> Any:
        texts.append(text)
        return tokenize(model, text, **settings)

    monkeypatch.setattr(type(server.served.model), "tokenize", noted)
    body = {"input": THINK, "temperature": 0, "max_output_tokens": 150}
    answer = server.post("/v1/responses", **body).json()
    thought = answer["output"][0]["content"][0]["text"]
    ids = server.post("/tokenize", content=thought).json()["tokens"]
    # and the marks, with the white space around them
    assert len(ids) < answer["usage"]["output_tokens_details"]["reasoning_tokens"] <= len(ids) + 12
    assert [text for text in texts if text == thought] == [thought]  # that of /tokenize
