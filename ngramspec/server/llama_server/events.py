"""Completions in llama-server's own shape: objects, or a stream of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.server.bridge.answer import Item
from ngramspec.server.errors import ApiError
from ngramspec.server.llama_server.plan import NativePlan
from ngramspec.server.model import ServedModel
from ngramspec.server.response.logprobs import LogprobFormat
from ngramspec.server.response.sse import SSE, SSE_PING, json_event, json_text
from ngramspec.server.response.timings import optional_members, timings_of

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation, Request, Sampling


def native_json(
    plan: NativePlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return one object, or a list if the request asked for a list or several answers."""
    made = [_final(plan, served, index, one) for index, one in enumerate(generations)]
    return made if plan.as_list else made[0]


class NativeEvents:
    """Completions as llama-server's events; there is no mark at the end."""

    media_type = SSE
    ping = SSE_PING

    def __init__(
        self, plan: NativePlan, served: ServedModel, generations: Sequence[Generation]
    ) -> None:
        self._plan = plan
        self._served = served
        self._format = LogprobFormat(served)
        self._slow = plan.timings_per_token or plan.spans
        self._counts = [0] * len(generations)  # tokens sent

    def encode(self, items: Sequence[Item]) -> bytes:
        """Return the events for some chunks."""
        parts: list[bytes] = []
        for index, chunk in items:
            made = chunk.generation
            self._counts[index] += len(chunk.token_ids)
            if chunk.finish_reason is not None:
                parts.append(json_event(self._last(index, chunk)))
            elif self._slow or chunk.logprobs or chunk.progress is not None:
                parts.append(json_event(self._whole(index, chunk)))
            elif chunk.text or chunk.token_ids:
                parts += (
                    b'data: {"index": %d, "content": ' % index,
                    json_text(chunk.text),
                    b', "tokens": [%b], "stop": false, "id_slot": %d, "tokens_predicted": %d, '
                    b'"tokens_evaluated": %d}\n\n'
                    % (
                        b", ".join(b"%d" % token for token in chunk.token_ids),
                        made.slot,
                        self._counts[index],
                        made.timings.num_prompt,
                    ),
                )
        return b"".join(parts)

    def end(self) -> bytes:
        """Return nothing: the last event of each answer has "stop": true."""
        return b""

    def error(self, error: ApiError) -> bytes:
        """Return an error event."""
        return json_event(error.body("/completion"))

    def _whole(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """Return an event that is more than a piece of text."""
        made = chunk.generation
        event: dict[str, Any] = {
            "index": index,
            "content": chunk.text,
            "tokens": chunk.token_ids,
            "stop": False,
            "id_slot": made.slot,
            "tokens_predicted": self._counts[index],
            "tokens_evaluated": made.timings.num_prompt,
            **optional_members(chunk, self._plan.timings_per_token, self._plan.spans),
        }
        if chunk.logprobs:
            event["completion_probabilities"] = self._format.native(chunk.logprobs)
        return event

    def _last(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """Return the last event of an answer, with the text and tokens of its last step."""
        event = _final(self._plan, self._served, index, chunk.generation)
        if "content" in event:
            event["content"] = chunk.text
        if "tokens" in event:
            event["tokens"] = chunk.token_ids
        if chunk.logprobs:
            event["completion_probabilities"] = self._format.native(chunk.logprobs)
        event.update(optional_members(chunk, False, self._plan.spans))
        return event


def generation_settings(
    request: Request, served: ServedModel, seed: int, stream: bool
) -> dict[str, Any]:
    """Return llama-server's view of a request's parameters."""
    wanted = request.speculation
    types = served.engine.drafters.types if wanted.types is None else wanted.types
    return {
        **sampling_settings(request.sampling),
        "seed": seed,
        "stop": list(request.stop),
        "max_tokens": request.max_tokens,
        "n_predict": request.max_tokens,
        "n_keep": _keep(request, served),
        "n_discard": request.num_discard,
        "stream": stream,
        "n_probs": request.logprobs or 0,
        "speculative.types": ",".join(types) if wanted.enabled and types else "none",
        "speculative.n_max": wanted.max_draft,
        "timings_per_token": False,
        "post_sampling_probs": False,
        "lora": [{"id": number, "scale": scale} for number, scale in request.adapters],
    }


def sampling_settings(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling parameters under llama-server's names."""
    made = {name: value for name, value in vars(sampling).items() if name != "seed"}
    made["samplers"] = list(sampling.samplers)
    made["logit_bias"] = [
        {"token": token, "bias": bias if math.isfinite(bias) else None}
        for token, bias in sampling.logit_bias.items()
    ]
    made["dry_sequence_breakers"] = list(sampling.dry_sequence_breakers)
    return made


def _final(plan: NativePlan, served: ServedModel, index: int, made: Generation) -> dict[str, Any]:
    """Return the object of a finished answer."""
    request, predicted = made.request, made.num_tokens
    discarded = made.timings.num_discarded
    size = made.timings.num_prompt + predicted - discarded
    full = made.finish_reason == "length" and size >= served.engine.context_size
    final: dict[str, Any] = {
        "index": index,
        "content": made.text,
        "tokens": made.token_ids if plan.return_tokens else [],
        "id_slot": made.slot,
        "stop": True,
        "model": served.name,
        "tokens_predicted": predicted,
        "tokens_evaluated": made.timings.num_prompt,
        "generation_settings": generation_settings(request, served, made.seed, plan.stream),
        "prompt": served.model.detokenize(request.prompt_ids, special=True),
        "has_new_line": "\n" in made.text,
        "truncated": full or discarded > 0,
        "stop_type": _stop_type(made),
        "stopping_word": made.stop_text,
        "tokens_cached": size - (_stop_type(made) != "eos"),  # the newest is not in the cache
        "timings": timings_of([made]),
    }
    if made.logprobs and not plan.stream:
        final["completion_probabilities"] = LogprobFormat(served).native(made.logprobs)
    return _picked(final, plan.fields) if plan.fields else final


def _keep(request: Request, served: ServedModel) -> int:
    """Return n_keep as the client wrote it, -1 for the whole prompt."""
    kept = request.num_keep - served.model.add_bos
    return -1 if kept == request.prompt_ids.size else kept


def _stop_type(made: Generation) -> str:
    if made.finish_reason == "length":
        return "limit"
    return "word" if made.stop_text else "eos"


def _picked(final: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return some members; "a/b" is member b of member a, under the whole name."""
    picked: dict[str, Any] = {}
    for path in fields:
        found: Any = final
        for name in path.split("/"):
            if not isinstance(found, Mapping) or name not in found:
                break
            found = found[name]
        else:
            picked[path] = found
    return picked
