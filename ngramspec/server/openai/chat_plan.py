"""ChatCompletionPlan: what a chat request asks for, ready for the engine."""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec.server.chat.plan import ChatPlan, plan_conversation
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.openai.bodies import ChatBody, schema_of
from ngramspec.server.request.bodies import parse
from ngramspec.server.settings import ServerSettings

REASONING_FORMATS = ("auto", "none", "deepseek", "deepseek-legacy")  # all but none split it off
DEFAULT_TOP = 0  # likeliest tokens with logprobs alone, as in OpenAI's API


@dataclass(frozen=True)
class ChatCompletionPlan(ChatPlan):
    """A chat as engine requests, and the shape of the response."""

    include_usage: bool
    verbose: bool
    shows_reasoning: bool


def plan_chat(
    raw: bytes, served: ServedModel, settings: ServerSettings, key_id: str
) -> ChatCompletionPlan:
    """Read the body of a chat request.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body = parse(raw, ChatBody)
    _refuse(body)
    shows_reasoning = body.include_reasoning is not False
    plan = plan_conversation(
        body,
        body,
        served,
        settings,
        key_id,
        schema=schema_of(body),
        strict=body.is_strict,
        max_tokens=body.num_tokens,
        choices=1 if body.n is None else body.n,
        logprobs=("n_probs" if body.n_probs else "top_logprobs", _logprobs(body)),
        post_sampling_probs=bool(body.post_sampling_probs),
        prediction=body.prediction,
        reasoning_format=body.reasoning_format if shows_reasoning else "auto",
    )
    return ChatCompletionPlan(
        **vars(plan),
        include_usage=body.include_usage,
        verbose=settings.verbose if body.verbose is None else body.verbose,
        shows_reasoning=shows_reasoning,
    )


def _logprobs(body: ChatBody) -> int | None:
    if body.n_probs:
        return body.n_probs
    if body.top_logprobs and not body.logprobs:  # 0 is what clients send by habit
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
    if body.reasoning_format not in (None, *REASONING_FORMATS):
        raise bad_request(
            f"reasoning_format must be one of {', '.join(REASONING_FORMATS)}, "
            f"got {body.reasoning_format!r:.80}",
            "reasoning_format",
        )
    if body.reasoning_format == "none" and body.include_reasoning is False:
        words = 'include_reasoning must not be false with reasoning_format "none", which keeps it'
        raise bad_request(words, "include_reasoning")
