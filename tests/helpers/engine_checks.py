"""What must hold for every generation and counter of an engine, for tests that run one."""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec.engine import Chunk, Engine, Generation

from .fake_target import FakeTarget

Outcome = tuple[list[int], str, str]  # tokens, text, finish reason


@dataclass
class Job:
    """A submitted request and what came of it."""

    generation: Generation
    chunks: list[Chunk]
    expected: Outcome
    cancelled: bool = False
    checked: bool = False


def check_chunks(job: Job) -> None:
    """Chunks put together are the generation."""
    generation, chunks = job.generation, job.chunks
    assert [token for chunk in chunks for token in chunk.token_ids] == generation.token_ids
    assert "".join(chunk.text for chunk in chunks) == generation.text
    assert [logprob for chunk in chunks for logprob in chunk.logprobs] == generation.logprobs
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == generation.finish_reason
    accepted = []
    for chunk in chunks:
        assert 0 <= chunk.num_accepted <= len(chunk.token_ids)
        assert chunk.text == "".join(text for text, _ in chunk.spans)
        accepted += [index < chunk.num_accepted for index in range(len(chunk.token_ids))]
    assert accepted == generation.accepted


def check_figures(job: Job, target: FakeTarget) -> None:
    """The figures of a finished generation fit its tokens."""
    generation, timings = job.generation, job.generation.timings
    assert sum(generation.accepted) == timings.num_accepted_tokens <= timings.num_draft_tokens
    assert timings.num_drafts <= timings.num_draft_tokens
    assert len(generation.token_ids) <= timings.num_steps + timings.num_accepted_tokens
    if generation.request.logprobs is not None:
        assert [entry.token_id for entry in generation.logprobs] == generation.token_ids
        for entry in generation.logprobs:
            assert len(entry.top) == min(generation.request.logprobs, target.vocab_size)
            assert all(abs(value - entry.logprob) < 1e-5 for _, value in entry.top[:1])
            assert [token for token, _ in entry.top[:1]] in ([], [entry.token_id])
    else:
        assert generation.logprobs == []


def check_stats(engine: Engine, generations: list[Generation], target: FakeTarget) -> None:
    """The engine's counters are the sums over all generations."""
    stats = engine.stats()
    assert stats.num_requests == len(generations)
    assert stats.num_emitted_tokens == sum(len(one.token_ids) for one in generations)
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert getattr(stats, name) == sum(getattr(one.timings, name) for one in generations)
    assert stats.num_slot_steps == sum(one.timings.num_steps for one in generations)
    assert stats.num_slot_steps <= stats.num_busy_slots <= stats.num_batch_tokens
    assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    assert (stats.draft_lengths.count, stats.draft_lengths.total) == (
        stats.num_drafts,
        stats.num_draft_tokens,
    )
    assert (stats.num_steps, stats.num_batch_tokens) == (len(target.batches), sum(target.batches))
    finished = [one for one in generations if one.finish_reason is not None]
    assert sum(stats.finished.values()) == len(finished) == stats.request_latency.count
    assert engine.busy == (len(finished) < len(generations))
