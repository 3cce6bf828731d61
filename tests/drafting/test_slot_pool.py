"""SlotPool: slots for as many requests as there are."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec import Drafter, create_drafter
from ngramspec.drafting.slot_pool import SlotPool
from ngramspec.errors import InputError, StateError


def make(slots: int) -> Drafter:
    return create_drafter("ngram-simple", slots=slots)


def test_a_drafter_more_is_made_when_all_slots_are_taken() -> None:
    slots = SlotPool(make, 2)
    taken = [slots.take() for _ in range(9)]
    assert [drafter.slots for drafter in slots.drafters] == [2, 2, 4, 8]
    assert len(set(taken)) == 9
    assert [lease.slot for lease in taken] == [0, 1, 0, 1, 0, 1, 2, 3, 0]


def test_drafters_do_not_grow_beyond_a_bound() -> None:
    slots = SlotPool(make, 1024)
    for _ in range(2049):
        slots.take()
    assert [drafter.slots for drafter in slots.drafters] == [1024] * 3


def test_the_seat_given_back_last_is_taken_first() -> None:
    slots = SlotPool(make, 3)
    first, second = slots.take(), slots.take()
    first.drafter.begin(first.slot, [1])
    slots.leave(second)
    slots.give_back(first)
    assert slots.take() == first
    assert slots.take() == second
    with pytest.raises(StateError):
        slots.give_back(first)  # no request is active there any more


def test_the_memory_of_a_long_text_goes_with_its_request() -> None:
    slots = SlotPool(make, 2)
    drafter, slot = lease = slots.take()
    new = drafter.nbytes
    drafter.begin(slot, np.arange(4096, dtype=np.int32))
    slots.give_back(lease)
    assert drafter.length(slot) == 4096
    assert slots.take() == lease
    drafter.begin(slot, np.arange(4096, dtype=np.int32))
    drafter.accept(slot, [1], 0)
    slots.give_back(lease)
    assert drafter.length(slot) == 0
    assert drafter.nbytes == new


@pytest.mark.parametrize("first", [0, 1025])
def test_bounds_are_checked(first: int) -> None:
    with pytest.raises(InputError, match=r"first must be in 1..1024"):
        SlotPool(make, first)
