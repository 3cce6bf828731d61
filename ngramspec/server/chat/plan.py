"""ChatPlan: what a chat asks for, ready for the engine, made the same way for every protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ngramspec.arrays import TokenIds
from ngramspec.server.bridge.intake import Incoming, Plan
from ngramspec.server.chat.budget import budget_of_chat, budget_tokens
from ngramspec.server.chat.conversation import AnswerBody, Conversation, prediction_of
from ngramspec.server.chat.prompt import chat_text, continues_reasoning
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.engine_request import make_plan, most_prompts
from ngramspec.server.request.prompts import check_text
from ngramspec.server.request.sampling import check_constraint
from ngramspec.text.chat.format import ChatFormat, chat_format, end_of_reasoning
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.chat.tools import Tools


@dataclass(frozen=True)
class ChatPlan(Plan):
    """A chat as engine requests, and how its answers are read."""

    format: ChatFormat


P = TypeVar("P", bound=ChatPlan)


def plan_conversation(
    kind: Callable[..., P],
    body: AnswerBody,
    chat: Conversation,
    incoming: Incoming,
    reasoning_format: str | None = None,
) -> P:
    """Return the plan of a conversation.

    Args:
        kind: Makes the plan, of the members that all plans have, and the format.
        body: How to answer.
        chat: Messages and tools.
        incoming: The request.
        reasoning_format: "none" leaves the reasoning in the answer; None = the server's.

    Raises:
        ApiError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    served, schema = incoming.served, body.answer_schema
    most_prompts(incoming.settings, body.num_choices)
    tools = chat.callable_tools()
    budget = budget_tokens(body, served)
    text = prompt_text(chat, budget, served, tools)
    check_text(text, incoming, chat.messages_field)
    parses = (reasoning_format or incoming.settings.reasoning_format) != "none"
    begun = continues_reasoning(chat, text)
    template = served.template_for(bool(chat.tools))
    format = chat_format(template, text, tools, parses, begun, schema[0] is not None)
    check_constraint(body, schema[0])
    return make_plan(
        partial(kind, format=format),
        body,
        incoming,
        prompts=[_tokens(text, body, served)],
        field=chat.messages_field,
        choices=body.num_choices,
        grammar=chat_grammar(body.grammar or "", *schema, format, body.is_strict),
        max_tokens=body.num_tokens,
        logprobs=body.reported,
        post_sampling_probs=body.reports_sampled,
        prompt_logprobs=("prompt_logprobs", body.of_prompt),
        prediction_ids=prediction_of(body.prediction, served),
        special=format.shows_special,
        budgets=[budget_of_chat(body, served, budget, format)],
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


def count_tokens(body: SamplingBody, chat: Conversation, served: ServedModel) -> int:
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
