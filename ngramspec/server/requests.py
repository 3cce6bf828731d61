"""make_requests: from what a body says to the engine's requests, the same way for every API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.engine.request import NO_TOKENS, Request, Speculation, TokenIds
from ngramspec.server.bodies import SamplingBody
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.sampling import sampling_of, stops_of, with_seed
from ngramspec.server.served import Served
from ngramspec.server.settings import ServerSettings

# Fields of llama-server that would change the answer and that this server cannot follow.
NOT_FOLLOWED = (
    "n_indent", "n_cache_reuse", "lora", "grammar_lazy", "grammar_triggers", "post_sampling_probs",
    "return_progress", "backend_sampling", "reasoning_budget_tokens", "continue_final_message",
)  # fmt: skip


def make_requests(
    body: SamplingBody,
    served: Served,
    settings: ServerSettings,
    *,
    prompts: Sequence[TokenIds],
    choices: int,
    grammar: str,
    max_tokens: int | None,
    logprobs: int | None,
    speculation: Speculation,
    prediction_ids: TokenIds = NO_TOKENS,
    special: bool = False,
) -> list[Request]:
    """Return the requests of all prompts, `choices` in a row for each.

    Raises:
        ApiError: Too many, or a field that cannot be followed.
        InputError: A value is out of its bounds.
    """
    _refuse(body, settings, len(prompts), choices)
    sampling = sampling_of(body, served, grammar)
    wanted = served.max_tokens if max_tokens is None else max_tokens
    same: dict[str, Any] = {
        "max_tokens": max(-1, wanted),
        "stop": stops_of(body, served),
        "speculation": speculation,
        "prediction_ids": prediction_ids,
        "logprobs": logprobs,
        "cache_prompt": served.cache_prompt if body.cache_prompt is None else body.cache_prompt,
        "slot": _slot(body, served),
        "special": special,
        "timeout": _timeout(body, settings),
    }
    return [
        Request(prompt_ids=prompt_ids, sampling=with_seed(sampling, index), **same)
        for prompt_ids in prompts
        for index in range(choices)
    ]


def _slot(body: SamplingBody, served: Served) -> int:
    """Return the slot that is asked for, -1 for any."""
    slot, most = body.id_slot, served.engine.num_slots - 1
    if slot is not None and slot > most:
        raise bad_request(f"id_slot must be in 0..{most}, or -1 for any, got {slot}", "id_slot")
    return -1 if slot is None else max(-1, slot)


def _timeout(body: SamplingBody, settings: ServerSettings) -> float:
    """Return the seconds that a generation may run."""
    wanted = body.t_max_predict_ms or 0
    return min(settings.request_timeout, wanted / 1e3) if wanted > 0 else settings.request_timeout


def _refuse(body: SamplingBody, settings: ServerSettings, prompts: int, choices: int) -> None:
    most = settings.max_generations
    if not 1 <= choices <= most or prompts * choices > most:
        raise bad_request(f"a request can have at most {most} generations", "n")
    extra = body.model_extra or {}
    for name in NOT_FOLLOWED:
        if extra.get(name) or getattr(body, name, None):
            raise not_supported(f"{name} is not supported by this server", name)
    target = extra.get("adaptive_target")
    if isinstance(target, (int, float)) and target >= 0:
        raise not_supported("adaptive_target is not supported by this server", "adaptive_target")
