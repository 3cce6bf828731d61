"""How text completions look to OpenAI's clients: one object, or a stream of chunks."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.server.errors import ApiError
from ngramspec.server.openai.completion_plan import CompletionPlan
from ngramspec.server.response.answer import Item
from ngramspec.server.response.logprobs import LogprobFormat
from ngramspec.server.response.sse import SSE, SSE_DONE, SSE_PING, json_text
from ngramspec.server.response.timings import chunk_extras, timings_of, usage_of
from ngramspec.server.served import Served

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation


def completion_json(
    plan: CompletionPlan, served: Served, generations: Sequence[Generation]
) -> dict[str, Any]:
    """Return the text_completion object."""
    logprobs = LogprobFormat(served)
    choices = []
    for index, (made, echo) in enumerate(zip(generations, plan.echoes, strict=True)):
        choice: dict[str, Any] = {
            "text": echo + made.text,
            "index": index,
            "logprobs": None,
            "finish_reason": made.finish_reason,
        }
        if made.request.logprobs is not None:
            choice["logprobs"] = logprobs.completion(made.logprobs, 0)
        choices.append(choice)
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "choices": choices,
        "usage": usage_of(generations, plan.choices),
        "timings": timings_of(generations),
    }


class CompletionEvents:
    """Text completions as text_completion events."""

    media_type = SSE
    ping = SSE_PING

    def __init__(
        self, plan: CompletionPlan, served: Served, generations: Sequence[Generation]
    ) -> None:
        count = len(generations)
        self._plan = plan
        self._generations = generations
        self._format = LogprobFormat(served)
        self._offsets = [0] * count  # characters of the tokens whose logprobs were sent
        self._echoes = list(plan.echoes)
        common = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }
        if plan.include_usage:
            common["usage"] = None
        self._common = common
        start = b"data: " + json.dumps(common, ensure_ascii=False).encode()[:-1]
        self._heads = [start + b', "choices": [{"index": %d, "text": ' % i for i in range(count)]
        self._tail = b', "logprobs": null, "finish_reason": null}]}\n\n'
        with_logprobs = any(made.request.logprobs is not None for made in generations)
        self._quick = not (with_logprobs or plan.timings_per_token or plan.spans)

    def encode(self, items: Sequence[Item]) -> bytes:
        """Return the events for some chunks."""
        parts: list[bytes] = []
        for index, chunk in items:
            text = chunk.text
            if self._echoes[index]:
                text, self._echoes[index] = self._echoes[index] + text, ""
            if not self._quick or chunk.finish_reason is not None:
                parts.append(self._event(index, text, chunk))
            elif text:
                parts += (self._heads[index], json_text(text), self._tail)
        return b"".join(parts)

    def end(self) -> bytes:
        """Return the usage, where it is wanted, and the end mark."""
        if not self._plan.include_usage:
            return SSE_DONE
        usage = usage_of(self._generations, self._plan.choices)
        timings = timings_of(self._generations)
        whole = {**self._common, "choices": [], "usage": usage, "timings": timings}
        return _data(whole) + SSE_DONE

    def error(self, error: ApiError) -> bytes:
        """Return an error event, as OpenAI's clients know it."""
        return _data(error.body("/v1/")) + SSE_DONE

    def _event(self, index: int, text: str, chunk: Chunk) -> bytes:
        """Return the event of a chunk that is more than a piece of text."""
        logprobs = None
        if chunk.logprobs:
            logprobs = self._format.completion(chunk.logprobs, self._offsets[index])
            self._offsets[index] += sum(map(len, logprobs["tokens"]))
        extras = chunk_extras(chunk, self._plan.timings_per_token, self._plan.spans)
        if chunk.finish_reason is not None:
            extras["timings"] = timings_of([chunk.generation])
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": chunk.finish_reason,
        }
        return _data({**self._common, "choices": [choice], **extras})


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
