"""Recorded drafts of llama.cpp: equal where its rules are sound, at least as good elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.backends import Backend, Native, NativeCache, Reference, int32
from helpers.recordings import GOLDEN_DATA, Recording, Step, read_recording, read_records
from ngramspec import read_lookup_cache
from reference.source import common_prefix

NATIVE_AND_REFERENCE = pytest.mark.parametrize(
    "backend", [Native(), Reference()], ids=["native", "reference"]
)
SIMPLE = ["ngram-simple_default", "ngram-simple_n5_m10", "ngram-simple_small_vocab"]
MAPS = ["ngram-map-k_fresh", "ngram-map-k4v_fresh"]
MODS = ["ngram-mod_default", "ngram-mod_n16_short", "ngram-mod_n4"]


def is_run(tokens: list[int]) -> bool:
    """One token again and again: upstream never tries the occurrence that gives this loop."""
    return len(set(tokens)) == 1


@NATIVE_AND_REFERENCE
@pytest.mark.parametrize("name", SIMPLE)
def test_ngram_simple_extends_the_recorded_drafts(name: str, backend: Backend) -> None:
    recording = read_recording(name)
    drafter = backend.drafter("ngram-simple", recording.num_slots, **recording.params)
    num_drafts, num_other = 0, 0
    for step in recording.steps:
        if not step.draft:
            continue
        drafter.follow(step.slot, recording.history_at(step))
        ours = drafter.propose(step.slot, len(recording.right_tokens(step)))
        num_drafts += 1
        if ours[: len(step.draft)] != step.draft:
            num_other += 1
            assert is_run(ours), (step, ours)
    assert num_drafts > 50
    assert num_other <= 0.01 * num_drafts


def recorded_cache(backend: Backend, which: str) -> Any:
    path = GOLDEN_DATA / f"cache_static_dynamic.{which}.bin"
    if backend.name == "native":
        return NativeCache(read_lookup_cache(path))
    cache = Reference().cache()
    cache.counts = dict(read_records(path))
    return cache


def cache_options(name: str, backend: Backend) -> dict[str, Any]:
    if name == "context":
        return {}
    caches = {which: recorded_cache(backend, which) for which in ("static", "dynamic")}
    return {**caches, "dynamic_update": False}


@NATIVE_AND_REFERENCE
@pytest.mark.parametrize("name", ["context", "static_dynamic"])
def test_ngram_cache_equals_every_recorded_draft_without_a_tie(name: str, backend: Backend) -> None:
    recording = read_recording(f"ngram-cache_{name}")
    drafter = backend.drafter("ngram-cache", **cache_options(name, backend))
    for step in recording.steps:
        drafter.follow(0, recording.history_at(step))
        draft = drafter.propose(0, 8)
        assert step.tie or draft == step.draft, step
        assert step.tie or not drafter.is_ambiguous(0), step


@NATIVE_AND_REFERENCE
@pytest.mark.parametrize("name", MAPS)
def test_the_map_drafters_get_at_least_the_recorded_tokens_accepted(
    name: str, backend: Backend
) -> None:
    recording = read_recording(name)
    spec = name.removesuffix("_fresh")
    drafter = backend.drafter(spec, **recording.params)
    accepted = sum(drafter.replay(p, o).accepted for p, o in recording.sessions)
    assert accepted >= recording.num_accepted


class Round:
    """The recorded loop: free slots take the next session, all slots draft, all slots commit."""

    def __init__(self, drafter: Any, recording: Recording) -> None:
        self.drafter = drafter
        self.waiting = list(recording.sessions)
        self.outputs: list[list[int]] = [[] for _ in range(recording.num_slots)]
        self.positions = [0] * recording.num_slots  # of the newest committed output token
        self.num_accepted = 0

    def room(self, slot: int) -> int:
        return len(self.outputs[slot]) - self.positions[slot] - 1

    def take_sessions(self) -> None:
        for slot in range(len(self.outputs)):
            if self.room(slot) <= 0 and self.waiting:
                prompt, output = self.waiting.pop(0)
                self.drafter.begin(slot, prompt)
                self.drafter.accept(slot, output[:1], 0)
                self.outputs[slot], self.positions[slot] = output, 0

    def run(self) -> int:
        while True:
            self.take_sessions()
            busy = [slot for slot in range(len(self.outputs)) if self.room(slot) > 0]
            if not busy:
                return self.num_accepted
            drafts = [self.drafter.propose(slot, self.room(slot)) for slot in busy]
            for slot, draft in zip(busy, drafts, strict=True):
                right = self.outputs[slot][self.positions[slot] + 1 :]
                k = common_prefix(draft, right)
                self.drafter.accept(slot, right[: k + 1], k)
                self.positions[slot] += k + 1
                self.num_accepted += k


@NATIVE_AND_REFERENCE
@pytest.mark.parametrize("name", MODS)
def test_ngram_mod_gets_at_least_the_recorded_tokens_accepted(name: str, backend: Backend) -> None:
    recording = read_recording(name)
    drafter = backend.drafter("ngram-mod", recording.num_slots, **recording.params)
    assert Round(drafter, recording).run() >= recording.num_accepted


def test_a_recorded_step_knows_its_history() -> None:
    """The readers themselves: accepted tokens are the draft's right ones."""
    recording = read_recording("ngram-simple_default")
    drafts: list[Step] = [step for step in recording.steps if step.draft]
    for step in drafts:
        assert common_prefix(step.draft, recording.right_tokens(step)) == step.accepted
        assert int32(recording.history_at(step)).size == step.history_len + 1
