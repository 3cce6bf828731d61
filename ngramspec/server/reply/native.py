"""A finished answer in llama-server's own shape, which OpenAI's routes add on request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ngramspec.server.model import ServedModel
from ngramspec.server.reply.logprobs import LogprobFormat
from ngramspec.server.reply.timings import timings_of

if TYPE_CHECKING:
    from ngramspec.engine import Generation, Request, Sampling


def native_object(
    generation: Generation, served: ServedModel, index: int, *, stream: bool, tokens: bool
) -> dict[str, Any]:
    """Return the object of a finished answer.

    stream: Log-probabilities came with earlier events. tokens: With the ids of all tokens.
    """
    request, predicted = generation.request, generation.num_tokens
    discarded = generation.timings.num_discarded
    size = generation.timings.num_prompt + predicted - discarded
    full = generation.finish_reason == "length" and size >= served.engine.context_size
    final: dict[str, Any] = {
        "index": index,
        "content": generation.text,
        "tokens": generation.token_ids if tokens else [],
        "id_slot": generation.slot,
        "stop": True,
        "model": served.name,
        "tokens_predicted": predicted,
        "tokens_evaluated": generation.timings.num_prompt,
        "generation_settings": generation_settings(request, served, generation.seed, stream),
        "prompt": served.model.detokenize(request.prompt_ids, special=True),
        "has_new_line": "\n" in generation.text,
        "truncated": full or discarded > 0,
        "stop_type": _stop_type(generation),
        "stopping_word": generation.stop_text,
        "tokens_cached": size - (_stop_type(generation) != "eos"),  # the newest is not in the cache
        "timings": timings_of([generation]),
    }
    if generation.logprobs and not stream:
        final["completion_probabilities"] = LogprobFormat(
            served, request.post_sampling_probs
        ).native(generation.logprobs)
    return final


def generation_settings(
    request: Request, served: ServedModel, seed: int, stream: bool
) -> dict[str, Any]:
    """Return llama-server's view of a request's parameters."""
    speculation = request.speculation
    types = served.engine.types_of(speculation)
    sampling = sampling_settings(request.sampling)
    if request.sampling.ignore_eos and served.model.eos >= 0:
        sampling["logit_bias"] = [
            *sampling["logit_bias"],
            {"token": served.model.eos, "bias": None},
        ]
    return {
        **sampling,
        "seed": seed,
        "stop": list(request.stop),
        "max_tokens": request.max_tokens,
        "n_predict": request.max_tokens,
        "n_keep": _keep(request, served),
        "n_discard": request.num_discard,
        "stream": stream,
        "n_probs": request.logprobs or 0,
        "speculative.types": ",".join(types) or "none",
        "speculative.n_max": speculation.max_draft,
        "timings_per_token": False,
        "post_sampling_probs": request.post_sampling_probs,
        "lora": [{"id": number, "scale": scale} for number, scale in request.adapters],
    }


def sampling_settings(sampling: Sampling) -> dict[str, Any]:
    settings = {name: value for name, value in vars(sampling).items() if name != "seed"}
    settings["samplers"] = list(sampling.samplers)
    settings["logit_bias"] = [
        {"token": token, "bias": bias if math.isfinite(bias) else None}
        for token, bias in sampling.logit_bias.items()
    ]
    settings["dry_sequence_breakers"] = list(sampling.dry_sequence_breakers)
    return settings


def _keep(request: Request, served: ServedModel) -> int:
    """Return n_keep as the client wrote it, -1 for the whole prompt."""
    num_keep = request.num_keep - served.model.add_bos
    return -1 if num_keep == request.prompt_ids.size else num_keep


def _stop_type(generation: Generation) -> str:
    if generation.finish_reason == "length":
        return "limit"
    return "word" if generation.stop_text else "eos"
