"""ChatPlan: what a chat asks for, ready for the engine, made the same way for every protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.arrays import TokenIds
from ngramspec.engine.request import Request
from ngramspec.server.chat.budget import budget_of_chat, budget_tokens
from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.prediction import Prediction, prediction_of
from ngramspec.server.chat.prompt import chat_text, continues_reasoning
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.engine_request import check_choices, make_requests
from ngramspec.server.request.grammar import check_constraint
from ngramspec.server.request.prompts import check_length, check_text
from ngramspec.server.request.speculation import speculation_of
from ngramspec.server.settings import ServerSettings
from ngramspec.text.chat.format import ChatFormat, chat_format, end_of_reasoning
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.chat.tools import Tools


@dataclass(frozen=True)
class ChatPlan:
    """A chat as engine requests, one per choice, and how its answers are read."""

    requests: Sequence[Request]
    stream: bool
    format: ChatFormat
    timings_per_token: bool
    spans: bool


def plan_conversation(
    chat: Conversation,
    body: SamplingBody,
    served: ServedModel,
    settings: ServerSettings,
    key_id: str,
    *,
    schema: tuple[Any, str],
    strict: bool = False,
    max_tokens: int | None,
    choices: int = 1,
    logprobs: tuple[str, int | None] = ("top_logprobs", None),
    post_sampling_probs: bool = False,
    prediction: Prediction | None = None,
    reasoning_format: str | None = None,
) -> ChatPlan:
    """Return the plan of a conversation.

    Args:
        chat: Messages and tools.
        body: How to answer; its further members may be settings for drafts.
        served, settings, key_id: As in every plan.
        schema: The JSON schema that the answer must follow, None for none, and its field's name.
        strict: Refuse what a grammar cannot enforce of the schema; it is left out otherwise.
        max_tokens: None = the server's default.
        choices: Number of answers.
        logprobs, post_sampling_probs: As make_requests takes them.
        prediction: What the client expects in the answer.
        reasoning_format: "none" leaves the reasoning in the answer; None = the server's.

    Raises:
        ApiError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    check_choices(settings, choices)
    tools = chat.callable_tools()
    budget = budget_tokens(body, served)
    text = prompt_text(chat, budget, served, tools)
    check_text(text, served, settings, chat.messages_field)
    prompt_ids = _tokens(text, body, served)
    check_length(prompt_ids, served, settings, chat.messages_field)
    parses = (reasoning_format or settings.reasoning_format) != "none"
    begun = continues_reasoning(chat, text)
    template = served.template_for(bool(chat.tools))
    format = chat_format(template, text, tools, parses, begun, schema[0] is not None)
    drafts = speculation_of(body.model_extra, key_id)
    check_constraint(body, schema[0])
    requests = make_requests(
        body,
        served,
        settings,
        prompts=[prompt_ids],
        choices=choices,
        grammar=chat_grammar(body.grammar or "", *schema, format, strict),
        max_tokens=max_tokens,
        logprobs=logprobs,
        post_sampling_probs=post_sampling_probs,
        speculation=drafts.speculation,
        prediction_ids=prediction_of(prediction, served),
        special=format.shows_special,
        budgets=[budget_of_chat(body, served, budget, format)],
    )
    return ChatPlan(
        requests=requests,
        stream=bool(body.stream),
        format=format,
        timings_per_token=bool(body.timings_per_token),
        spans=drafts.spans,
    )


def prompt_text(chat: Conversation, budget: int, served: ServedModel, tools: Tools) -> str:
    """Return the prompt of a conversation.

    budget: Tokens of reasoning, -1 for any number.

    Raises:
        ApiError, InputError: It cannot be made.
    """
    if budget == 0:
        chat.reasoning_effort = "none"
    text = chat_text(chat, served, tools)
    if budget == 0:
        text += end_of_reasoning(served.template_for(bool(chat.tools)), text)
    return text


def count_tokens(chat: Conversation, body: SamplingBody, served: ServedModel) -> int:
    """Return how many tokens the prompt of a conversation has, however long it is.

    Raises:
        As prompt_text.
    """
    text = prompt_text(chat, budget_tokens(body, served), served, chat.callable_tools())
    return int(_tokens(text, body, served).size)


def _tokens(text: str, body: SamplingBody, served: ServedModel) -> TokenIds:
    """Return the tokens of a rendered chat, with one begin token unless the body says otherwise.

    add_special_tokens is vLLM's: true puts a begin token before the one that a template may write,
    false adds none where it writes none.
    """
    if body.add_special_tokens is None:
        return served.model.tokenize_prompt(text)
    return served.model.tokenize(text, add_special=body.add_special_tokens, parse_special=True)
