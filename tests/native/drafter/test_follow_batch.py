"""follow_batch and find_slots: rows of a token table and the slots that know them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ngramspec import AutoPolicy, Drafter, create_drafter
from ngramspec.errors import InputError


def int32(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def table(*rows: list[int], width: int = 80) -> Any:
    array = np.zeros((len(rows), width), np.int32)
    for row, tokens in zip(array, rows, strict=True):
        row[: len(tokens)] = tokens
    return array


def drafter(**settings: Any) -> Drafter:
    return create_drafter("ngram-simple", slots=4, size_n=2, size_m=4, **settings)


def follow(d: Drafter, slots: Any, rows: Any, lengths: Any) -> list[int]:
    accepted = np.full(len(slots), -9, np.int32)
    d.follow_batch(slots, rows, lengths, accepted)
    return list(map(int, accepted))


def find(d: Drafter, slots: Any, rows: Any, lengths: Any, asked: Any) -> list[int]:
    answers = np.full(len(asked), -9, np.int32)
    d.find_slots(slots, rows, lengths, asked, answers)
    return list(map(int, answers))


def test_a_row_that_goes_on_is_accepted_as_far_as_the_draft_was_right() -> None:
    d = drafter()
    d.begin(2, [5, 6, 7, 8, 5])
    d.accept(2, [6], 0)
    assert d.propose(2, 4).tolist() == [7, 8, 5, 6]
    rows = table([5, 6, 7, 8, 5, 6, 7, 8, 1])
    assert follow(d, int32(2), rows, int32(9)) == [2]
    assert d.history(2).tolist() == rows[0, :9].tolist()
    assert d.stats()["ngram-simple"].num_accepted_tokens == 2
    assert follow(d, int32(2), rows, int32(9)) == [0]  # nothing new
    assert d.length(2) == 9


def test_the_last_new_token_is_the_targets_own() -> None:
    d = drafter()
    d.begin(0, [5, 6, 7, 8, 5, 6])
    assert d.propose(0, 2).tolist() == [7, 8]
    assert follow(d, int32(0), table([5, 6, 7, 8, 5, 6, 7, 8]), int32(8)) == [1]


@pytest.mark.parametrize(
    ("slot", "row", "length"),
    [
        (-1, [1, 2, 3, 4], 4),  # no slot
        (1, [1, 2, 3, 4], 4),  # not begun
        (0, [1, 2, 9, 4], 4),  # another newest token
        (0, [1, 2], 2),  # shorter
        (0, [1, 2, 3, -1], 4),  # a placeholder
    ],
)
def test_other_rows_leave_their_slot_alone(slot: int, row: list[int], length: int) -> None:
    d = drafter()
    d.begin(0, [1, 2, 3])
    assert follow(d, int32(slot), table(row), int32(length)) == [-1]
    assert d.history(0).tolist() == [1, 2, 3]


def test_an_older_token_that_differs_is_found_sooner_or_later() -> None:
    d = drafter()
    text = list(range(1, 61))
    d.begin(0, text)
    other = [99, *text[1:]]  # far from the newest tokens
    answers = []
    for _ in range(16):
        answers += follow(d, int32(0), table(other), int32(len(other)))
        other.append(7)
    assert 0 in answers  # it is not the newest tokens that differ
    assert answers[-1] == -1


def test_rows_of_a_batch_are_followed_by_their_slots() -> None:
    d = drafter()
    texts = [[1, 2, 3, 9], [4, 5, 6, 9], [7, 8, 9, 9]]
    for slot, text in zip((3, 0, 1), texts, strict=True):
        d.begin(slot, text[:3])
    assert follow(d, int32(3, 0, 1), table(*texts), int32(4, 4, 4)) == [0, 0, 0]
    assert [d.history(slot).tolist() for slot in (3, 0, 1)] == texts


def test_a_policy_learns_what_accept_would_have_taught_it() -> None:
    taught = []
    for batch in (False, True):
        d = create_drafter("suffix", policy=AutoPolicy(8), share=False)
        text = [1, 2, 3, 4, 5, 6, 7, 8] * 4
        d.begin(0, text)
        sent = []
        for _ in range(8):
            draft = d.propose(0, 4).tolist()
            sent.append(draft)
            new = [*draft, text[len(text) % 8 + len(draft)]] if len(draft) < 4 else [*draft, 3]
            text += new
            if batch:
                assert follow(d, int32(0), table(text, width=200), int32(len(text))) == [len(draft)]
            else:
                d.accept(0, new, len(draft))
        d.propose(0, 4)  # what was accepted before it was a pass
        assert d.policy is not None
        taught.append((sent, d.policy.rate))
    assert taught[0] == taught[1]


def test_the_longest_history_that_a_row_begins_with_is_found() -> None:
    d = drafter()
    for slot, text in enumerate([[1, 2], [1, 2, 3], [1, 2, 3, 4, 5], [7]]):
        d.begin(slot, text)
    d.end(1)  # its text stays
    rows, lengths = table([1, 2, 3, 4], [1, 2, 9], [8], [7, 7]), int32(4, 3, 1, 2)
    assert find(d, int32(0, 1, 2, 3), rows, lengths, int32(0, 1, 2, 3)) == [1, 0, -1, 3]
    assert find(d, int32(0, 2, 3), rows, lengths, int32(0, 1)) == [0, -1]  # each slot once
    assert find(d, int32(), rows, lengths, int32(3)) == [-1]


def test_texts_that_differ_long_ago_are_told_apart() -> None:
    d = drafter()
    same = list(range(100, 150))
    d.begin(0, [1] * 20 + same)
    d.begin(1, [2] * 20 + same)
    rows = table([2] * 20 + [*same, 5])
    assert find(d, int32(0, 1), rows, int32(71), int32(0)) == [1]


def test_empty_histories_are_not_found() -> None:
    assert find(drafter(), int32(0), table([1]), int32(1), int32(0)) == [-1]


ROWS = table([1, 2, 3], [4, 5, 6])


@pytest.mark.parametrize(
    "arguments",
    [
        ([0], ROWS, int32(3), int32(0)),
        (int32(0), ROWS.astype(np.int64), int32(3), int32(0)),
        (int32(0), ROWS[:, ::2], int32(3), int32(0)),
        (int32(0, 1), ROWS, int32(3), int32(0, 0)),
        (int32(0, 1, 2), ROWS, int32(3, 3, 3), int32(0, 0, 0)),
        (int32(4), ROWS, int32(3), int32(0)),
        (int32(-2), ROWS, int32(3), int32(0)),
        (int32(0), ROWS, int32(81), int32(0)),
        (int32(0), ROWS, int32(-1), int32(0)),
        (int32(0), ROWS[:, :0], int32(0), int32(0)),
    ],
)
def test_follow_batch_refuses_what_it_cannot_read(arguments: Any) -> None:
    d = drafter()
    d.begin(0, [1, 2])
    with pytest.raises(InputError):
        d.follow_batch(*arguments)
    assert d.history(0).tolist() == [1, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        ([0], ROWS, int32(3, 3), int32(0), int32(0)),
        (int32(0), ROWS, int32(3, 3), int32(0, 1), int32(0)),
        (int32(0), ROWS, int32(3, 3), int32(2), int32(0)),
        (int32(0), ROWS, int32(3), int32(1), int32(0)),
        (int32(0), ROWS, int32(3, 3), int32(-1), int32(0)),
        (int32(4), ROWS, int32(3, 3), int32(0), int32(0)),
        (int32(-1), ROWS, int32(3, 3), int32(0), int32(0)),
        (int32(0), ROWS, int32(99, 3), int32(0), int32(0)),
    ],
)
def test_find_slots_refuses_what_it_cannot_read(arguments: Any) -> None:
    with pytest.raises(InputError):
        drafter().find_slots(*arguments)


ONE = {"slots": int32(0), "token_ids": table([1, 2, 3]), "lengths": int32(3)}
TWO = {
    "slots": int32(0, 1),
    "token_ids": table([1, 2, 3], [4, 5, 6]),
    "lengths": int32(3, 3),
    "rows": int32(1, 0),
}


@pytest.mark.parametrize(
    ("method", "read", "written", "shared"),
    [
        *(("follow_batch", ONE, "accepted", name) for name in ONE),
        *(("find_slots", TWO, "matches", name) for name in TWO),
    ],
)
def test_a_call_for_a_batch_writes_into_nothing_that_it_reads(
    method: str, read: dict[str, Any], written: str, shared: str
) -> None:
    d = drafter()
    d.begin(0, [1, 2])
    arrays = {name: values.copy() for name, values in read.items()}
    output = {written: arrays[shared].reshape(-1)[: arrays["slots"].size]}
    with pytest.raises(InputError, match=f"{written} must share no memory with slots"):
        getattr(d, method)(**arrays, **output)
    assert d.history(0).tolist() == [1, 2]
    for name, values in arrays.items():
        assert (values == read[name]).all()
