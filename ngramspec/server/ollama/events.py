"""Answers in Ollama's shape: one object, or a line of JSON per step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ngramspec.server.bridge.answer import Item
from ngramspec.server.errors import ApiError
from ngramspec.server.model import ServedModel
from ngramspec.server.ollama.plan import OllamaPlan
from ngramspec.server.reply.logprobs import LogprobFormat
from ngramspec.server.reply.sse import json_line, json_text
from ngramspec.server.reply.timings import draft_counts, optional_members
from ngramspec.server.request.finite_json import finite_object
from ngramspec.text.chat.delta import Delta

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation

NDJSON = "application/x-ndjson"


def now_text() -> str:
    """Return the time in RFC 3339, in UTC with a fraction."""
    return time_text(datetime.now(timezone.utc))


def time_text(moment: datetime) -> str:
    """Return a UTC time in RFC 3339."""
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def ollama_json(
    plan: OllamaPlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any]:
    if not generations:
        return _idle(plan)
    generation = generations[0]
    message = plan.format.message(generation.text)
    raw_calls = [
        {"id": call["id"], "index": index, **call["function"]}
        for index, call in enumerate(message.calls)
    ]
    calls, loose = read_calls(raw_calls)
    shown = _shown(plan, message.content + loose, message.reasoning, calls)
    final = {**_head(plan), **shown, **_last(plan, served, generation)}
    if generation.logprobs:
        final["logprobs"] = LogprobFormat(served).chat(generation.logprobs)["content"]
    return final


class OllamaEvents:
    """An answer as lines of JSON; the last one has "done": true, counts and times."""

    media_type = NDJSON
    ping = b""

    def __init__(
        self, plan: OllamaPlan, served: ServedModel, generations: Sequence[Generation]
    ) -> None:
        self._plan = plan
        self._served = served
        self._generations = generations
        self._parser = plan.format.parser()
        self._calls: list[dict[str, Any]] = []  # found so far; the last may be incomplete
        self._num_sent = 0  # how many of these
        self._format = LogprobFormat(served)
        self._logprobs: list[dict[str, Any]] = []  # not yet sent
        self._start = b'{"model": ' + json_text(plan.model) + b', "created_at": "'
        self._middle = b'", "response": '
        self._tail = b', "done": false}\n'
        if plan.chat:
            self._middle = b'", "message": {"role": "assistant", "content": '
            self._tail = b'}, "done": false}\n'
        asked = [generation.request.logprobs for generation in generations]
        self._quick = not plan.spans and asked == [None]

    def encode(self, items: Sequence[Item]) -> bytes:
        parts: list[bytes] = []
        time = now_text().encode()
        for _, chunk in items:
            if self._quick and self._parser.plain and chunk.finish_reason is None:
                if chunk.text:
                    text = json_text(chunk.text)
                    parts += (self._start, time, self._middle, text, self._tail)
            else:
                self._encode_slowly(parts, chunk)
        return b"".join(parts)

    def end(self) -> bytes:
        """Return the line of a request that only loads; for others nothing is left to send."""
        return b"" if self._generations else _line(_idle(self._plan))

    def error(self, error: ApiError) -> bytes:
        """Return an error as a line, as Ollama does within a stream."""
        return _line(error.body("/api/"))

    def _encode_slowly(self, parts: list[bytes], chunk: Chunk) -> None:
        """Add the lines of a chunk that is more than a piece of text."""
        last = chunk.finish_reason is not None
        self._logprobs += self._format.chat(chunk.logprobs)["content"]
        extras = optional_members(chunk, False, self._plan.spans)
        content = reasoning = ""
        for delta in self._parser.feed(chunk.text, last):
            if delta.kind == "content":
                content += delta.text
            elif delta.kind == "reasoning":
                reasoning += delta.text
            else:
                _add_call(self._calls, delta)
        calls, loose = self._complete_calls(last)
        content += loose
        if reasoning and (content or calls):
            parts.append(self._piece("", reasoning, [], {}))
            reasoning = ""
        if content or reasoning or calls or (extras and chunk.token_ids):
            parts.append(self._piece(content, reasoning, calls, extras))
        if last:
            ending = _last(self._plan, self._served, chunk.generation)
            whole = {**_head(self._plan), **_shown(self._plan, "", "", []), **ending}
            if self._logprobs:  # of tokens without a text to show, such as the stop text's
                whole["logprobs"], self._logprobs = self._logprobs, []
            parts.append(_line(whole))

    def _complete_calls(self, last: bool) -> tuple[list[dict[str, Any]], str]:
        """Return calls that were not sent yet, and at the end the text of an incomplete call."""
        until = len(self._calls) if last else self._parser.num_calls
        fresh, self._num_sent = self._calls[self._num_sent : until], until
        return read_calls(fresh)

    def _piece(
        self, content: str, reasoning: str, calls: list[dict[str, Any]], extras: dict[str, Any]
    ) -> bytes:
        line = {**_head(self._plan), **_shown(self._plan, content, reasoning, calls)}
        if self._logprobs:
            line["logprobs"], self._logprobs = self._logprobs, []
        return _line({**line, "done": False, **extras})


def _head(plan: OllamaPlan) -> dict[str, Any]:
    return {"model": plan.model, "created_at": now_text()}


def _shown(
    plan: OllamaPlan, content: str, reasoning: str, calls: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the members that hold the answer; thinking and tool_calls only if not empty."""
    more: dict[str, Any] = {"thinking": reasoning} if reasoning else {}
    if not plan.chat:
        return {"response": content, **more}
    if calls:
        more["tool_calls"] = calls
    return {"message": {"role": "assistant", "content": content, **more}}


def _idle(plan: OllamaPlan) -> dict[str, Any]:
    done = {"done": True, "done_reason": plan.idle_reason}
    return {**_head(plan), **_shown(plan, "", "", []), **done}


def _last(plan: OllamaPlan, served: ServedModel, generation: Generation) -> dict[str, Any]:
    """Return the last members of an answer: why it ended, its tokens, counts and times."""
    final: dict[str, Any] = {"done": True, "done_reason": generation.finish_reason}
    if plan.with_context:
        prompt_ids = generation.request.prompt_ids.tolist()
        final["context"] = [*prompt_ids, *_answer_ids(served, generation)]
    return {**final, **counts_and_durations(generation)}


def counts_and_durations(generation: Generation) -> dict[str, int]:
    """Return counts, and times in nanoseconds; the parts add up to at most the total."""
    times = generation.timings
    load = _nanoseconds((times.started or times.finished) - times.submitted)
    prompt, decode = _nanoseconds(times.prompt_seconds), _nanoseconds(times.decode_seconds)
    return {
        "total_duration": max(
            load + prompt + decode, _nanoseconds(times.finished - times.submitted)
        ),
        "load_duration": load,
        "prompt_eval_count": times.num_prompt,
        "prompt_eval_duration": prompt,
        "eval_count": len(generation.token_ids),
        "eval_duration": decode,
        **draft_counts([generation]),
    }


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


def _answer_ids(served: ServedModel, generation: Generation) -> list[int]:
    """Return the tokens of an answer without its stop text."""
    if not generation.stop_text:
        return generation.token_ids
    return [int(token) for token in served.model.tokenize(generation.text, add_special=False)]


def _add_call(calls: list[dict[str, Any]], delta: Delta) -> None:
    if delta.kind == "call":
        del calls[delta.index :]  # a call that was given up
        named = {"id": delta.call_id, "index": delta.index, "name": delta.text}
        calls.append({**named, "arguments": ""})
    else:
        calls[delta.index]["arguments"] += delta.text


def read_calls(calls: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return calls with arguments as objects, and the text of incomplete calls.

    calls: With id, index, name, and arguments as text. Front ends tell parallel calls by the index:
    without it all are the first one to them.
    """
    whole_calls: list[dict[str, Any]] = []
    loose = ""
    for call in calls:
        name, text = call["name"], call["arguments"]
        arguments = finite_object(text or "{}")
        if arguments is not None:
            function = {"index": call["index"], "name": name, "arguments": arguments}
            whole_calls.append({"id": call["id"], "function": function})
        else:
            loose += f'{{"name": {json.dumps(name)}, "arguments": {text}'
    return whole_calls, loose


def _line(value: dict[str, Any]) -> bytes:
    return json_line(value) + b"\n"
