"""ChatPlan: what a chat request asks for, ready for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.engine.request import NO_TOKENS, Request, TokenIds
from ngramspec.server.chat.messages import text_of
from ngramspec.server.chat.parser import ChatParser
from ngramspec.server.chat.prompt import chat_text
from ngramspec.server.chat.thinking import OPEN
from ngramspec.server.chat.tools import SPECIAL_MARKS, Tools, style_of, tools_of
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.request.bodies import ChatBody, OpenAIBody, parse
from ngramspec.server.request.grammar import chat_grammar
from ngramspec.server.request.make import check_request, make_requests
from ngramspec.server.request.prompts import check_length
from ngramspec.server.request.speculation import speculation_of
from ngramspec.server.served import Served
from ngramspec.server.settings import ServerSettings

DEFAULT_TOP = 0  # likeliest tokens with logprobs alone, as in OpenAI's API


@dataclass(frozen=True)
class ChatPlan:
    """A chat as engine requests, one per choice, and how its answer is told."""

    requests: Sequence[Request]
    stream: bool
    tools: Tools
    thinking: bool  # the prompt opens the reasoning
    parses_thinking: bool
    include_usage: bool
    timings_per_token: bool
    spans: bool

    def parser(self) -> ChatParser:
        """Return a parser for one choice."""
        return ChatParser(self.tools, self.parses_thinking, self.thinking)


def plan_chat(raw: bytes, served: Served, settings: ServerSettings, key_id: str) -> ChatPlan:
    """Read the body of a chat request.

    Raises:
        ApiError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body = parse(raw, ChatBody)
    _refuse(body)
    choices = 1 if body.n is None else body.n
    check_request(body, settings, choices)
    tools = tools_of(body)
    text = chat_text(body, served, tools)
    thinking = text.rstrip().endswith(OPEN)
    prompt_ids = served.model.tokenize_prompt(text)
    check_length(prompt_ids, served, settings, "messages")
    parses = (body.reasoning_format or settings.reasoning_format) != "none"
    drafts = speculation_of(body.model_extra, key_id)
    style = style_of(served.chat_template)
    field = "json_schema" if body.response_format is None else "response_format"
    requests = make_requests(
        body,
        served,
        settings,
        prompts=[prompt_ids],
        choices=choices,
        grammar=chat_grammar(body, body.response_format, tools, style, thinking, field),
        max_tokens=body.num_tokens,
        logprobs=("n_probs" if body.n_probs else "top_logprobs", _logprobs(body)),
        speculation=drafts.speculation,
        prediction_ids=prediction_of(body, served),
        special=bool(tools) and any(mark in served.chat_template for mark in SPECIAL_MARKS),
    )
    return ChatPlan(
        requests=requests,
        stream=bool(body.stream),
        tools=tools,
        thinking=thinking,
        parses_thinking=parses,
        include_usage=body.include_usage,
        timings_per_token=bool(body.timings_per_token),
        spans=drafts.spans,
    )


def prediction_of(body: OpenAIBody, served: Served) -> TokenIds:
    """Return the tokens of what the client expects the answer to be."""
    if body.prediction is None:
        return NO_TOKENS
    if body.prediction.type != "content":
        raise bad_request("prediction.type must be content", "prediction")
    text = text_of(body.prediction.content, "prediction.content")
    return served.model.tokenize(text, add_special=False) if text else NO_TOKENS


def _logprobs(body: ChatBody) -> int | None:
    if body.n_probs:
        return body.n_probs
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs requires logprobs to be true", "top_logprobs")
    return (body.top_logprobs or DEFAULT_TOP) if body.logprobs else None


def _refuse(body: ChatBody) -> None:
    """Refuse what would be left out in silence otherwise."""
    extra = body.model_extra or {}
    for name in ("functions", "function_call"):
        if extra.get(name):
            raise not_supported(f"{name} is not supported: use tools", name)
    if extra.get("audio") or "audio" in (extra.get("modalities") or []):
        raise not_supported("this server answers in text only", "modalities")
    if body.reasoning_format not in (None, "auto", "none", "deepseek"):
        raise bad_request(
            f"reasoning_format must be auto, deepseek or none, got {body.reasoning_format!r}",
            "reasoning_format",
        )
