"""ChatPlan: what a chat request asks for, ready for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.engine.request import NO_TOKENS, Request, TokenIds
from ngramspec.server.chat.format import ChatFormat, chat_format, end_of_reasoning
from ngramspec.server.chat.grammar import chat_grammar
from ngramspec.server.chat.messages import text_of
from ngramspec.server.chat.prompt import chat_text
from ngramspec.server.chat.reasoning.budget import budget_tokens
from ngramspec.server.chat.tools import tools_of
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.openai.bodies import ChatBody, OpenAIBody, schema_of
from ngramspec.server.request.bodies import parse
from ngramspec.server.request.engine_request import check_request, make_requests
from ngramspec.server.request.prompts import check_length
from ngramspec.server.request.speculation import speculation_of
from ngramspec.server.settings import ServerSettings

DEFAULT_TOP = 0  # likeliest tokens with logprobs alone, as in OpenAI's API


@dataclass(frozen=True)
class ChatPlan:
    """A chat as engine requests, one per choice, and the shape of the response."""

    requests: Sequence[Request]
    stream: bool
    format: ChatFormat
    include_usage: bool
    timings_per_token: bool
    spans: bool


def plan_chat(raw: bytes, served: ServedModel, settings: ServerSettings, key_id: str) -> ChatPlan:
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
    budget = budget_tokens(body, served)
    if budget == 0:
        body.reasoning_effort = "none"
    text = chat_text(body, served, tools)
    if budget == 0:
        text += end_of_reasoning(served.chat_template, text)
    prompt_ids = served.model.tokenize_prompt(text)
    check_length(prompt_ids, served, settings, "messages")
    parses = (body.reasoning_format or settings.reasoning_format) != "none"
    format = chat_format(served.chat_template, text, tools, parses)
    drafts = speculation_of(body.model_extra, key_id)
    requests = make_requests(
        body,
        served,
        settings,
        prompts=[prompt_ids],
        choices=choices,
        grammar=chat_grammar(body, *schema_of(body), format),
        max_tokens=body.num_tokens,
        logprobs=("n_probs" if body.n_probs else "top_logprobs", _logprobs(body)),
        speculation=drafts.speculation,
        prediction_ids=prediction_of(body, served),
        special=format.shows_special,
        budgets=[format.budget(body, served, budget)],
    )
    return ChatPlan(
        requests=requests,
        stream=bool(body.stream),
        format=format,
        include_usage=body.include_usage,
        timings_per_token=bool(body.timings_per_token),
        spans=drafts.spans,
    )


def prediction_of(body: OpenAIBody, served: ServedModel) -> TokenIds:
    """Return the tokens of the client's prediction of the answer."""
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
    """Refuse what would otherwise be ignored silently."""
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
