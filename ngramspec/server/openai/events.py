"""Common parts of OpenAI's answers: how they begin and end, usage, and what came of drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec._version import __version__
from ngramspec.server.errors import ApiError
from ngramspec.server.model import ServedModel
from ngramspec.server.openai.plan import OpenAIPlan
from ngramspec.server.reply.native import native_object
from ngramspec.server.reply.sse import SSE, SSE_DONE, SSE_PING, json_event
from ngramspec.server.reply.timings import timings_of

if TYPE_CHECKING:
    from ngramspec.engine import Generation

if TYPE_CHECKING:
    from ngramspec.engine import Generation

FINGERPRINT = f"b{__version__}-ngramspec"  # clients expect a build of llama.cpp


class OpenAIEvents:
    """Base of the events of chat completions and text completions.

    Args:
        plan: The request's plan.
        served: The model.
        generations: All generations of the answer.
        kind: The events' "object", such as "text_completion".
        choices: Number of consecutive generations that belong to one prompt.
    """

    media_type = SSE
    ping = SSE_PING

    def __init__(
        self,
        plan: OpenAIPlan,
        served: ServedModel,
        generations: Sequence[Generation],
        kind: str,
        choices: int,
    ) -> None:
        self._generations = generations
        self._choices = choices
        self._with_usage, self._draft_metrics = plan.include_usage, plan.draft_metrics
        self._served = served
        self._members = (plan.timings_per_token, plan.spans)  # further members that an event has
        self._common = head(served, kind, generations)
        if plan.include_usage:
            self._common["usage"] = None
        with_logprobs = any(generation.request.logprobs is not None for generation in generations)
        # Most events are a text between bytes prepared ahead: see encode.
        with_progress = any(generation.request.progress for generation in generations)
        self._quick = not (with_logprobs or with_progress or any(self._members))

    def heads(self, field: bytes) -> list[bytes]:
        """Return the start of an event per generation, up to the text in a field of its choice."""
        start = json_event(self._common).removesuffix(b"}\n\n")
        count = len(self._generations)
        return [start + b', "choices": [{"index": %d, %b: ' % (i, field) for i in range(count)]

    def end(self) -> bytes:
        """Return the usage, if requested, and the end mark."""
        if not self._with_usage:
            return SSE_DONE
        usage = usage_of(self._generations, self._choices, self.reasoning_tokens())
        whole = {
            **self._common,
            "choices": [],
            "usage": usage,
            "timings": timings_of(self._generations),
            **metrics_of(self._draft_metrics, self._served, self._generations),
        }
        return json_event(whole) + SSE_DONE

    def reasoning_tokens(self) -> int:
        """Return how many tokens of the finished generations are reasoning."""
        return 0

    def error(self, error: ApiError) -> bytes:
        return json_event(error.body("/v1/")) + SSE_DONE


def head(served: ServedModel, kind: str, generations: Sequence[Generation]) -> dict[str, Any]:
    """Return the first members of an answer, or of every event of a streamed answer."""
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {
        "id": f"{prefix}-{generations[0].request.id}",
        "object": kind,
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": FINGERPRINT,
    }


def whole_json(
    plan: OpenAIPlan,
    served: ServedModel,
    kind: str,
    generations: Sequence[Generation],
    choices: Sequence[dict[str, Any]],
    usage: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Return a whole answer, with llama-server's `__verbose` if the request wants it.

    That is the first answer's own object.
    """
    whole = {
        **head(served, kind, generations),
        "choices": choices,
        **more,
        "usage": usage,
        "timings": timings_of(generations),
        **metrics_of(plan.draft_metrics, served, generations),
    }
    if plan.verbose:
        whole["__verbose"] = native_object(generations[0], served, 0, stream=False, tokens=True)
    return whole


def usage_of(
    generations: Sequence[Generation], choices: int = 1, reasoning: int = 0
) -> dict[str, Any]:
    """Return OpenAI's usage.

    Args:
        generations: All generations of the response.
        choices: Number of consecutive generations that belong to one prompt, which counts once.
        reasoning: How many of all their tokens are reasoning.
    """
    firsts = [generation.timings for generation in generations[::choices]]
    prompt = sum(t.num_prompt for t in firsts)
    completion = sum(generation.num_tokens for generation in generations)
    accepted = sum(generation.timings.num_prediction_accepted for generation in generations)
    rejected = sum(generation.timings.num_prediction_rejected for generation in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(t.num_cached for t in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        },
    }


def metrics_of(
    level: str, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any]:
    """Return the member `metrics` of an answer; nothing where the level is "none".

    Its value is None where the answer has several texts, or none of its drafts could be sent.

    level: Of ServerSettings.per_request_spec_decode_metrics.
    """
    if level == "none":
        return {}
    speculation, longest = generations[0].request.speculation, served.engine.longest_draft
    sends = longest and not speculation.shadow and served.engine.types_of(speculation)
    if len(generations) > 1 or not sends:
        return {"metrics": None}
    timings, most = generations[0].timings, speculation.max_draft
    drafted, accepted = timings.per_draft().T
    # Drafters with parameters of the request may draft more than those that run by default.
    longest = max([longest if most is None else min(longest, most), *drafted.tolist()])
    steps, right = int(drafted.size), int(accepted.sum())
    figures = {
        "mean_acceptance_length": 1.0 + right / steps if steps else 1.0,
        "draft_acceptance_rate": right / int(drafted.sum()) if steps else 0.0,
        "acceptance_histogram": _histogram(accepted, longest),
        "acceptance_histogram_by_draft_length": {
            str(length): _histogram(accepted[drafted == length], length)
            for length in np.unique(drafted).tolist()
        },
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": right,
        "num_draft_tokens": int(drafted.sum()),
        "num_spec_tokens": longest,
    }
    if level == "detailed":
        figures["per_step_accepted"] = accepted.tolist()
        figures["per_step_drafted"] = drafted.tolist()
    return {"metrics": {"speculative_decoding": figures}}


def _histogram(accepted: Any, longest: int) -> list[int]:
    """Return how many drafts had 0..longest accepted tokens."""
    return list(map(int, np.bincount(accepted, minlength=longest + 1)))
