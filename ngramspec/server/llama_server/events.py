"""Completions in llama-server's own shape: objects, or a stream of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.server.bridge.answer import Item
from ngramspec.server.errors import ApiError
from ngramspec.server.llama_server.plan import NativePlan
from ngramspec.server.model import ServedModel
from ngramspec.server.reply.logprobs import LogprobFormat
from ngramspec.server.reply.native import native_object
from ngramspec.server.reply.sse import SSE, SSE_PING, json_event, json_text
from ngramspec.server.reply.timings import optional_members

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation


def native_json(
    plan: NativePlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return one object, or a list if the request asked for a list or several answers."""
    objects = [_final(plan, served, index, one) for index, one in enumerate(generations)]
    return objects if plan.as_list else objects[0]


class NativeEvents:
    """Completions as llama-server's events; there is no mark at the end."""

    media_type = SSE
    ping = SSE_PING

    def __init__(
        self, plan: NativePlan, served: ServedModel, generations: Sequence[Generation]
    ) -> None:
        self._plan = plan
        self._served = served
        self._format = LogprobFormat(served, plan.requests[0].post_sampling_probs)
        self._slow = plan.timings_per_token or plan.spans
        self._counts = [0] * len(generations)  # tokens sent

    def encode(self, items: Sequence[Item]) -> bytes:
        parts: list[bytes] = []
        for index, chunk in items:
            generation = chunk.generation
            self._counts[index] += len(chunk.token_ids)
            if chunk.finish_reason is not None:
                parts += self._last(index, chunk)
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
                        generation.slot,
                        self._counts[index],
                        generation.timings.num_prompt,
                    ),
                )
        return b"".join(parts)

    def end(self) -> bytes:
        """Return nothing: the last event of each answer has "stop": true."""
        return b""

    def error(self, error: ApiError) -> bytes:
        return json_event(error.body("/completion"))

    def _whole(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """Return an event that is more than a piece of text."""
        generation = chunk.generation
        event: dict[str, Any] = {
            "index": index,
            "content": chunk.text,
            "tokens": chunk.token_ids,
            "stop": False,
            "id_slot": generation.slot,
            "tokens_predicted": self._counts[index],
            "tokens_evaluated": generation.timings.num_prompt,
            **optional_members(chunk, self._plan.timings_per_token, self._plan.spans),
        }
        if chunk.logprobs:
            event["completion_probabilities"] = self._format.native(chunk.logprobs)
        return event

    def _last(self, index: int, chunk: Chunk) -> list[bytes]:
        """Return the last event of an answer, with the text and tokens of its last step.

        They come in an event before it if the request names members, "content" not among them.
        """
        event = _final(self._plan, self._served, index, chunk.generation)
        if "content" not in event:
            has_piece = bool(chunk.text or chunk.token_ids)
            return [json_event(self._whole(index, chunk))] * has_piece + [json_event(event)]
        event["content"] = chunk.text
        if "tokens" in event:
            event["tokens"] = chunk.token_ids
        if chunk.logprobs:
            event["completion_probabilities"] = self._format.native(chunk.logprobs)
        event.update(optional_members(chunk, False, self._plan.spans))
        return [json_event(event)]


def _final(
    plan: NativePlan, served: ServedModel, index: int, generation: Generation
) -> dict[str, Any]:
    """Return the object of a finished answer, or the members of it that the request names."""
    final = native_object(generation, served, index, stream=plan.stream, tokens=plan.return_tokens)
    return _picked(final, plan.fields) if plan.fields else final


def _picked(final: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return some members; "a/b" is member b of member a, under the whole name."""
    picked: dict[str, Any] = {}
    for path in fields:
        value: Any = final
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            picked[path] = value
    return picked
