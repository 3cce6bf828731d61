"""Bodies of OpenAI's routes, with llama-server's further fields, and the plans they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ngramspec.arrays import TokenIds
from ngramspec.server.bridge.intake import Incoming, Plan
from ngramspec.server.chat.budget import budgets_of_texts
from ngramspec.server.chat.conversation import AnswerBody, Conversation, prediction_of
from ngramspec.server.chat.plan import ChatPlan, plan_conversation
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import Body, Integer, Prompt, parse
from ngramspec.server.request.engine_request import make_plan, most_prompts
from ngramspec.server.request.prompts import (
    check_layout,
    check_text,
    fill_prompt,
    listed,
    missing_tokens,
    prompts_of,
)
from ngramspec.server.request.sampling import grammar_of
from ngramspec.text.structured.guidance import ANY_OBJECT

REASONING_FORMATS = ("auto", "none", "deepseek", "deepseek-legacy")  # all but none split it off
DEFAULT_TOP = 0  # likeliest tokens with logprobs alone, as in OpenAI's API


class StreamOptions(Body):
    """OpenAI's stream_options."""

    include_usage: bool | None = None


class OpenAIBody(AnswerBody):
    """Fields of both OpenAI routes."""

    model: str | None = None
    n: Integer | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    n_predict: Integer | None = None
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    verbose: bool | None = None
    n_probs: Integer | None = None
    post_sampling_probs: bool | None = None
    prompt_logprobs: Integer | bool | None = None  # vLLM's

    @property
    def of_prompt(self) -> int | None:
        """Return vLLM's prompt_logprobs; false is what clients send by habit, and no 0.

        Raises:
            ApiError: It is below 0, or asked of a stream, whose events have no place for it.
        """
        count = self.prompt_logprobs
        if count is None or count is False:
            return None
        if count < 0:
            raise bad_request(f"prompt_logprobs must be >= 0, got {count}", "prompt_logprobs")
        if self.stream:
            words = "prompt_logprobs cannot be used with stream: use echo and logprobs"
            raise bad_request(words, "prompt_logprobs")
        return int(count)

    @property
    def reports_sampled(self) -> bool:
        return bool(self.post_sampling_probs)

    @property
    def num_tokens(self) -> int | None:
        limits = (self.n_predict, self.max_completion_tokens, self.max_tokens)
        return next((number for number in limits if number is not None), None)

    @property
    def is_strict(self) -> bool:
        wrapper = (self.response_format or {}).get("json_schema")
        return isinstance(wrapper, dict) and wrapper.get("strict") is True

    @property
    def answer_schema(self) -> tuple[Any, str]:
        response_format = self.response_format
        if response_format is None:
            return self.json_schema, "json_schema"
        kind, schema = response_format.get("type", "text"), self.json_schema
        if kind == "json_object":
            schema = response_format.get("schema", schema)
            schema = ANY_OBJECT if schema is None else schema
        elif kind == "json_schema":
            wrapper = response_format.get("json_schema", response_format)
            schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
            if schema is None:
                words = "response_format.json_schema must have a schema"
                raise bad_request(words, "response_format")
        elif kind not in (None, "text"):
            raise bad_request(
                f"response_format.type must be text, json_object or json_schema, got {kind!r}",
                "response_format",
            )
        return schema, "response_format"

    @property
    def num_choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(OpenAIBody):
    """POST /v1/completions."""

    prompt: Prompt
    suffix: str | None = None
    echo: bool | None = None
    best_of: Integer | None = None
    logprobs: Integer | bool | None = None

    @property
    def reported(self) -> tuple[str, int | None]:
        if self.n_probs:
            return "n_probs", self.n_probs
        count = None if self.logprobs is None or self.logprobs is False else int(self.logprobs)
        return "logprobs", count


class ChatBody(OpenAIBody, Conversation):
    """POST /v1/chat/completions."""

    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    reasoning_format: str | None = None
    include_reasoning: bool | None = None  # vLLM's; false: reasoning is left out of the answer

    @property
    def reported(self) -> tuple[str, int | None]:
        """Return how many of the likeliest tokens to report; with logprobs alone DEFAULT_TOP."""
        if self.n_probs:
            return "n_probs", self.n_probs
        if self.top_logprobs and not self.logprobs:  # 0 is what clients send by habit
            raise bad_request("top_logprobs requires logprobs to be true", "top_logprobs")
        count = (self.top_logprobs or DEFAULT_TOP) if self.logprobs else None
        return "top_logprobs", count


@dataclass(frozen=True)
class OpenAIPlan(Plan):
    """The shape of a response of both routes."""

    include_usage: bool
    verbose: bool
    draft_metrics: str  # as the settings say: "none", "summary" or "detailed"
    of_prompt: int | None  # likeliest tokens of `prompt_logprobs`, None = no such member


def _shape(body: OpenAIBody, incoming: Incoming) -> dict[str, Any]:
    """Return the members of OpenAIPlan."""
    settings = incoming.settings
    return {
        "include_usage": body.include_usage,
        "verbose": settings.verbose if body.verbose is None else body.verbose,
        "draft_metrics": settings.per_request_spec_decode_metrics,
        "of_prompt": body.of_prompt,
    }


@dataclass(frozen=True)
class ChatCompletionPlan(OpenAIPlan, ChatPlan):
    """A chat as engine requests, and the shape of the response."""

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
    shape = _shape(body, incoming)
    kind = partial(ChatCompletionPlan, shows_reasoning=shows_reasoning, **shape)
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


@dataclass(frozen=True)
class CompletionPlan(OpenAIPlan):
    """Text completions as engine requests, and the shape of the response."""

    choices: int  # how many requests in a row belong to one prompt
    echoes: Sequence[str]  # per request, the prompt text to repeat before the answer
    of_echo: int | None  # likeliest tokens of the echo's `logprobs`, None = it has none


def plan_completion(incoming: Incoming) -> CompletionPlan:
    """Read the body of a completion request.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body, served = parse(incoming.raw, CompletionBody), incoming.served
    choices = body.num_choices
    if body.best_of is not None and body.best_of != choices:
        raise not_supported("best_of is not supported: it must equal n", "best_of")
    field, of_echo = body.reported if body.echo else ("logprobs", None)
    if of_echo is not None and (body.suffix or body.reports_sampled):
        words = "echo with logprobs cannot be used with suffix or post_sampling_probs"
        raise not_supported(words, "echo")
    shape = _shape(body, incoming)
    of_prompt = shape["of_prompt"]
    prompts = _prompts(body, incoming, most_prompts(incoming.settings, choices))
    kind = partial(
        CompletionPlan,
        choices=choices,
        echoes=[text for text in _echoes(body, served, prompts) for _ in range(choices)],
        of_echo=of_echo,
        **shape,
    )
    if of_prompt is not None and (of_echo is None or of_prompt > of_echo):
        field = "prompt_logprobs"
    asked = [count for count in (of_prompt, of_echo) if count is not None]
    return make_plan(
        kind,
        body,
        incoming,
        prompts=prompts,
        choices=choices,
        grammar=grammar_of(body, *body.answer_schema, strict=body.is_strict),
        max_tokens=body.num_tokens,
        logprobs=body.reported,
        post_sampling_probs=body.reports_sampled,
        prompt_logprobs=(field, max(asked, default=None)),
        prediction_ids=prediction_of(body.prediction, served),
        budgets=budgets_of_texts(body, served, prompts),
    )


def _prompts(body: CompletionBody, incoming: Incoming, most: int) -> list[TokenIds]:
    if not body.suffix:
        return prompts_of(body.prompt, incoming, most, add_special=body.add_special_tokens)
    check_layout(body)
    missing = missing_tokens(incoming.served)
    if missing:
        raise bad_request(f"this model cannot take a suffix: {missing}", "suffix")
    if not isinstance(body.prompt, str):
        raise bad_request("prompt must be a text when there is a suffix", "prompt")
    check_text(body.prompt + body.suffix, incoming, "prompt")
    return [fill_prompt(incoming.served, body.prompt, body.suffix)]


def _echoes(
    body: CompletionBody, served: ServedModel, prompts: Sequence[TokenIds]
) -> Sequence[str]:
    """Return what to repeat of each prompt: a text as the client wrote it, else that of its tokens.

    From tokens come neither special tokens nor always the same spaces.
    """
    if not body.echo:
        return [""] * len(prompts)
    echoes = []
    for prompt, prompt_ids in zip(listed(body.prompt), prompts, strict=True):
        text = prompt["prompt_string"] if isinstance(prompt, dict) else prompt
        echoes.append(text if isinstance(text, str) else served.model.detokenize(prompt_ids))
    return echoes
