"""seconds_saved: an estimate of what each draft source has gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ngramspec._native.engine.figures import EngineStats
from ngramspec.stats import SourceStats


def seconds_saved(
    stats: EngineStats, sources: Mapping[str, SourceStats], cost: Callable[[int], float]
) -> dict[str, float]:
    """Return the seconds that each source has saved so far, negative where it has lost some.

    An accepted token saves its share of a pass without drafts. Every verified one, right or wrong,
    adds to passes; making drafts takes time, too. All are taken at their mean over all passes.

    Args:
        stats: Of the engine.
        sources: Counts by source.
        cost: Seconds of a pass, given its number of tokens; the policy's.
    """
    drafted = sum(source.num_draft_tokens for source in sources.values())
    if not drafted or not stats.num_steps:
        return dict.fromkeys(sources, 0.0)
    # Each pass gives every slot that decodes one token beside the drafted ones.
    passes = max(stats.num_steps, 1)
    slots = max(round((stats.num_emitted_tokens - stats.num_accepted_tokens) / passes), 1)
    length = max(round(stats.num_draft_tokens / max(stats.num_drafts, 1)), 1)
    alone = cost(slots)
    each = (cost(slots + length) - alone) / length
    sent = min(stats.num_draft_tokens / drafted, 1.0)  # drafts may be cut before they are verified
    return {
        name: source.num_accepted_tokens * alone / slots
        - source.num_draft_tokens * sent * each
        - 1e-9 * (source.begin_ns + source.propose_ns + source.accept_ns)
        for name, source in sources.items()
    }
