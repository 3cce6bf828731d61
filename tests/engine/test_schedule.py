"""Schedule: who gets which slot, which tokens go into a decode, and how room is shared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.machines import SETTINGS
from ngramspec.engine import Request, Speculation
from ngramspec.engine.generation import Generation
from ngramspec.engine.queue import Queue, Ticket
from ngramspec.engine.schedule import (
    WORTH_COPYING,
    Work,
    best_donor,
    choose_slot,
    draft_room,
    plan,
    share,
    shrink_prompts,
)
from ngramspec.engine.slot import Slot

MANY = settings(SETTINGS, max_examples=10 * SETTINGS.max_examples)
CLAIMS = st.lists(st.integers(0, 70), max_size=9)


def request(*ids: int, **fields: Any) -> Request:
    return Request(prompt_ids=int32(list(ids)), **fields)


def slot(
    number: int,
    pending: int = 1,
    *,
    decoding: bool = True,
    draft: int = 0,
    used: int = 0,
    past: list[int] | None = None,
    namespace: str = "",
) -> Slot:
    """Return a slot with so many pending tokens, or an idle one that holds `past`."""
    made = Slot(number, 400)
    made.used, made.namespace = used, namespace
    if past is not None:
        made.tokens[: len(past)] = past
        made.length = made.num_past = len(past)
        return made
    made.generation = Generation(request(1), 0)
    made.length, made.num_past = 100 + pending, 100
    made.num_prompt, made.decoding = made.length - decoding, decoding
    made.draft = int32([1] * draft)
    return made


def counts(work: list[Work]) -> dict[int, int]:
    return {item.slot.id: item.count for item in work}


@given(wanted=CLAIMS, room=st.integers(0, 300))
@MANY
def test_sharing_is_fair_and_uses_the_room(wanted: list[int], room: int) -> None:
    given_ = share(wanted, room)
    assert sum(given_) == min(sum(wanted), room)
    assert all(0 <= got <= want for got, want in zip(given_, wanted, strict=True))
    cut = [got for got, want in zip(given_, wanted, strict=True) if got < want]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(given_) <= max(cut) + 1  # nobody has more than those that were cut


def test_sharing_meets_small_claims() -> None:
    assert share([8, 2, 8], 12) == [5, 2, 5]
    assert share([], 5) == share([], 0) == []
    assert share([3, 4], 7) == [3, 4]
    assert share([5, 5, 5], 0) == [0, 0, 0]
    assert share([9, 9], 1) in ([0, 1], [1, 0])


def test_decoding_slots_come_first_and_prompts_get_the_rest() -> None:
    slots = [slot(0), slot(1, 50, decoding=False), slot(2), slot(3, 9, decoding=False, used=-1)]
    work = plan(slots, 32)
    assert [(item.slot.id, item.count, item.output) for item in work] == [
        (0, 1, True),
        (2, 1, True),
        (3, 9, True),  # it came before slot 1
        (1, 21, False),
    ]
    assert counts(plan(slots, 11)) == {0: 1, 2: 1, 3: 9}
    assert counts(plan(slots, 2)) == {0: 1, 2: 1}
    assert plan([], 8) == []


@given(
    pending=st.lists(st.tuples(st.integers(1, 90), st.booleans()), max_size=8),
    extra=st.integers(0, 80),
)
@MANY
def test_plans_fit_and_pass_over_no_decoding_slot(
    pending: list[tuple[int, bool]], extra: int
) -> None:
    slots = [slot(i, n, decoding=d, used=-i) for i, (n, d) in enumerate(pending)]
    capacity = len(slots) + extra
    work = plan(slots, capacity)
    total = sum(n for n, _ in pending)
    assert sum(item.count for item in work) == min(total, capacity)
    assert all(0 < item.count <= item.slot.num_pending for item in work)
    given_ = counts(work)
    assert all(given_.get(s.id) for s in slots if s.decoding)
    waiting = sorted((s for s in slots if not s.decoding), key=lambda s: s.used)
    whole = [given_.get(s.id, 0) == s.num_pending for s in waiting]
    assert whole == sorted(whole, reverse=True)  # first come, first read


def test_a_long_re_read_does_not_hold_up_other_slots() -> None:
    slots = [slot(0), slot(1), slot(2, 300)]
    assert counts(plan(slots, 64)) == {0: 1, 1: 1, 2: 62}
    assert counts(plan(slots[::-1], 64)) == {0: 1, 1: 1, 2: 62}
    assert counts(plan([slot(0, 300), slot(1, 300), slot(2)], 65)) == {0: 32, 1: 32, 2: 1}


@pytest.mark.parametrize(
    ("rows", "prompts", "capacity", "room"),
    [
        (4, 0, 64, 60),
        (4, 10, 64, 50),
        (4, 60, 64, 12),
        (64, 0, 64, 0),
        (3, 1, 4, 0),
        (60, 4, 64, 0),
    ],
)
def test_prompts_leave_a_quarter_to_drafts(
    rows: int, prompts: int, capacity: int, room: int
) -> None:
    work = [Work(slot(i), 1) for i in range(rows)]
    work += [Work(slot(99, 200, decoding=False), prompts)] * (prompts > 0)
    assert draft_room(work, capacity) == room


@given(
    pending=st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=8),
    extra=st.integers(0, 80),
    wanted=CLAIMS,
)
@MANY
def test_drafts_and_shrunk_prompts_fit(
    pending: list[tuple[int, bool]], extra: int, wanted: list[int]
) -> None:
    slots = [slot(i, n, decoding=d, used=i) for i, (n, d) in enumerate(pending)]
    capacity = len(slots) + extra
    work = plan(slots, capacity)
    before, read = counts(work), sum(i.count for i in work if not i.slot.decoding)
    drafted = [item.slot for item in work if item.slot.decoding]
    claims = [(wanted * 9)[i] if wanted else 0 for i in range(len(drafted))]
    for one, size in zip(drafted, share(claims, draft_room(work, capacity)), strict=True):
        one.draft = int32([1] * size)
    shrink_prompts(work, capacity)
    assert sum(item.count + item.slot.draft.size for item in work) <= capacity
    assert all(item.count > 0 for item in work)
    after = counts(work)
    assert all(after[s.id] == before[s.id] for s in drafted)
    kept = sum(item.count for item in work if not item.slot.decoding)
    assert kept >= min(read, capacity * 3 // 4)


def test_the_latest_prompt_is_cut_first() -> None:
    work = [Work(slot(0, draft=10), 1), *(Work(slot(i, 8, decoding=False), 8) for i in (1, 2, 3))]
    shrink_prompts(work, 25)
    assert counts(work) == {0: 1, 1: 8, 2: 6}
    assert [item.output for item in work] == [True, True, False]
    shrink_prompts(work, 25)
    assert counts(work) == {0: 1, 1: 8, 2: 6}


def test_a_request_goes_to_the_slot_with_the_longest_common_prefix() -> None:
    idle = [slot(0, past=[1, 2]), slot(1, past=[1, 2, 3, 4]), slot(2, past=[9, 2, 3, 4])]
    assert choose_slot(idle, request(1, 2, 3, 9)) == (idle[1], 3)
    assert choose_slot(idle[::2], request(1, 2, 3, 9)) == (idle[0], 2)


def test_a_request_that_shares_little_goes_to_the_slot_unused_for_longest() -> None:
    prompt = request(1, 2, *range(40, 60))
    idle = [slot(0, past=[1, 2], used=7), slot(1, past=[1, 5], used=5), slot(2, past=[], used=6)]
    assert choose_slot(idle, prompt) == (idle[1], 1)
    idle[0].tokens[:3], idle[0].num_past = [1, 2, 40], 3
    assert choose_slot(idle, prompt) == (idle[0], 3)
    assert choose_slot(idle[:2], request(1, 2, *range(41, 59))) == (idle[0], 2)  # a tenth is enough
    assert choose_slot(idle[:2], request(1, 2, *range(41, 60))) == (idle[1], 1)


def test_what_another_namespace_left_does_not_count() -> None:
    idle = [slot(0, past=[1, 2, 3], used=1), slot(1, past=[8], used=2)]
    other = Speculation(namespace="other")
    assert choose_slot(idle, request(1, 2, 3, speculation=other)) == (idle[0], 0)
    idle[1] = slot(1, past=[1, 2], used=2, namespace="other")
    assert choose_slot(idle, request(1, 2, 3, speculation=other)) == (idle[1], 2)
    assert choose_slot(idle, request(1, 2, 3, cache_prompt=False)) == (idle[0], 0)


def test_a_donor_must_hold_much_more_of_the_prompt() -> None:
    text = list(range(1, 100))
    slots = [slot(0, past=[]), slot(1, past=text[:WORTH_COPYING]), slot(2, past=text[:50])]
    chosen = slots[0]
    assert best_donor(slots, chosen, request(*text), 0) is slots[2]
    assert best_donor(slots[:2], chosen, request(*text), 0) is None
    slots[1].num_past, slots[1].tokens[:99] = WORTH_COPYING + 1, text
    assert best_donor(slots[:2], chosen, request(*text), 0) is slots[1]
    assert best_donor(slots, chosen, request(*text), 18) is None
    assert best_donor(slots, slots[2], request(*text), 50) is None
    apart = request(*text, speculation=Speculation(namespace="other"))
    assert best_donor(slots, chosen, apart, 0) is None
    assert best_donor(slots, chosen, request(*text, cache_prompt=False), 0) is None


def ticket(**fields: Any) -> Ticket:
    made: Any = Ticket(Generation(request(1, **fields), 0), None, (), None)  # type: ignore[arg-type]
    return made


def test_the_queue_serves_in_order_but_does_not_wait_for_a_busy_slot() -> None:
    queue, slots = Queue(), [slot(i) for i in range(3)]
    tickets = [ticket(slot=1), ticket(), ticket(slot=1), ticket(slot=2)]
    for one in tickets:
        queue.put(one)
    assert queue.take([]) is None
    assert queue.take([slots[0], slots[2]]) == (tickets[1], [slots[0], slots[2]])
    assert queue.take([slots[0]]) is None
    assert queue.take(slots) == (tickets[0], [slots[1]])
    assert queue.take(slots) == (tickets[2], [slots[1]])
    assert len(queue) == 1
    assert queue.take_all() == [tickets[3]]
    assert queue.take(slots) is None


def test_the_queue_gives_out_the_cancelled_ones() -> None:
    queue, tickets = Queue(), [ticket() for _ in range(4)]
    for one in tickets:
        queue.put(one)
    tickets[1].generation.cancel()
    tickets[3].generation.cancel()
    assert queue.take_cancelled() == [tickets[1], tickets[3]]
    assert queue.take_cancelled() == []
    assert not queue._cancelled  # nothing is searched until one more is cancelled
    assert queue.take_all() == [tickets[0], tickets[2]]
