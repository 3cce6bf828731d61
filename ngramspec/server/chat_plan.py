"""ChatPlan: what a chat request asks for, ready for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.engine.request import NO_TOKENS, Request, TokenIds
from ngramspec.server.bodies import ChatBody, OpenAIBody, parse
from ngramspec.server.chat_parser import ChatParser
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.go_chat import go_text, with_examples
from ngramspec.server.grammar import chat_grammar
from ngramspec.server.messages import Message, messages_of, text_of, without_tools
from ngramspec.server.prompts import check_length
from ngramspec.server.requests import check_request, make_requests
from ngramspec.server.served import Served
from ngramspec.server.settings import ServerSettings
from ngramspec.server.speculation import speculation_of
from ngramspec.server.thinking import OPEN
from ngramspec.server.tools import SPECIAL_MARKS, Tools, style_of, tools_of

# What a template gets from elsewhere.
_RESERVED = {"messages", "tools", "template", "add_generation_prompt", "bos_token", "eos_token"}
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


def chat_text(body: ChatBody, served: Served, tools: Tools) -> str:
    """Return the prompt of a chat, ready for the answer or to go on with the last one.

    Raises:
        ApiError: The model has no chat template.
        InputError: The template refuses the messages.
    """
    messages, variables, prefill = _template_input(body, served, tools)
    given = [dict(tool.given) for tool in tools.tools] if _knows_tools(served) else []
    if served.go_template is not None:
        return go_text(served.go_template, messages, given, variables) + prefill
    text = served.model.render_chat(
        messages,
        tools=given or None,
        add_generation_prompt=body.add_generation_prompt is not False,
        template=served.template,
        **variables,
    )
    return text + prefill


def prediction_of(body: OpenAIBody, served: Served) -> TokenIds:
    """Return the tokens of what the client expects the answer to be."""
    if body.prediction is None:
        return NO_TOKENS
    if body.prediction.type != "content":
        raise bad_request("prediction.type must be content", "prediction")
    text = text_of(body.prediction.content, "prediction.content")
    return served.model.tokenize(text, add_special=False) if text else NO_TOKENS


def _template_input(
    body: ChatBody, served: Served, tools: Tools
) -> tuple[list[Message], dict[str, Any], str]:
    """Return messages and variables for the template, and the begun answer to go on with."""
    if not served.chat_template:
        raise not_supported("this model has no chat template: use /v1/completions", "messages")
    messages = messages_of(body.messages, served.system)
    messages = with_examples(messages, served.recipe.messages)
    prefill = ""
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        if len(messages) == 1:
            raise bad_request("messages must not begin with the assistant's answer", "messages")
        prefill = messages.pop()["content"]
    if not _knows_tools(served):
        messages = without_tools(messages, tools)
    taken = _RESERVED & set(body.chat_template_kwargs or {})
    if taken:
        raise bad_request(
            f"chat_template_kwargs must not have {', '.join(sorted(taken))}", "chat_template_kwargs"
        )
    variables = {**served.template_variables, **(body.chat_template_kwargs or {})}
    if body.reasoning_effort == "none":
        variables["enable_thinking"] = False
    elif body.reasoning_effort:
        variables["reasoning_effort"] = body.reasoning_effort
    return messages, variables, prefill


def _knows_tools(served: Served) -> bool:
    return (".Tools" if served.go_template else "tools") in served.chat_template


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
