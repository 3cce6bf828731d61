"""Schedule: who gets which slot, which tokens go into a decode, and how room is shared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.machines import SETTINGS
from ngramspec._native.engine.decode import Batch, Sampler
from ngramspec._native.engine.plan import Plan, share
from ngramspec._native.engine.slot import Slot
from ngramspec.engine import EngineStats, Request, Speculation
from ngramspec.engine.generation import Generation
from ngramspec.engine.queue import Queue, Ticket
from ngramspec.engine.sequences import best_donor, choose_slot
from ngramspec.errors import CapacityError, InputError
from reference import schedule as reference
from reference.schedule import Claim

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
    new_slot = Slot(number, 400, 90)
    new_slot.used, new_slot.namespace = used, namespace
    if past is not None:
        new_slot.tokens[: len(past)] = past
        new_slot.length = new_slot.num_past = len(past)
        return new_slot
    new_slot.start(Generation(request(1), 0), Sampler())
    new_slot.length, new_slot.num_past = 100 + pending, 100
    new_slot.tokens[: new_slot.length] = range(new_slot.length)
    new_slot.num_prompt, new_slot.decoding = new_slot.length - decoding, decoding
    new_slot.draft = int32([1] * draft)
    return new_slot


def planned(slots: list[Slot], capacity: int) -> Plan:
    """Return a plan that is made."""
    plan = Plan(slots, capacity)
    plan.make()
    return plan


def counts(plan: Plan) -> dict[int, int]:
    return {one.id: one.count for one in plan.members}


@given(claims=CLAIMS, room=st.integers(0, 300))
@MANY
def test_sharing_is_fair_and_uses_the_room(claims: list[int], room: int) -> None:
    shares = share(claims, room)
    assert sum(shares) == min(sum(claims), room)
    assert all(0 <= got <= want for got, want in zip(shares, claims, strict=True))
    cut = [got for got, want in zip(shares, claims, strict=True) if got < want]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(shares) <= max(cut) + 1  # nobody has more than those that were cut


def test_sharing_meets_small_claims() -> None:
    assert share([8, 2, 8], 12) == [5, 2, 5]
    assert share([], 5) == share([], 0) == []
    assert share([3, 4], 7) == [3, 4]
    assert share([5, 5, 5], 0) == [0, 0, 0]
    assert share([9, 9], 1) in ([0, 1], [1, 0])


@given(claims=CLAIMS, room=st.integers(0, 300))
@MANY
def test_sharing_equals_handing_out_one_by_one(claims: list[int], room: int) -> None:
    assert share(claims, room) == reference.share(claims, room)


def test_decoding_slots_come_first_and_prompts_get_the_rest() -> None:
    slots = [slot(0), slot(1, 50, decoding=False), slot(2), slot(3, 9, decoding=False, used=-1)]
    plan = planned(slots, 32)
    assert [(one.id, one.count, ends(one)) for one in plan.members] == [
        (0, 1, True),
        (2, 1, True),
        (3, 9, True),  # it came before slot 1
        (1, 21, False),
    ]
    assert counts(planned(slots, 11)) == {0: 1, 2: 1, 3: 9}
    assert counts(planned(slots[:3:2], 2)) == {0: 1, 2: 1}
    assert Plan([], 8).make() == 0
    assert planned([slot(0, past=[1])], 8).members == []


@given(
    needs=st.lists(
        st.tuples(st.integers(1, 90), st.booleans(), st.integers(0, 70)), min_size=1, max_size=8
    ),
    extra=st.integers(0, 80),
)
@MANY
def test_plans_equal_the_slow_twin_and_fit(needs: list[tuple[int, bool, int]], extra: int) -> None:
    claims = [Claim(i, n, decoding, used=-i) for i, (n, decoding, _) in enumerate(needs)]
    slots = [slot(c.slot, c.pending, decoding=c.decoding, used=c.used) for c in claims]
    capacity = len(slots) + extra
    plan = planned(slots, capacity)
    work = reference.plan(claims, capacity)
    assert [(one.id, one.count) for one in plan.members] == [(c.slot, c.count) for c in work]
    for claim in work:
        if claim.decoding and claim.count == claim.pending:
            claim.draft = needs[claim.slot][2]
            slots[claim.slot].draft = int32([1] * claim.draft)
    batch = Batch(capacity)
    plan.fill(batch)
    fitted = [(c.slot, c.count, c.draft) for c in reference.fit(work, capacity)]
    assert [(one.id, one.count, one.draft.size) for one in plan.members] == fitted
    check_batch(batch, slots)


def ends(one: Slot) -> bool:
    """Return whether all that the target has not seen is in the decode, so that a token follows."""
    return one.count == one.length - one.num_past


def check_batch(batch: Batch, slots: list[Slot]) -> None:
    """The batch holds what the plan says by slot, and rows where a token is to be chosen."""
    rows = [list(row) for row in zip(*(part.tolist() for part in batch.arrays()), strict=True)]
    expected, outputs = [], 0
    for one in slots:
        whole = ends(one)
        assert one.first_row == (outputs if whole else -1)
        for at in range(100, 100 + one.count):
            expected.append([at, at, one.id, whole and at == 99 + one.count])
        expected += [[1, one.length + i, one.id, True] for i in range(one.draft.size)]
        outputs += whole * (1 + one.draft.size)
    assert rows == expected
    assert batch.num_outputs == outputs


def test_a_long_re_read_does_not_hold_up_other_slots() -> None:
    slots = [slot(0), slot(1), slot(2, 300)]
    assert counts(planned(slots, 64)) == {0: 1, 1: 1, 2: 62}
    assert counts(planned(slots[::-1], 64)) == {0: 1, 1: 1, 2: 62}
    assert counts(planned([slot(0, 299), slot(1, 299), slot(2)], 65)) == {0: 32, 1: 32, 2: 1}


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
    slots = [slot(i) for i in range(rows)]
    slots += [slot(99, prompts, decoding=False)] * (prompts > 0)
    plan = planned(slots, capacity)
    slots[0].draft = int32([1] * 90)
    plan.fill(Batch(capacity))
    assert (slots[0].draft.size, plan.num_draft_tokens) == (room, room)


def test_the_latest_prompt_is_cut_first() -> None:
    slots = [slot(0), *(slot(i, 8, decoding=False, used=i) for i in (1, 2, 3))]
    plan = planned(slots, 25)
    slots[0].draft = int32([1] * 10)
    plan.fill(Batch(25))
    assert counts(plan) == {0: 1, 1: 8, 2: 8, 3: 2}  # three quarters of the batch are theirs
    assert slots[0].draft.size == 6
    assert [ends(one) for one in plan.members] == [True, True, True, False]


def test_a_decode_moves_the_slots_on() -> None:
    slots = [slot(0), slot(1, 8, decoding=False)]
    plan = planned(slots, 32)
    slots[0].draft = int32([1, 2, 3])
    plan.fill(Batch(32))
    stats = EngineStats()
    assert plan.advance(stats, 0.5) == 8
    assert (stats.num_batch_tokens, stats.num_busy_slots, stats.prompt_seconds) == (12, 2, 0.5)
    assert [(one.num_before, one.num_past) for one in slots] == [(100, 104), (100, 108)]
    plan.make()
    assert (slots[0].draft.size, slots[0].first_row) == (0, -1)  # drafts are of one step


def test_a_plan_knows_when_somebody_must_look_after_the_slots() -> None:
    busy, idle = slot(0), slot(1, past=[])
    assert not Plan([busy], 4).needs_schedule(True)
    assert Plan([busy, idle], 4).needs_schedule(True)
    assert not Plan([busy, idle], 4).needs_schedule(False)
    busy.deadline, idle.deadline = 1e18, 1.0
    assert not Plan([busy, idle], 4).needs_schedule(False)
    busy.deadline = 1e-9
    assert Plan([busy, idle], 4).needs_schedule(False)


def test_a_plan_needs_room_for_all_slots() -> None:
    for slots, capacity in (([slot(0), slot(1)], 1), ([], 0)):
        with pytest.raises(InputError, match="capacity must be at least"):
            Plan(slots, capacity)
    plan = planned([slot(0)], 8)
    plan.members[0].draft = int32([1] * 7)
    small = Batch(4)
    with pytest.raises(CapacityError, match="too small"):
        plan.fill(small)
    assert len(small) == 0


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


def test_a_slot_beside_the_running_ones_is_taken_where_that_matters() -> None:
    prompt = request(7, 8, 9)
    idle = [slot(i, past=[], used=i) for i in (0, 2, 4)]
    assert choose_slot(idle, prompt)[0].id == 0
    assert choose_slot(idle, prompt, [3])[0].id == 2
    assert choose_slot(idle, prompt, [1, 3])[0].id == 2  # it joins two rows
    assert choose_slot(idle, prompt, [1, 5])[0].id == 0  # one more row is none the worse
    idle[2].tokens[:3], idle[2].num_past = [7, 8, 9], 3
    assert choose_slot(idle, prompt, [1]) == (idle[2], 3)


def test_a_donor_must_hold_enough_of_the_prompt() -> None:
    text = list(range(1, 100))
    slots = [slot(0, past=[]), slot(1, past=text[:32]), slot(2, past=text[:50])]
    chosen = slots[0]
    assert best_donor(slots, chosen, request(*text), 33) is slots[2]
    assert best_donor(slots[:2], chosen, request(*text), 33) is None
    assert best_donor(slots[:2], chosen, request(*text), 32) is slots[1]
    assert best_donor(slots, chosen, request(*text), 51) is None
    assert best_donor(slots, slots[2], request(*text), 33) is None
    apart = request(*text, speculation=Speculation(namespace="other"))
    assert best_donor(slots, chosen, apart, 1) is None
    assert best_donor(slots, chosen, request(*text, cache_prompt=False), 1) is None


def ticket(**fields: Any) -> Ticket:
    waiting: Any = Ticket(Generation(request(1, **fields), 0), None, (), None)  # type: ignore[arg-type]
    return waiting


def test_the_queue_serves_in_order_but_does_not_wait_for_a_busy_slot() -> None:
    queue, slots = Queue(), [slot(i) for i in range(3)]
    tickets = [ticket(slot=1), ticket(), ticket(slot=1), ticket(slot=2)]
    for one in tickets:
        queue.put(one)
    assert queue.next([]) is None
    for idle, following, able in (
        ([slots[0], slots[2]], tickets[1], [slots[0], slots[2]]),
        (slots, tickets[0], [slots[1]]),
        (slots, tickets[2], [slots[1]]),
    ):
        assert queue.next(idle) == queue.next(idle) == (following, able)  # until it is taken
        queue.take(following)
        queue.take(following)  # no harm: `abandon` may have emptied the queue meanwhile
        assert queue.next([slots[0]]) is None
    assert len(queue) == 1
    assert queue.take_all() == [tickets[3]]
    assert queue.next(slots) is None


def test_the_queue_gives_out_the_cancelled_ones() -> None:
    queue, tickets = Queue(), [ticket() for _ in range(4)]
    for one in tickets:
        queue.put(one)
    tickets[1].generation.cancel()
    tickets[3].generation.cancel()
    assert queue.take_cancelled() == [tickets[1], tickets[3]]
    assert queue.take_cancelled() == []
    assert not queue.cancelled  # nothing is searched until one more is cancelled
    assert queue.take_all() == [tickets[0], tickets[2]]
