"""The engine's requests for a body, made the same way for every protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.arrays import TokenIds
from ngramspec.engine.reasoning import ReasoningBudget
from ngramspec.engine.request import (
    MAX_COUNT,
    MAX_LOGPROBS,
    NO_TOKENS,
    Adapters,
    Request,
    Speculation,
)
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.sampling import sampling_of, stops_of, with_seed
from ngramspec.server.request.speculation import check_draft_model
from ngramspec.server.request_id import new_id
from ngramspec.server.settings import ServerSettings

FILL = -2  # of max_tokens, llama.cpp's: until the context is full, even if contexts shift
# Log-probabilities of all tokens of a response; as JSON each takes some 100 bytes, as objects 500.
MAX_REPORTED = 1 << 18


def make_requests(
    body: SamplingBody,
    served: ServedModel,
    settings: ServerSettings,
    *,
    prompts: Sequence[TokenIds],
    choices: int,
    grammar: str,
    max_tokens: int | None,
    logprobs: tuple[str, int | None],
    post_sampling_probs: bool = False,
    speculation: Speculation,
    prediction_ids: TokenIds = NO_TOKENS,
    special: bool = False,
    budgets: Sequence[ReasoningBudget | None] = (),
) -> list[Request]:
    """Return the requests of all prompts, `choices` in a row for each.

    Their ids begin alike: that of the first is the answer's, the others have a number behind it.

    budgets: Of their reasoning, one per prompt, or none.
    logprobs: The name of the field that sets how many of the likeliest tokens to report, and its
    value; None = none.
    post_sampling_probs: They are of what the sampler chose from.

    Raises:
        ApiError: A field that cannot be used, or too many log-probabilities.
        InputError: A value is out of its bounds.
    """
    check_draft_model((body.model_extra or {}).get("draft_model"), served)
    sampling = sampling_of(body, served, grammar)
    limit = served.max_tokens if max_tokens is None else max_tokens
    fills = limit == FILL
    limit = min(max(-1, limit), MAX_COUNT)
    field, reported = logprobs
    if reported is not None:
        limit = _reported(limit, field, reported, len(prompts) * choices, served)
    same: dict[str, Any] = {
        "min_indent": min(max(0, body.n_indent or 0), MAX_COUNT),
        "num_discard": min(max(0, body.n_discard or 0), MAX_COUNT),
        "stop": stops_of(body, served),
        "speculation": speculation,
        "prediction_ids": prediction_ids,
        "logprobs": reported,
        "post_sampling_probs": post_sampling_probs,
        "cache_prompt": served.cache_prompt if body.cache_prompt is None else body.cache_prompt,
        "adapters": _adapters(body, served),
        "slot": _slot(body, served),
        "progress": bool(body.return_progress),
        "special": special or served.special,
        "timeout": _timeout(body, settings),
    }
    first = new_id()
    asked = [
        (prompt_ids, budget, index)
        for prompt_ids, budget in zip(prompts, budgets or [None] * len(prompts), strict=True)
        for index in range(choices)
    ]
    return [
        Request(
            prompt_ids=prompt_ids,
            max_tokens=_filling(limit, prompt_ids, served) if fills else limit,
            sampling=with_seed(sampling, index),
            num_keep=_keep(body, prompt_ids, served),
            reasoning_budget=budget,
            id=f"{first}-{number}" if number else first,
            **same,
        )
        for number, (prompt_ids, budget, index) in enumerate(asked)
    ]


def check_choices(settings: ServerSettings, choices: int) -> None:
    """Refuse, before any work, too many choices.

    Raises:
        ApiError: They are out of bounds.
    """
    most = settings.max_generations
    if not 1 <= choices <= most:
        raise bad_request(f"a request must have 1..{most} generations, got {choices}", "n")


def _reported(limit: int, field: str, reported: int, generations: int, served: ServedModel) -> int:
    """Return how many tokens an answer with log-probabilities may have; they are kept to its end.

    Raises:
        ApiError: More were asked for.
    """
    if not 0 <= reported <= MAX_LOGPROBS:
        raise bad_request(f"{field} must be in 0..{MAX_LOGPROBS}, got {reported}", field)
    most = MAX_REPORTED // ((reported + 1) * generations)
    longest = MAX_COUNT if served.engine.context_shift else served.engine.context_size
    if min(limit, longest) > most:
        raise bad_request(
            f"{field} must be less: with {reported} and {generations} generations an answer can "
            f"have at most {most} tokens, but {limit} were requested",
            field,
        )
    return most if limit < 0 else limit


def _filling(limit: int, prompt_ids: TokenIds, served: ServedModel) -> int:
    """Return how many tokens fill the context behind a prompt, `limit` at most unless it is -1."""
    room = served.engine.context_size - int(prompt_ids.size)
    return room if limit < 0 else min(limit, room)


def _adapters(body: SamplingBody, served: ServedModel) -> Adapters:
    """Return the LoRA adapters of a request, or the server's if it says nothing."""
    entries = (body.model_extra or {}).get("lora")
    return served.adapters.applied if entries in (None, []) else served.adapters.chosen(entries)


def _keep(body: SamplingBody, prompt_ids: TokenIds, served: ServedModel) -> int:
    """Return how many tokens a context shift keeps: one more for the begin token."""
    num_keep = served.num_keep if body.n_keep is None else body.n_keep
    count = int(prompt_ids.size) if num_keep < 0 else num_keep
    return min(count, MAX_COUNT - 1) + served.model.add_bos


def _slot(body: SamplingBody, served: ServedModel) -> int:
    """Return the requested slot, -1 for any."""
    slot, most = body.id_slot, served.engine.num_slots - 1
    if slot is not None and slot > most:
        raise bad_request(f"id_slot must be in 0..{most}, or -1 for any, got {slot}", "id_slot")
    return -1 if slot is None else max(-1, slot)


def _timeout(body: SamplingBody, settings: ServerSettings) -> float:
    """Return the seconds that a generation can run."""
    ms = body.t_max_predict_ms or 0
    return min(settings.request_timeout, ms / 1e3) if ms > 0 else settings.request_timeout
