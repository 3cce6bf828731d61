"""What a stream's events tell beyond their API when a request asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngramspec.server.timings import timings_of

if TYPE_CHECKING:
    from ngramspec.engine import Chunk


def chunk_extras(chunk: Chunk, timings: bool, spans: bool) -> dict[str, Any]:
    """Return further members of a chunk's event.

    timings: llama-server's timings so far. spans: "speculative", with the text in pieces, each
    with True where accepted draft tokens made it, and how many tokens were accepted.
    """
    made: dict[str, Any] = {}
    if timings:
        made["timings"] = timings_of([chunk.generation])
    if spans:
        pieces = [[text, accepted] for text, accepted in chunk.spans]
        made["speculative"] = {"accepted": chunk.num_accepted, "spans": pieces}
    return made
