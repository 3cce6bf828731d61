"""What the live panel shows: counters of the engine, and the state of its slots and pools."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngramspec.engine import Engine


def engine_counters(engine: Engine) -> dict[str, Any]:
    """Return what the page shows: counters since the start, and the state of slots and pools."""
    stats = engine.stats()
    saved = engine.seconds_saved()
    sources = [source for source in engine.source_stats().values() if source.propose_calls]
    return {
        "time": time.monotonic(),
        "context": engine.context_size,
        "queue": engine.queue_length,
        "steps": stats.num_slot_steps,  # of all slots: a pass counts once for each
        "prompt_tokens": stats.num_prompt_tokens,
        "emitted_tokens": stats.num_emitted_tokens,
        "draft_tokens": stats.num_draft_tokens,
        "accepted_tokens": stats.num_accepted_tokens,
        "slots": [
            {"id": slot.id, "state": slot.state, "tokens": slot.num_past} for slot in engine.slots()
        ],
        "sources": [
            {
                "name": source.name,
                "drafts": source.num_drafts,
                "draft_tokens": source.num_draft_tokens,
                "accepted_tokens": source.num_accepted_tokens,
                "saved_seconds": saved.get(source.name),
            }
            for source in sources
        ],
        "pools": list(_pools(engine)),
    }


def _pools(engine: Engine) -> Iterator[dict[str, Any]]:
    suffix, mod = engine.drafters.suffix_pool(), engine.drafters.pool()
    recycle = engine.drafters.successor_pool()
    if suffix is not None:
        used, capacity = suffix.num_tokens, suffix.capacity
        yield {"name": "suffix", "unit": "tokens", "used": used, "capacity": capacity}
    if mod is not None:
        used, capacity = mod.num_used, mod.capacity
        yield {"name": "ngram-mod", "unit": "cells", "used": used, "capacity": capacity}
    if recycle is not None:
        used, capacity = recycle.num_entries, recycle.capacity
        yield {"name": "recycle", "unit": "contexts", "used": used, "capacity": capacity}
