"""ChatCompletionPlan: what a chat request asks for, ready for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ngramspec.server.chat.plan import ChatPlan, plan_conversation
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.incoming import Incoming
from ngramspec.server.openai.bodies import ChatBody
from ngramspec.server.request.bodies import parse

REASONING_FORMATS = ("auto", "none", "deepseek", "deepseek-legacy")  # all but none split it off


@dataclass(frozen=True)
class ChatCompletionPlan(ChatPlan):
    """A chat as engine requests, and the shape of the response."""

    include_usage: bool
    verbose: bool
    shows_reasoning: bool


def plan_chat(incoming: Incoming) -> ChatCompletionPlan:
    """Read the body of a chat request.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body = parse(incoming.raw, ChatBody)
    _refuse(body)
    shows_reasoning = body.include_reasoning is not False
    kind = partial(
        ChatCompletionPlan,
        include_usage=body.include_usage,
        verbose=incoming.settings.verbose if body.verbose is None else body.verbose,
        shows_reasoning=shows_reasoning,
    )
    reasoning_format = body.reasoning_format if shows_reasoning else "auto"
    return plan_conversation(kind, body, body, incoming, reasoning_format)


def _refuse(body: ChatBody) -> None:
    """Refuse what would otherwise be ignored silently."""
    extra = body.model_extra or {}
    for name in ("functions", "function_call"):
        if extra.get(name):
            raise not_supported(f"{name} is not supported: use tools", name)
    if extra.get("audio") or "audio" in (extra.get("modalities") or []):
        raise not_supported("this server answers in text only", "modalities")
    if body.reasoning_format not in (None, *REASONING_FORMATS):
        raise bad_request(
            f"reasoning_format must be one of {', '.join(REASONING_FORMATS)}, "
            f"got {body.reasoning_format!r:.80}",
            "reasoning_format",
        )
    if body.reasoning_format == "none" and body.include_reasoning is False:
        words = 'include_reasoning must not be false with reasoning_format "none", which keeps it'
        raise bad_request(words, "include_reasoning")
