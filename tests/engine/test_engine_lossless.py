"""Whatever is drafted, cancelled, refused or broken: every request gets the target's own text."""

from __future__ import annotations

import codecs
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from helpers.backends import int32
from helpers.engine_checks import Job, Outcome, check_chunks, check_figures, check_stats
from helpers.fake_target import Failing, FakeTarget, Garbage, Oracle
from helpers.machines import SETTINGS
from ngramspec.costs import PROFILES
from ngramspec.engine import (
    AutoPolicy,
    Chunk,
    DraftModel,
    Engine,
    Request,
    Sampling,
    Speculation,
)
from ngramspec.errors import BackendError, CapacityError

SMALL = {
    "ngram-simple": {"size_n": 1, "size_m": 9},
    "ngram-map-k": {"size_n": 2, "size_m": 6},
    "ngram-mod": {"n_match": 2, "n_min": 1, "n_max": 7, "capacity": 1024},
}
MEMORIES: dict[str, dict[str, Any]] = {
    "any rollback": {},
    "any rollback, no copies": {"min_copy": None},
    "any rollback, often refused": {"refusal": 0.3},
    "none": {"max_rollback": 0},
    "checkpoints": {"max_rollback": 0, "can_save": True},
    "checkpoints, no copies": {"max_rollback": 0, "can_save": True, "min_copy": None},
    "checkpoints, often refused": {"max_rollback": 0, "can_save": True, "refusal": 0.3},
    "one snapshot": {"max_rollback": 1},
    "five snapshots": {"max_rollback": 5, "min_copy": None},
    "five snapshots and checkpoints": {"max_rollback": 5, "can_save": True},
}
SEEDS = st.integers(0, (1 << 32) - 1)  # what follows is chosen by it: shorter runs of rules


def policies() -> list[AutoPolicy | None]:
    """Return what an engine may be given, made anew: they learn."""
    own: list[AutoPolicy | None] = [AutoPolicy(), AutoPolicy(9, PROFILES["h100-8b"])]
    return [
        None,
        AutoPolicy(7, gate=True),
        AutoPolicy(fixed=1),
        AutoPolicy(fixed=5),
        AutoPolicy(fixed=64),
        *own,
    ]


class Lossless(RuleBasedStateMachine):
    """An engine on a fake target; everything about both is chosen by seeds."""

    memory: dict[str, Any]
    num_drafts = 0

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.slots = slots = chance.randint(1, 8)
        context = chance.choice([40, 150])
        self.target = FakeTarget(
            vocab_size=31,
            sequences=slots + chance.randint(0, 1),
            context_size=context,
            max_batch=slots + chance.choice([0, 1, 5, 30, 60]),
            exact_batch=slots + chance.choice([0, 2, 20]),
            period=chance.choice([0, 2, 11]),
            end_every=chance.choice([0, 0, 37]),
            cells=chance.choice(
                [None] * 4 + [context, context + slots, slots * context // 2 + context]
            ),
            split=chance.random() < 0.5,
            contiguous=chance.random() < 0.5,
            **self.memory,
        )
        self.oracles: list[Oracle] = []
        self.failed = 0  # decodes that were made to fail
        self.jobs: list[Job] = []
        kind = chance.choice(DRAFTERS)
        drafter = self.drafter(kind)
        self.named = drafter is None or isinstance(drafter, str)
        self.engine = Engine(
            self.target,
            drafter,
            slots=slots,
            params=SMALL,
            draft_model=self.second(chance.choice([None, None, "model", "wrong model", "oracle"])),
            policy=chance.choice(policies()),
            exact=chance.random() < 0.2,
        )
        self.busy_while(seed, 20)

    def drafter(self, kind: str | None) -> Any:
        """Return the engine's drafter of a kind."""
        seed = self.chance.randrange(1 << 16)
        if kind in ("garbage", "failing garbage"):
            source: Any = Garbage(self.target.vocab_size, seed)
        elif kind in ("oracle", "failing oracle"):
            source = Oracle(self.target, 0.5, seed)
            self.oracles += [source] * (kind == "oracle")
        else:
            return kind
        return Failing(source, 0.1, seed) if kind.startswith("failing") else source

    def second(self, kind: str | None) -> Any:
        """Return a source that is asked where the first has no draft."""
        if kind == "oracle":
            self.oracles.append(Oracle(self.target, 0.8, 1))
            self.oracles[-1].name = "second"
            return self.oracles[-1]
        period = self.target.period + (kind == "wrong model")
        size = {"vocab_size": 31, "sequences": self.slots, "context_size": 60, "max_batch": 9}
        return DraftModel(FakeTarget(period=period, **size), n_max=3) if kind else None

    @rule(seed=SEEDS, count=st.integers(1, 40))
    def busy_while(self, seed: int, count: int) -> None:
        """Do anything, so many times."""
        self.chance.seed(seed)
        calls = [self.submit] * 5 + [self.step] * 9 + [self.cancel, self.fail_a_decode]
        for _ in range(count):
            self.chance.choice(calls)(self.chance.randrange(1 << 32))

    @rule(seed=SEEDS)
    def submit(self, seed: int) -> None:
        self.chance.seed(seed)
        request, expected = self.request()
        chunks: list[Chunk] = []
        self.jobs.append(Job(self.engine.submit(request, chunks.append), chunks, expected))

    def request(self) -> tuple[Request, Outcome]:
        """Return a request and what must come of it."""
        chance, prompt = self.chance, self.prompt()
        most = chance.choice([-1, -1, 0, 1, 7, 30])
        stops = tuple(chance.sample(STOPS, chance.choice([0, 0, 1, 2])))
        expected = self.target.outcome(prompt, most, stops)
        request = Request(
            prompt_ids=int32(prompt),
            max_tokens=most,
            stop=stops,
            sampling=Sampling(temperature=0),
            speculation=self.speculation(),
            prediction_ids=int32(self.prediction(expected[0])),
            logprobs=chance.choice([None, None, 0, 3, 999]),
            cache_prompt=chance.random() < 0.8,
            slot=chance.choice([-1, -1, -1, 0, self.slots - 1]),
        )
        return request, expected

    def prompt(self) -> list[int]:
        """Return new tokens, or another turn of an earlier text, or a part of one."""
        chance, most = self.chance, self.target.context_size - 1
        ids = [chance.randint(1, 30) for _ in range(chance.choice([1, 3, 20, most]))]
        if self.jobs and chance.random() < 0.6:
            job = chance.choice(self.jobs)
            text = job.generation.request.prompt_ids.tolist() + job.expected[0]
            ids = text[: chance.choice([len(text), chance.randint(1, len(text))])] + ids[:3]
            ids = ids[: chance.choice([len(ids), len(text)])]
        return ids[:most]

    def prediction(self, answer: list[int]) -> list[int]:
        wrong = [1 + token % (self.target.vocab_size - 1) for token in answer]
        half = len(answer) // 2
        partly = answer[:half] + wrong[half : half + 2] + answer[half + 1 :]
        return self.chance.choice([[], [], [], answer, wrong, partly, [-1, 5], [5, 10**6]])

    def speculation(self) -> Speculation:
        chance = self.chance
        return Speculation(
            enabled=chance.random() < 0.9,
            types=chance.choice([None, None, ("ngram-simple", "ngram-mod")])
            if self.named
            else None,
            params=chance.choice([{}, {}, {"ngram-simple": {"size_n": 2}}]) if self.named else {},
            max_draft=chance.choice([None, None, None, None, 0, 1, 4]),
            min_draft=chance.choice([None, None, None, 2, 5]),
            namespace=chance.choice(["", "", "other"]),
        )

    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        for _ in range(random.Random(seed).choice([1, 2, 5, 20, 60])):
            self.step_once()
            if not self.engine.busy:
                break

    @rule(seed=SEEDS)
    def fail_a_decode(self, seed: int) -> None:
        kind = CapacityError if seed % 3 else BackendError
        self.target.fail_next = kind("on purpose")
        self.step_once()
        self.failed += self.target.fail_next is None
        self.target.fail_next = None

    @rule(seed=SEEDS)
    def cancel(self, seed: int) -> None:
        for job in self.jobs[len(self.jobs) and -1 - seed % len(self.jobs) :][:1]:
            job.cancelled = job.generation.finish_reason is None
            job.generation.cancel()

    @rule()
    def run_to_the_end(self) -> None:
        """Every step has work that it does: the number of steps is bounded."""
        sizes = [len(job.expected[0]) + job.generation.timings.num_prompt for job in self.jobs]
        for _ in range(3 * sum(sizes) + 10 * len(sizes) + 1):
            if not self.engine.busy:
                break
            self.step_once()
        assert not self.engine.busy, "a request is stuck"
        assert not self.engine.step()

    def step_once(self) -> None:
        before = {slot.id: slot for slot in self.engine.slots()}
        decodes = len(self.target.batches)
        self.engine.step()
        for job in self.jobs:
            assert not job.cancelled or job.generation.finish_reason is not None
        for slot in self.engine.slots() if len(self.target.batches) > decodes else ():
            old = before[slot.id]
            if (old.state, slot.state, old.request_id) == ("decode", "decode", slot.request_id):
                moved = (old.num_emitted, old.num_past) != (slot.num_emitted, slot.num_past)
                assert moved, "a decoding slot was passed over"

    @invariant()
    def slots_agree_with_the_cache(self) -> None:
        for slot in self.engine._slots if hasattr(self, "engine") else ():
            assert slot.tokens[: slot.num_past].tolist() == self.target.held[slot.id]
            assert slot.num_past <= slot.length
            assert (slot.draft.size, slot.draft_source, slot.first_row) == (0, None, -1)
            assert slot.saved is None
            assert not self.target.others[slot.id], "branches of the last tree are left"

    @invariant()
    def batches_are_never_too_large(self) -> None:
        if hasattr(self, "engine"):
            assert max(self.target.batches, default=0) <= self.engine.batch_capacity

    @invariant()
    def drafters_are_called_in_order(self) -> None:
        for oracle in getattr(self, "oracles", []):
            assert oracle.complaints == []

    @invariant()
    def finished_requests_have_the_targets_own_text(self) -> None:
        for job in getattr(self, "jobs", []):
            if job.generation.finish_reason is not None and not job.checked:
                job.checked = True
                self.check_text(job)
                check_chunks(job)
                check_figures(job, self.target)

    def check_text(self, job: Job) -> None:
        answer, (tokens, text, reason) = job.generation, job.expected
        if answer.finish_reason in ("stop", "length"):
            assert (answer.token_ids, answer.text, answer.finish_reason) == (tokens, text, reason)
            return
        assert answer.token_ids == tokens[: len(answer.token_ids)]
        pieces = b"".join(self.target.piece(token, False) for token in answer.token_ids)
        assert answer.text == codecs.decode(pieces, "utf-8", "replace")
        if answer.finish_reason == "cancelled":
            assert answer.cancelled
        else:
            assert self.failed
            assert isinstance(answer.error, (BackendError, CapacityError))

    @invariant()
    def counters_agree_with_the_generations(self) -> None:
        if hasattr(self, "engine"):
            check_stats(self.engine, [job.generation for job in self.jobs], self.target)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.run_to_the_end()
            type(self).num_drafts += self.engine.stats().num_drafts
            self.finished_requests_have_the_targets_own_text()
            self.drafters_are_called_in_order()


FEWER = settings(SETTINGS, max_examples=max(1, SETTINGS.max_examples // 3))
ALL_SMALL = "ngram-simple,ngram-map-k,ngram-mod,ngram-cache"
DRAFTERS = [
    None, "ngram-cache", "suffix", "suffix", ALL_SMALL, ALL_SMALL, "oracle", "oracle", "garbage",
    "failing oracle", "failing garbage",
]  # fmt: skip
STOPS = [" 7", " 1", "7 2", " 11 ", "é", "ab", "aa", "€", "b€"]


@pytest.mark.hypothesis
@pytest.mark.parametrize("memory", MEMORIES)
def test_every_request_gets_the_targets_own_text(memory: str) -> None:
    class Machine(Lossless):
        pass

    Machine.memory = MEMORIES[memory]
    run_state_machine_as_test(Machine, settings=FEWER)
    assert Machine.num_drafts > 0 or memory == "none"
