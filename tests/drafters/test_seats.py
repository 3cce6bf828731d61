"""Seats: slots for as many requests as there are."""

from __future__ import annotations

import pytest

from ngramspec import Drafter, create_drafter
from ngramspec.drafters.seats import Seats
from ngramspec.errors import InputError, StateError


def make(slots: int) -> Drafter:
    return create_drafter("ngram-simple", slots=slots)


def test_a_drafter_more_is_made_when_all_slots_are_taken() -> None:
    seats = Seats(make, 2)
    taken = [seats.take() for _ in range(9)]
    assert [drafter.slots for drafter in seats.drafters] == [2, 2, 4, 8]
    assert len(set(taken)) == 9
    assert [seat.slot for seat in taken] == [0, 1, 0, 1, 0, 1, 2, 3, 0]


def test_drafters_do_not_grow_beyond_a_bound() -> None:
    seats = Seats(make, 1024)
    for _ in range(2049):
        seats.take()
    assert [drafter.slots for drafter in seats.drafters] == [1024] * 3


def test_the_seat_given_back_last_is_taken_first() -> None:
    seats = Seats(make, 3)
    first, second = seats.take(), seats.take()
    first.drafter.begin(first.slot, [1])
    seats.leave(second)
    seats.give_back(first)
    assert seats.take() == first
    assert seats.take() == second
    with pytest.raises(StateError):
        seats.give_back(first)  # no request is active there any more


@pytest.mark.parametrize("first", [0, 1025])
def test_bounds_are_checked(first: int) -> None:
    with pytest.raises(InputError, match=r"first must be in 1..1024"):
        Seats(make, first)
