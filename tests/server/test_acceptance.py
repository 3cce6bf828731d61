"""`metrics.speculative_decoding`: what came of a request's drafts, with vLLM's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.serving import CHAT, Serving, Start

REPEATED = "one two three four five six seven eight. " * 6
OPTION = "per_request_spec_decode_metrics"


@pytest.fixture(scope="module")
def detailed(model: Any) -> Iterator[Serving]:
    from helpers.serving import serving

    with serving(model, **{OPTION: "detailed"}) as server:
        yield server


def check(figures: dict[str, Any], timings: Any) -> None:
    """Compare all figures with what the list of single drafts gives."""
    accepted, drafted = figures["per_step_accepted"], figures["per_step_drafted"]
    longest = figures["num_spec_tokens"]
    counts = Counter(zip(drafted, accepted, strict=True))
    assert figures["acceptance_histogram"] == [
        sum(count for (_, right), count in counts.items() if right == j) for j in range(longest + 1)
    ]
    assert figures["acceptance_histogram_by_draft_length"] == {
        str(k): [counts[k, j] for j in range(k + 1)] for k in sorted(set(drafted))
    }
    assert figures["num_spec_steps"] == len(accepted) > 0
    assert figures["num_draft_tokens"] == sum(drafted) == timings["draft_n"]
    assert figures["num_accepted_draft_tokens"] == sum(accepted) == timings["draft_n_accepted"]
    assert figures["mean_acceptance_length"] == 1 + sum(accepted) / len(accepted)
    assert figures["draft_acceptance_rate"] == sum(accepted) / sum(drafted)


def test_a_completion_tells_of_its_drafts(detailed: Serving) -> None:
    answer = detailed.complete(prompt=REPEATED, max_tokens=60)
    check(answer.metrics["speculative_decoding"], answer.timings)
    before = detailed.engine.stats()
    assert before.num_drafts >= answer.metrics["speculative_decoding"]["num_spec_steps"]


def test_a_stream_tells_with_its_usage(detailed: Serving) -> None:
    events = list(detailed.chat(max_tokens=60, stream=True, stream_options={"include_usage": True}))
    assert all("metrics" not in event.model_extra for event in events[:-1])
    last = events[-1]
    assert last.usage is not None
    check(last.metrics["speculative_decoding"], last.timings)
    without = list(detailed.chat(max_tokens=10, stream=True))
    assert all("metrics" not in event.model_extra for event in without)


def test_an_answer_with_several_texts_or_without_drafts_has_null(detailed: Serving) -> None:
    assert detailed.complete(n=2, max_tokens=4).metrics is None
    off = detailed.chat(max_tokens=4, extra={"speculative.types": "none"})
    assert off.metrics is None
    judged = detailed.chat(max_tokens=4, extra={"speculative": {"shadow": True}})
    assert judged.metrics is None
    assert detailed.complete(prompt=["a b", "c d"], max_tokens=4).metrics is None


def test_an_answer_that_drafted_nothing_has_figures_of_nothing(detailed: Serving) -> None:
    figures = detailed.complete(max_tokens=1).metrics["speculative_decoding"]
    assert set(figures.pop("acceptance_histogram")) == {0}
    assert figures.pop("num_spec_tokens") > 0
    assert figures == {
        "mean_acceptance_length": 1.0,
        "draft_acceptance_rate": 0.0,
        "acceptance_histogram_by_draft_length": {},
        "num_spec_steps": 0,
        "num_accepted_draft_tokens": 0,
        "num_draft_tokens": 0,
        "per_step_accepted": [],
        "per_step_drafted": [],
    }


def test_a_request_with_shorter_drafts_says_their_limit(detailed: Serving) -> None:
    answer = detailed.complete(
        prompt=REPEATED, max_tokens=40, extra={"speculative.n_max": 2}
    ).metrics["speculative_decoding"]
    assert answer["num_spec_tokens"] == 2
    assert len(answer["acceptance_histogram"]) == 3
    assert max(answer["per_step_drafted"]) == 2


def test_a_summary_has_no_list_of_drafts_and_off_says_nothing(
    start: Start, server: Serving
) -> None:
    summary = start(**{OPTION: "summary"})
    body: dict[str, Any] = {"messages": CHAT, "max_tokens": 40, "temperature": 0}
    figures = summary.post("/v1/chat/completions", **body).json()["metrics"]["speculative_decoding"]
    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"]) > 0
    assert "per_step_accepted" not in figures
    assert "metrics" not in server.post("/v1/chat/completions", **body).json()
