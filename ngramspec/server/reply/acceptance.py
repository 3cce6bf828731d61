"""What came of the drafts of one answer, as vLLM tells it: `metrics.speculative_decoding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.server.model import ServedModel

if TYPE_CHECKING:
    from ngramspec.engine import Generation


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
