"""The line that the log has for every request that has ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ngramspec.engine import Generation, Timings
    from ngramspec.server.bridge.answer import Answer

log = logging.getLogger(__name__)


def log_end(generation: Generation, answer: Answer) -> None:
    """Log what a generation cost and why it ended, without a word of prompt or answer.

    Cost: some 10 us, nothing where the level is above INFO.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    timings = generation.timings
    waited = (timings.started or timings.finished) - timings.submitted
    log.info(
        "request %s: %s, %.0f ms and %.0f ms in the queue, prompt %d tokens (%d cached, %.1f/s), "
        "emitted %d (%.1f/s), drafted %d, accepted %d%s%s%s",
        generation.request.id,
        _reason(generation, answer),
        1e3 * (timings.finished - timings.submitted - waited),
        1e3 * waited,
        timings.num_prompt,
        timings.num_cached,
        _prompt_rate(timings),
        generation.num_tokens,
        generation.tokens_per_second,
        timings.num_draft_tokens,
        timings.num_accepted_tokens,
        _gain(timings.saved_seconds),
        f", key {generation.tenant}" if generation.tenant else "",
        f", x-request-id {answer.name}" if answer.name else "",
    )


def _prompt_rate(timings: Timings) -> float:
    """Return the tokens per second of the prompt; 0 if it was not read to its end."""
    if not (timings.first_token and timings.prompt_seconds):
        return 0.0
    return (timings.num_prompt - timings.num_cached) / timings.prompt_seconds


def _gain(seconds: float) -> str:
    """Return what drafts have saved, in words; nothing where none ran or nobody knows."""
    return f", drafts {'saved' if seconds > 0 else 'lost'} {abs(seconds):.2f} s" if seconds else ""


def _reason(generation: Generation, answer: Answer) -> str:
    """Return why it ended, in a word or two."""
    if generation.finish_reason == "cancelled":
        return f"cancelled ({answer.cause})"
    if generation.error is not None:  # its text may quote the prompt
        return f"{generation.finish_reason} ({type(generation.error).__name__})"
    return str(generation.finish_reason)
