"""The plan of a body: the engine's requests, made the same way for every protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ngramspec.arrays import TokenIds
from ngramspec.engine.request import (
    MAX_COUNT,
    MAX_LOGPROBS,
    MAX_REPORTED,
    NO_TOKENS,
    Adapters,
    ReasoningBudget,
    Request,
)
from ngramspec.server.bridge.intake import Incoming, Plan
from ngramspec.server.errors import bad_request
from ngramspec.server.http.guard import new_id
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.prompts import check_length
from ngramspec.server.request.sampling import sampling_of, stops_of, with_seed
from ngramspec.server.request.speculation import check_draft_model, speculation_of
from ngramspec.server.settings import ServerSettings

P = TypeVar("P", bound=Plan)
FILL = -2  # of max_tokens, llama.cpp's: until the context is full, even if contexts shift


def make_plan(
    kind: Callable[..., P],
    body: SamplingBody,
    incoming: Incoming,
    *,
    prompts: Sequence[TokenIds],
    field: str = "prompt",
    choices: int = 1,
    grammar: str,
    max_tokens: int | None,
    logprobs: tuple[str, int | None],
    post_sampling_probs: bool = False,
    prompt_logprobs: tuple[str, int | None] = ("prompt_logprobs", None),
    prediction_ids: TokenIds = NO_TOKENS,
    special: bool = False,
    budgets: Sequence[ReasoningBudget | None],
) -> P:
    """Return a plan with the requests of all prompts, `choices` in a row for each.

    Their ids begin alike: that of the first is the answer's, the others have a number behind it.

    Args:
        kind: Makes the plan, of the members that all plans have.
        body: How to answer; its further members may be settings for drafts.
        incoming: The request.
        prompts: Of the answers.
        field: What the client's request calls them.
        choices: Answers for each.
        grammar: In GBNF, "" = none.
        max_tokens: None = the server's default.
        logprobs: The name of the field that sets how many of the likeliest tokens to report, and
            its value; None = none.
        post_sampling_probs: They are of what the sampler chose from.
        prompt_logprobs: As logprobs, of the prompts' tokens.
        prediction_ids: What the client expects in the answer.
        special: Answers show special tokens.
        budgets: Of their reasoning, one per prompt.

    Raises:
        ApiError: A field that cannot be used, a prompt that is empty or too long, or too many
            log-probabilities.
        InputError: A value is out of its bounds.
    """
    served = incoming.served
    for prompt_ids in prompts:
        check_length(prompt_ids, incoming, field)
    drafts = speculation_of(body.model_extra, incoming.namespace)
    check_draft_model((body.model_extra or {}).get("draft_model"), served)
    sampling = sampling_of(body, served, grammar)
    limit = served.max_tokens if max_tokens is None else max_tokens
    fills = limit == FILL
    limit = min(max(-1, limit), MAX_COUNT)
    left = _left(prompts, choices, *prompt_logprobs)
    name, reported = logprobs
    if reported is not None:
        limit = _reported(limit, name, reported, len(prompts) * choices, served, left)
    same = {
        **_members(body, incoming),
        "speculation": drafts.speculation,
        "prediction_ids": prediction_ids,
        "logprobs": reported,
        "post_sampling_probs": post_sampling_probs,
        "prompt_logprobs": prompt_logprobs[1],
        "special": special or served.special,
    }
    first, requests = new_id(), list[Request]()
    for prompt_ids, budget in zip(prompts, budgets, strict=True):
        same["max_tokens"] = _filling(limit, prompt_ids, served) if fills else limit
        same["num_keep"] = _keep(body, prompt_ids, served)
        for index in range(choices):
            request = Request(
                prompt_ids=prompt_ids,
                sampling=with_seed(sampling, index),
                reasoning_budget=budget,
                id=f"{first}-{len(requests)}" if requests else first,
                **same,
            )
            requests.append(request)
    return kind(
        requests=requests,
        stream=bool(body.stream),
        timings_per_token=bool(body.timings_per_token),
        spans=drafts.spans,
    )


def _members(body: SamplingBody, incoming: Incoming) -> dict[str, Any]:
    served = incoming.served
    return {
        "min_indent": min(max(0, body.n_indent or 0), MAX_COUNT),
        "num_discard": min(max(0, body.n_discard or 0), MAX_COUNT),
        "stop": stops_of(body, served),
        "cache_prompt": served.cache_prompt if body.cache_prompt is None else body.cache_prompt,
        "adapters": _adapters(body, served),
        "slot": _slot(body, served),
        "progress": bool(body.return_progress),
        "timeout": _timeout(body, incoming.settings),
    }


def most_prompts(settings: ServerSettings, choices: int) -> int:
    """Return the most prompts of a request with this number of answers to each.

    It is called before any work is done for them.

    Raises:
        ApiError: None may.
    """
    most = settings.max_generations
    if not 1 <= choices <= most:
        raise bad_request(f"a request must have 1..{most} generations, got {choices}", "n")
    return most // choices


def _left(prompts: Sequence[TokenIds], choices: int, field: str, reported: int | None) -> int:
    """Return how many log-probabilities those of prompts leave to answers.

    Raises:
        ApiError: They are too many.
    """
    if reported is None:
        return MAX_REPORTED
    _check_reported(field, reported)
    tokens = choices * sum(int(prompt_ids.size) for prompt_ids in prompts)
    left = MAX_REPORTED - (reported + 1) * tokens
    if left < 0:
        raise bad_request(
            f"{field} must be less, or the prompts shorter or fewer: with {reported} a request can "
            f"have prompts of {MAX_REPORTED // (reported + 1)} tokens together, but these have "
            f"{tokens}",
            field,
        )
    return left


def _check_reported(field: str, reported: int) -> None:
    if not 0 <= reported <= MAX_LOGPROBS:
        raise bad_request(f"{field} must be in 0..{MAX_LOGPROBS}, got {reported}", field)


def _reported(
    limit: int, field: str, reported: int, generations: int, served: ServedModel, left: int
) -> int:
    """Return how many tokens an answer with log-probabilities may have; they are kept to its end.

    left: How many log-probabilities the answers may have together.

    Raises:
        ApiError: More were asked for.
    """
    _check_reported(field, reported)
    most = left // ((reported + 1) * generations)
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
