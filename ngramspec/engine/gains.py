"""seconds_saved: what each draft source has gained."""

from __future__ import annotations

from collections.abc import Mapping

from ngramspec._native.engine.figures import EngineStats
from ngramspec.stats import SourceStats


def seconds_saved(stats: EngineStats, sources: Mapping[str, SourceStats]) -> dict[str, float]:
    """Return the seconds that each source has saved so far, negative where it has lost some.

    What passes saved was counted when they ended, and making drafts takes time besides. Each source
    has its part of it by its accepted tokens, and of what drafts added to passes by all its tokens.

    Args:
        stats: Of the engine.
        sources: Counts by source.
    """
    accepted = sum(source.num_accepted_tokens for source in sources.values())
    drafted = sum(source.num_draft_tokens for source in sources.values())
    each_accepted = stats.accepted_seconds / max(accepted, 1)
    each_drafted = stats.drafted_seconds / max(drafted, 1)
    return {
        name: source.num_accepted_tokens * each_accepted
        - source.num_draft_tokens * each_drafted
        - 1e-9 * (source.begin_ns + source.propose_ns + source.accept_ns)
        for name, source in sources.items()
    }
