"""Text completions in OpenAI's shape: one object, or a stream of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.server.bridge.answer import Item
from ngramspec.server.model import ServedModel
from ngramspec.server.openai.events import OpenAIEvents, usage_of, whole_json
from ngramspec.server.openai.plan import CompletionPlan
from ngramspec.server.reply.logprobs import LogprobFormat
from ngramspec.server.reply.sse import json_event, json_text
from ngramspec.server.reply.timings import optional_members, timings_of

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation


def completion_json(
    plan: CompletionPlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any]:
    logprobs = LogprobFormat(served, plan.requests[0].post_sampling_probs)
    choices = []
    for index, (generation, echo) in enumerate(zip(generations, plan.echoes, strict=True)):
        choice: dict[str, Any] = {
            "text": echo + generation.text,
            "index": index,
            "logprobs": None,
            "finish_reason": generation.finish_reason,
        }
        if generation.request.logprobs is not None:
            choice["logprobs"] = logprobs.completion(generation.logprobs, len(echo))
        if plan.of_echo is not None:
            echoed = logprobs.echo(generation, echo, plan.of_echo)
            choice["logprobs"] = joined(echoed, choice["logprobs"])
        if plan.of_prompt is not None:
            choice["prompt_logprobs"] = logprobs.prompt(generation, plan.of_prompt)
        choices.append(choice)
    usage = usage_of(generations, plan.choices)
    return whole_json(plan, served, "text_completion", generations, choices, usage)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the `logprobs` of tokens and of those after them."""
    return {name: [*members, *second[name]] for name, members in first.items()}


class CompletionEvents(OpenAIEvents):
    """Text completions as text_completion events."""

    def __init__(
        self, plan: CompletionPlan, served: ServedModel, generations: Sequence[Generation]
    ) -> None:
        super().__init__(plan, served, generations, "text_completion", plan.choices)
        self._format = LogprobFormat(served, plan.requests[0].post_sampling_probs)
        self._offsets = [0] * len(generations)  # characters of the tokens whose logprobs were sent
        self._echoes: list[str | None] = [*plan.echoes]  # None: it was sent
        self._of_echo = plan.of_echo
        self._heads = self.heads(b'"text"')
        self._tail = b', "logprobs": null, "finish_reason": null}]}\n\n'

    def encode(self, items: Sequence[Item]) -> bytes:
        parts: list[bytes] = []
        for index, chunk in items:
            text, echo = chunk.text, self._echoes[index]
            if self._of_echo is not None and chunk.progress is not None:
                echo = None  # comes with its log-probabilities, when all are known
            if echo is not None:
                text, self._echoes[index] = echo + text, None
            if not self._quick or chunk.finish_reason is not None:
                parts.append(self._event(index, text, chunk, echo))
            elif text:
                parts += (self._heads[index], json_text(text), self._tail)
        return b"".join(parts)

    def _event(self, index: int, text: str, chunk: Chunk, echo: str | None) -> bytes:
        """Return the event of a chunk that is more than a piece of text.

        echo: What the text begins with of the prompt, None = nothing.
        """
        logprobs = None
        if echo is not None and self._of_echo is not None:
            self._offsets[index] = len(echo)
            echoed = self._format.echo(chunk.generation, echo, self._of_echo)
            logprobs = joined(echoed, self._logprobs(index, chunk))
        elif chunk.logprobs:
            logprobs = self._logprobs(index, chunk)
        extras = optional_members(chunk, *self._members)
        if chunk.finish_reason is not None:
            extras["timings"] = timings_of([chunk.generation])
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": chunk.finish_reason,
        }
        return json_event({**self._common, "choices": [choice], **extras})

    def _logprobs(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """Return those of a chunk, and note where the next ones begin."""
        logprobs = self._format.completion(chunk.logprobs, self._offsets[index])
        self._offsets[index] += sum(map(len, logprobs.get("tokens", ())))
        return logprobs
