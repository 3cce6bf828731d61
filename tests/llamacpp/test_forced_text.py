"""Text that a grammar forces is drafted, and no text changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ngramspec import LLM

NAMES = ("customer_name", "favourite_colours", "time_of_last_contact")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 5} for name in NAMES},
    "required": [*NAMES],
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(slots=2, context_size=512) as opened:
        yield opened


def test_the_text_stays_and_takes_fewer_passes(llm: LLM) -> None:
    options: dict[str, Any] = {"json_schema": SCHEMA, "max_tokens": 120}
    for sampled in ({"temperature": 0}, {"temperature": 1, "seed": 3}):
        plain = llm.generate("x", speculation=False, **options, **sampled)
        drafted = llm.generate("x", **options, **sampled)
        assert drafted.text == plain.text
        assert all(f'"{name}"' in plain.text for name in NAMES)
        assert drafted.timings.num_steps < plain.timings.num_steps - len(NAMES)


def test_grammars_of_both_kinds_are_followed(llm: LLM) -> None:
    for grammar in ('root ::= "yes" | "no"', '%llguidance {}\nstart: "yes" | "no"'):
        answer = llm.generate("x", grammar=grammar, max_tokens=20)
        assert answer.text in ("yes", "no")
        assert answer.finish_reason == "stop"


def test_what_forced_text_is_sent_instead_of_counts_as_no_draft() -> None:
    params = {"suffix": {"max_draft": 2}}
    with LLM(drafter="suffix", params=params, policy="fixed", context_size=512) as llm:
        for _ in range(3):
            llm.generate("x", json_schema=SCHEMA, max_tokens=120, temperature=0)
        stats, own = llm.engine.stats(), llm.engine.source_stats()["suffix"]
        assert own.num_drafts > 0
        assert (own.num_drafts, own.num_draft_tokens, own.num_accepted_tokens) == (
            *(stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens),
        )
