"""Tenants of one engine: shares of the queue, of slots and of what is kept for later requests."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from helpers.machines import examples
from ngramspec import NgramCache, SuffixPool
from ngramspec.engine import (
    AutoPolicy,
    DraftModel,
    Engine,
    Generation,
    Request,
    Speculation,
)
from ngramspec.engine.queue import Queue, Ticket
from ngramspec.engine.sources import drafters as drafters_module
from ngramspec.engine.sources import pools as pools_module
from ngramspec.engine.sources.drafters import MAX_KINDS, Drafters
from ngramspec.errors import CapacityError, InputError, QuotaError

SUFFIX = {"suffix": {"capacity": 4096}}


@pytest.fixture(autouse=True)
def small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_module, "NAMESPACE_CAPACITY", 2048)
    monkeypatch.setattr(pools_module, "NAMESPACE_TOKENS", 4096)


def speculation(namespace: str, **suffix: Any) -> Speculation:
    return Speculation(namespace=namespace, params={"suffix": suffix} if suffix else {})


def request(prompt: int = 3, most: int = 4, **fields: Any) -> Request:
    return Request(prompt_ids=int32([prompt]), max_tokens=most, **fields)


def names(drafters: Drafters) -> set[str]:
    return set(drafters.suffix_pools())


# -- what is kept ------------------------------------------------------------------------------


def test_a_tenant_drops_its_own_oldest_only() -> None:
    drafters = Drafters("suffix", 1, SUFFIX)
    drafters.get(speculation("b:"), "b")
    pool = drafters.suffix_pool("b:")
    for number in range(3 * MAX_KINDS):
        drafters.get(speculation(f"a:{number}"), "a")
    assert names(drafters) == {"", "b:", *(f"a:{n}" for n in range(2 * MAX_KINDS, 3 * MAX_KINDS))}
    assert drafters.suffix_pool("b:") is pool
    for number in range(MAX_KINDS):  # sizes count as namespaces do
        drafters.get(speculation("a:", max_draft=1 + number), "a")
    assert names(drafters) == {"", "b:", "a:"}


def test_what_a_request_waits_or_runs_with_is_kept() -> None:
    drafters = Drafters("suffix", 1, SUFFIX)
    source, key = drafters.hold(speculation("a:first"), "a")
    pool = drafters.suffix_pool("a:first")
    for number in range(2 * MAX_KINDS):
        drafters.get(speculation(f"a:{number}"), "a")
    assert drafters.hold(speculation("a:first"), "a") == (source, key)
    assert drafters.suffix_pool("a:first") is pool
    drafters.release(key)
    for number in range(2 * MAX_KINDS):
        drafters.get(speculation(f"a:{number}"), "a")
    assert drafters.suffix_pool("a:first") is pool  # one of two holds it still
    drafters.release(key)
    for number in range(2 * MAX_KINDS):
        drafters.get(speculation(f"a:{number}"), "a")
    assert drafters.suffix_pool("a:first") is None


def test_more_than_may_be_in_use_is_refused_and_others_go_on() -> None:
    drafters = Drafters("suffix", 1, SUFFIX)
    held = [drafters.hold(speculation(f"a:{number}"), "a")[1] for number in range(MAX_KINDS)]
    with pytest.raises(QuotaError, match=f"{MAX_KINDS} combinations"):
        drafters.get(speculation("a:more"), "a")
    assert drafters.suffix_pool("a:more") is None
    assert drafters.get(speculation("a:0"), "a") is not None
    assert drafters.get(speculation("b:"), "b") is not None
    drafters.release(held[5])
    assert drafters.get(speculation("a:more"), "a") is not None
    assert drafters.suffix_pool("a:5") is None


def test_memory_is_bounded_for_all_together_and_shared_fairly() -> None:
    one = Drafters("suffix", 1, SUFFIX)
    one.get(speculation("a:"), "a")
    size = one.nbytes()["a"]
    drafters = Drafters("suffix", 1, SUFFIX, max_bytes=8 * size)
    for tenant in "bc":
        for number in range(2):
            drafters.get(speculation(f"{tenant}:{number}"), tenant)
    for number in range(MAX_KINDS):
        drafters.get(speculation(f"a:{number}"), "a")
        assert sum(drafters.nbytes().values()) <= 8 * size
    assert drafters.nbytes() == {"a": 4 * size, "b": 2 * size, "c": 2 * size}
    last = {f"a:{n}" for n in range(MAX_KINDS - 4, MAX_KINDS)}
    assert names(drafters) == {"", "b:0", "b:1", "c:0", "c:1", *last}
    for number in range(2, 5):  # b may have as many as a
        drafters.get(speculation(f"b:{number}"), "b")
    assert max(drafters.nbytes().values()) == 3 * size
    assert drafters.nbytes()["c"] == 2 * size


def test_what_others_hold_does_not_cost_a_tenant_its_own() -> None:
    one = Drafters("suffix", 1, SUFFIX)
    one.get(speculation("a:"), "a")
    drafters = Drafters("suffix", 1, SUFFIX, max_bytes=4 * one.nbytes()["a"])
    drafters.get(speculation("b:"), "b")
    for number in range(8):
        drafters.hold(speculation(f"a:{number}"), "a")
    assert {"", "b:", "a:0", "a:7"} <= names(drafters)
    drafters.get(speculation("b:more"), "b")
    assert {"b:", "b:more"} <= names(drafters)


def test_what_has_grown_counts() -> None:
    drafters = Drafters("suffix", 1, SUFFIX, max_bytes=4 << 20)
    source, key = drafters.hold(speculation("a:"), "a")
    assert source is not None
    before = drafters.nbytes()["a"]
    source.begin(0, np.arange(100_000, dtype=np.int32))
    source.end(0)
    drafters.release(key)
    assert drafters.nbytes()["a"] > before + 400_000


def test_requests_come_and_go_while_a_prompt_is_read() -> None:
    prompt = np.random.default_rng(0).permutation(2_000_000).astype(np.int32)

    def longest_share() -> float:
        """Return the longest wait, as a share of the time that the prompt took."""
        drafters = Drafters("suffix", 1, SUFFIX)
        source, key = drafters.hold(Speculation())
        assert source is not None
        reading = threading.Thread(target=source.begin, args=(0, prompt))
        began = time.monotonic()
        reading.start()
        longest = 0.0
        while reading.is_alive():
            drafters.release(key)
            before = time.monotonic()
            drafters.hold(Speculation())
            longest = max(longest, time.monotonic() - before)
        return longest / (time.monotonic() - began)

    # Other programs may stop a thread for as long; they do not each time.
    assert min(longest_share() for _ in range(5)) < 0.5


def test_no_memory_at_all_keeps_what_is_in_use_only() -> None:
    drafters = Drafters("suffix", 1, SUFFIX, max_bytes=0)
    source, key = drafters.hold(speculation("a:"), "a")
    assert drafters.get(speculation("a:"), "a") is source
    drafters.release(key)
    drafters.get(speculation("b:"), "b")
    assert names(drafters) == {"", "b:"}
    with pytest.raises(InputError, match="max_bytes"):
        Drafters("suffix", 1, SUFFIX, max_bytes=-1)


def test_settings_that_fail_leave_no_pool_behind() -> None:
    drafters = Drafters("suffix,ngram-cache", 1, {**SUFFIX, "ngram-cache": {"ngram_max": 2}})
    bad = Speculation(namespace="a:", params={"ngram-cache": {"ngram_min": 3}})
    with pytest.raises(InputError):
        drafters.get(bad, "a")
    assert names(drafters) == {""}


def test_settings_that_are_refused_cost_nothing() -> None:
    drafters = Drafters("suffix,ngram-cache", 1, {**SUFFIX, "ngram-cache": {"ngram_max": 2}})
    for number in range(MAX_KINDS):
        drafters.get(speculation(f"a:{number}"), "a")
    before = drafters.suffix_pools()
    with pytest.raises(InputError):
        drafters.get(Speculation(namespace="a:", params={"ngram-cache": {"ngram_min": 3}}), "a")
    assert drafters.suffix_pools() == before


def test_a_namespace_has_one_dynamic_cache_for_all_sizes() -> None:
    drafters = Drafters("ngram-cache", 1, {"ngram-cache": {"dynamic": NgramCache()}})
    first = drafters.get(Speculation(namespace="a"))
    other = drafters.get(Speculation(namespace="a", params={"ngram-cache": {"n_draft": 3}}))
    assert first is not None
    assert other is not None
    assert first is not other
    for source in (first, other):
        source.begin(0, int32([1, 2, 3]))
    for _ in range(8):
        first.accept(0, int32([4, 5, 6, 7, 8]), 0)
    other.accept(0, int32([4, 5, 6]), 0)
    assert other.propose([0], [2])[0].tolist() == [7, 8]


def test_the_names_of_what_the_engine_was_given() -> None:
    assert Drafters("suffix", 1, SUFFIX).shared_params == ()
    params = {"suffix": {"pool": SuffixPool(4096)}, "ngram-cache": {"dynamic": NgramCache()}}
    drafters = Drafters("suffix,ngram-cache", 1, params)
    assert drafters.shared_params == ("dynamic of ngram-cache", "pool of suffix")


# -- through the engine ------------------------------------------------------------------------


def test_waiting_requests_hold_their_pools_and_free_them_at_their_end() -> None:
    engine = Engine(FakeTarget(), "suffix", params=SUFFIX, kept_bytes=0, max_queue=64)
    asked = [Speculation(namespace=f"a:{n}") for n in range(4)]
    waiting = [engine.submit(request(speculation=one), tenant="a") for one in asked]
    assert names(engine.drafters) == {"", *(one.namespace for one in asked)}
    engine.submit(request(), tenant="b")
    assert names(engine.drafters) == {"", *(one.namespace for one in asked)}
    waiting[1].cancel()
    while engine.step():
        pass
    assert [one.finish_reason for one in waiting] == ["length", "cancelled", "length", "length"]
    engine.submit(request(speculation=Speculation(namespace="b:")), tenant="b")
    assert names(engine.drafters) == {"", "b:"}


@pytest.mark.parametrize("end", ["finish", "cancel", "close", "fail", "refuse"])
def test_a_chain_is_freed_however_its_request_ends(end: str) -> None:
    engine = Engine(FakeTarget(), "suffix", params=SUFFIX, kept_bytes=0)
    answer = engine.submit(request(speculation=Speculation(namespace="a:")), tenant="a")
    chain = weakref.ref(engine.drafters.get(Speculation(namespace="a:"), "a"))
    if end == "cancel":
        answer.cancel()
    if end in ("finish", "cancel"):
        while engine.step():
            pass
    elif end == "close":
        engine.close()
    elif end == "fail":
        engine.fail(CapacityError("no room"))
    else:
        engine.refuse()
        with pytest.raises(Exception, match="closed"):
            engine.submit(request(speculation=Speculation(namespace="a:")), tenant="a")
        engine.close()
    engine.drafters.get(Speculation(namespace="b:"), "b")
    gc.collect()
    assert chain() is None


def test_requests_with_more_kinds_than_a_tenant_may_have_are_refused() -> None:
    engine = Engine(FakeTarget(), "suffix", params=SUFFIX)
    for number in range(MAX_KINDS):
        one = Speculation(namespace=f"a:{number}")
        engine.submit(request(speculation=one), tenant="a")
    with pytest.raises(QuotaError):
        engine.submit(request(speculation=Speculation(namespace="a:more")), tenant="a")
    assert engine.queue_length == MAX_KINDS
    engine.submit(request(speculation=Speculation(namespace="b:")), tenant="b")
    while engine.step():
        pass
    answer = engine.submit(request(speculation=Speculation(namespace="a:more")), tenant="a")
    assert answer.finish_reason is None


def test_each_tenant_may_have_as_many_waiting_as_places_are_left() -> None:
    engine = Engine(FakeTarget(), None, slots=1, max_queue=8)

    def fill(tenant: str) -> int:
        before = engine.queue_length
        with contextlib.suppress(QuotaError):
            while True:
                engine.submit(request(most=-1), tenant=tenant)
        return engine.queue_length - before

    engine.submit(request(most=-1), tenant="a")
    engine.step()
    assert [fill("a"), fill("b"), fill("c"), fill("a")] == [4, 2, 1, 0]
    engine.submit(request(most=-1), tenant="d")
    for tenant in ("e", ""):
        with pytest.raises(CapacityError) as caught:
            engine.submit(request(), tenant=tenant)
        assert type(caught.value) is CapacityError


def test_who_is_alone_may_fill_queue_and_slots() -> None:
    engine = Engine(FakeTarget(), None, slots=4, max_queue=2)
    for _ in range(6):
        engine.submit(request(most=-1))
    with pytest.raises(CapacityError) as caught:
        engine.submit(request())
    assert type(caught.value) is CapacityError


def test_what_idle_slots_take_up_at_once_does_not_count() -> None:
    engine = Engine(FakeTarget(), None, slots=4, max_queue=0)
    for _ in range(4):
        engine.submit(request(most=-1), tenant="a")
    with pytest.raises(CapacityError):
        engine.submit(request(), tenant="a")


def test_tenants_get_equal_numbers_of_slots() -> None:
    engine = Engine(FakeTarget(), None, slots=4, max_queue=64)
    started: list[str] = []

    def note(tenant: str) -> Any:
        seen: list[bool] = []

        def on_chunk(chunk: Any) -> None:
            if not seen:
                seen.append(True)
                started.append(tenant)

        return on_chunk

    first = [engine.submit(request(most=-1), note("a"), "a") for _ in range(12)]
    engine.step()
    others = [engine.submit(request(most=-1), note("b"), "b") for _ in range(3)]
    others += [engine.submit(request(most=-1), note("c"), "c")]
    for answer in first[:3]:
        answer.cancel()
        engine.step()
    assert started == ["a"] * 4 + ["b", "c", "a"]
    engine.close()


def test_another_namespace_does_not_find_the_prompt_in_the_draft_model() -> None:
    small = FakeTarget()
    read: list[int] = []
    decode = small.decode

    def counted(batch: Any, rows: Any) -> Any:
        read.append(len(batch))
        return decode(batch, rows)

    small.decode = counted  # type: ignore[method-assign]
    engine = Engine(FakeTarget(), None, draft_model=DraftModel(small), policy=AutoPolicy(fixed=4))

    def tokens_read(namespace: str, **more: Any) -> int:
        read.clear()
        asked = Speculation(namespace=namespace, **more)
        prompt = int32(range(1, 41))
        engine.generate([Request(prompt_ids=prompt, max_tokens=6, speculation=asked)])
        return sum(read)

    assert tokens_read("a") > 40
    assert tokens_read("a") < 20
    assert tokens_read("b") > 40
    assert tokens_read("b") < 20
    assert tokens_read("a", enabled=False) == 0
    assert tokens_read("b") < 20
    assert tokens_read("a") > 40


# -- the queue ---------------------------------------------------------------------------------


class QueueMachine(RuleBasedStateMachine):
    """The queue beside a plain list of all that wait, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.waiting: list[Ticket] = []
        self.turns: list[str] = []  # tenants that wait, the one whose turn it is first

    @rule(tenant=st.sampled_from("abc"), slot=st.sampled_from([-1, -1, 0, 1]))
    def put(self, tenant: str, slot: int) -> None:
        generation = Generation(request(slot=slot), 0, tenant=tenant)
        ticket = Ticket(generation, None, (), None)  # type: ignore[arg-type]
        self.queue.put(ticket)
        self.waiting.append(ticket)
        if tenant not in self.turns:
            self.turns.append(tenant)

    @rule(
        idle=st.sets(st.sampled_from([0, 1]), min_size=1), running=st.lists(st.sampled_from("abc"))
    )
    def take(self, idle: set[int], running: list[str]) -> None:
        slots: Any = [IdleSlot(number) for number in sorted(idle)]
        expected = None
        for tenant in sorted(self.turns, key=lambda t: (running.count(t), self.turns.index(t))):
            for ticket in self.waiting:
                generation = ticket.generation
                if generation.tenant == tenant and (
                    generation.request.slot == -1 or generation.request.slot in idle
                ):
                    expected = expected or ticket
        following = self.queue.next(slots, running)
        assert (None if following is None else following[0]) is expected
        if expected is not None:
            self.queue.take(expected)
            self.turns.remove(expected.generation.tenant)
            self.turns.append(expected.generation.tenant)
            self.forget(expected)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        ticket.generation.cancel()
        assert self.queue.take_cancelled() == [ticket]
        self.forget(ticket)

    @rule()
    def take_all(self) -> None:
        assert set(self.queue.take_all()) == set(self.waiting)
        self.waiting, self.turns = [], []

    def forget(self, ticket: Ticket) -> None:
        self.waiting.remove(ticket)
        tenant = ticket.generation.tenant
        if all(other.generation.tenant != tenant for other in self.waiting):
            self.turns.remove(tenant)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.waiting)
        for tenant in "abcd":
            count = sum(ticket.generation.tenant == tenant for ticket in self.waiting)
            assert self.queue.num_waiting(tenant) == count


class IdleSlot:
    def __init__(self, number: int) -> None:
        self.id = number


TestQueue = QueueMachine.TestCase
TestQueue.settings = hypothesis_settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)


class DraftersMachine(RuleBasedStateMachine):
    """What is kept for three tenants, whatever they ask for and hold."""

    MOST, SHARES = 4, 6  # chains of a tenant; chains that fit the memory

    def __init__(self) -> None:
        super().__init__()
        one = Drafters("suffix", 1, SUFFIX)
        one.get(speculation("a:"), "a")
        self.size = one.nbytes()["a"]
        self.max_bytes = self.SHARES * self.size
        self.drafters = Drafters("suffix", 1, SUFFIX, max_bytes=self.max_bytes)
        self.held: list[tuple[str, str, Any, Any]] = []  # tenant, namespace, source, key

    def namespaces_by_tenant(self) -> dict[str, set[str]]:
        """Return the namespaces that are kept, by tenant."""
        every = names(self.drafters) - {""}
        return {tenant: {name for name in every if name[0] == tenant} for tenant in "abc"}

    @rule(tenant=st.sampled_from("abc"), number=st.integers(0, 6), keep=st.booleans())
    def ask(self, tenant: str, number: int, keep: bool) -> None:
        before, namespace = self.namespaces_by_tenant(), f"{tenant}:{number}"
        in_use = {name for owner, name, _, _ in self.held if owner == tenant}
        try:
            source, key = self.drafters.hold(speculation(namespace), tenant)
        except QuotaError:
            assert len(in_use) == self.MOST
            assert namespace not in in_use
            assert self.namespaces_by_tenant() == before
            return
        sources = {name: other for _, name, other, _ in self.held}
        assert source is sources.get(namespace, source)
        after, in_use = (
            self.namespaces_by_tenant(),
            {namespace, *(name for _, name, _, _ in self.held)},
        )
        share = self.max_bytes // sum(bool(own) for own in after.values())
        fits = sum(map(len, after.values())) <= self.SHARES
        for one, own in after.items():
            if one != tenant and len(before[one]) * self.size <= share:
                assert own == before[one]  # no more than its share: it loses nothing
            assert fits or len(own) * self.size <= share or own <= in_use
        if keep:
            self.held.append((tenant, namespace, source, key))
        else:
            self.drafters.release(key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.drafters.release(self.held.pop(index)[3])

    @invariant()
    def bounds_hold(self) -> None:
        namespaces, in_use = self.namespaces_by_tenant(), {name for _, name, _, _ in self.held}
        assert in_use <= set().union(*namespaces.values())
        assert all(len(own) <= self.MOST for own in namespaces.values())
        assert self.drafters.nbytes() == {
            one: len(own) * self.size for one, own in namespaces.items() if own
        }


@pytest.mark.usefixtures("few_kinds")
class TestDrafters(DraftersMachine.TestCase):
    settings = hypothesis_settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@pytest.fixture
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters_module, "MAX_KINDS", DraftersMachine.MOST)


def test_threads_hold_and_release_while_room_is_made() -> None:
    drafters = Drafters("suffix", 1, SUFFIX, max_bytes=1 << 20)
    start, failures = threading.Barrier(4), deque[BaseException]()

    def work(tenant: str) -> None:
        start.wait()
        try:
            for number in range(150):
                source, key = drafters.hold(speculation(f"{tenant}:{number % 40}"), tenant)
                assert source is not None
                drafters.nbytes()
                drafters.release(key)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(tenant,)) for tenant in "abab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sum(drafters.nbytes().values()) > 0  # all that was released is counted
    assert not any(kind.held for kind in drafters._kinds.values())
