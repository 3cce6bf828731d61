"""Budgets of reasoning: what a request asks for, as the engine takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.engine.request import ReasoningBudget
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.text.chat.format import ChatFormat
from ngramspec.text.chat.reasoning import reasoning_format_of

MAX_MESSAGE = 1 << 14  # characters
MAX_TOKENS = (1 << 31) - 1
TAIL = 64  # tokens of a prompt that may hold the open mark


def budget_tokens(body: SamplingBody, served: ServedModel) -> int:
    """Return how many tokens of reasoning a request allows, -1 for any number."""
    budgets = (body.reasoning_budget_tokens, body.thinking_budget_tokens)
    budget = next((number for number in budgets if number is not None), -1)
    return min(budget, MAX_TOKENS) if budget >= 0 else served.reasoning_budget


def reasoning_budget(
    body: SamplingBody,
    served: ServedModel,
    tokens: int,
    open: str,
    closes: Sequence[str],
    begun: bool,
) -> ReasoningBudget | None:
    """Return the budget of a request, None for no bound.

    Args:
        body: The request.
        served: The model.
        tokens: As budget_tokens returns them.
        open, closes: The marks; the first close mark is forced, after the request's message, which
            ends before a close mark of its own.
        begun: The prompt ends within reasoning.

    Raises:
        ApiError: The message is too long.
        InputError: A mark or the end is out of its bounds.
    """
    if tokens < 0:
        return None
    message = body.reasoning_budget_message
    message = served.reasoning_message if message is None else message
    if len(message) > MAX_MESSAGE:
        field = "reasoning_budget_message"
        raise bad_request(f"{field} must have at most {MAX_MESSAGE} characters", field)
    message = min((message.partition(close)[0] for close in closes), key=len)
    tokenize = served.model.tokenize
    parts = [tokenize(text, add_special=False, parse_special=True) for text in (message, closes[0])]
    return ReasoningBudget(
        tokens=tokens,
        open=open,
        closes=tuple(closes),
        end_ids=np.concatenate(parts).astype(np.int32),
        begun=begun,
    )


def budget_of_chat(
    body: SamplingBody, served: ServedModel, tokens: int, format: ChatFormat
) -> ReasoningBudget | None:
    """Return the budget of a chat whose answer has a format, None for no bound.

    tokens: As budget_tokens returns them.

    Raises:
        As reasoning_budget.
    """
    marks = format.reasoning.open, (format.reasoning.close,)
    return reasoning_budget(body, served, tokens, *marks, bool(format.begun))


def budgets_of_texts(
    body: SamplingBody, served: ServedModel, prompts: Sequence[TokenIds]
) -> list[ReasoningBudget | None]:
    """Return the budgets of prompts that are no chats: reasoning has the marks of the request.

    Without marks those of the model's chat template count, if the request itself has a budget.

    Raises:
        As reasoning_budget.
    """
    tokens = budget_tokens(body, served)
    end_tags = [body.reasoning_budget_end_tag] if body.reasoning_budget_end_tag else []
    closes = list(filter(None, body.reasoning_budget_end_tags or end_tags))
    open = body.reasoning_budget_start_tag
    if not (open and closes):
        asked = (body.reasoning_budget_tokens, body.thinking_budget_tokens)
        if not any(number is not None and number >= 0 for number in asked):
            return [None] * len(prompts)
        format = reasoning_format_of(served.chat_template)
        open, closes = format.open, [format.close]
    budgets = []
    for prompt_ids in prompts:
        begun = False
        if tokens >= 0:
            end = served.model.detokenize(prompt_ids[-TAIL:], special=True)
            begun = end.rstrip().endswith(open.rstrip())
        budgets.append(reasoning_budget(body, served, tokens, open, closes, begun))
    return budgets
