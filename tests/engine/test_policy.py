"""A gate grows drafts that are right, shrinks wrong ones, rests where they fail, and wakes up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.machines import SETTINGS
from ngramspec import create_drafter
from ngramspec._native.policy.auto import FIRST_PAUSE, MAX_PAUSE, PROBE, START
from ngramspec.engine import AutoPolicy
from ngramspec.engine.policy import make_policy
from ngramspec.errors import InputError


def run(gate: AutoPolicy, right: list[float], slot: int = 0, source: str = "a") -> list[int]:
    """Return the limits of steps whose drafts are as long as allowed and right to a share."""
    limits = []
    for share in right:
        limits.append(gate.limit(slot, source))
        gate.record(slot, source, limits[-1], int(limits[-1] * share))
    return limits


def tired(most: int = 64) -> AutoPolicy:
    """Return a gate whose source "a" was not right lately; slot 0 begins anew."""
    gate = AutoPolicy(most, gate=True)
    for slot in range(1, 9):
        run(gate, [0.0], slot=slot)
    gate.begin(0)
    return gate


def rests(limits: list[int]) -> list[int]:
    """Return the lengths of the runs of zeros."""
    runs = "".join("0" if limit == 0 else "x" for limit in limits).split("x")
    return [len(one) for one in runs if one]


@pytest.mark.parametrize("slot", [-1, 1 << 16, 1 << 33, 2**61, 2**63 - 1])
def test_slots_that_no_drafter_has_are_refused(slot: int) -> None:
    gate = AutoPolicy(gate=True)
    gate.limit(3, "a")
    for call in (
        lambda: gate.limit(slot, "a"),
        lambda: gate.record(slot, "a", 1, 1),
        lambda: gate.begin(slot),
    ):
        with pytest.raises(InputError, match=r"slot must be (>= 0|in 0\.\.65535)"):
            call()
    assert gate.limit((1 << 16) - 1, "a") == 64


@pytest.mark.parametrize(
    ("name", "max_rollback", "fitting"),
    [
        ("auto", None, "auto"),
        ("auto", 0, "gate"),  # a rejected draft costs more than its pass there
        ("auto", 4, "gate"),
        ("gate", None, "gate"),
        ("fixed", 4, "fixed"),
    ],
)
def test_policies_by_name_suit_the_target(
    name: str, max_rollback: int | None, fitting: str
) -> None:
    policy = make_policy(name, 8, max_rollback=max_rollback)
    assert (policy.name, policy.max_draft, policy.weighs) == (fitting, 8, fitting == "auto")


def test_right_drafts_double_the_limit_up_to_the_longest() -> None:
    assert run(AutoPolicy(64, gate=True), [1.0] * 6) == [64] * 6
    gate = tired()
    assert run(gate, [1.0] * 5) == [8, 16, 32, 64, 64]
    assert run(tired(20), [1.0] * 4) == [8, 16, 20, 20]
    assert run(AutoPolicy(5, gate=True), [1.0] * 3) == [5, 5, 5]


def test_short_right_drafts_raise_the_limit_too() -> None:
    gate = tired()
    assert gate.limit(0, "a") == START
    gate.record(0, "a", 2, 2)  # the source had no more
    assert gate.limit(0, "a") == 2 * START


def test_a_wrong_draft_lowers_the_limit_to_what_was_right_and_a_little() -> None:
    gate = AutoPolicy(64, gate=True)
    run(gate, [1.0] * 4)
    gate.record(0, "a", 64, 40)
    assert gate.limit(0, "a") == 61
    gate.record(0, "a", 61, 60)
    assert gate.limit(0, "a") == 64  # never longer than max_draft
    gate.record(0, "a", 64, 0)
    assert gate.limit(0, "a") in (0, PROBE)


def test_drafts_that_are_never_right_are_rarer_and_rarer() -> None:
    limits = run(AutoPolicy(64, gate=True), [0.0] * 3000)
    assert limits[0] == 64
    assert rests(limits)[:6] == [FIRST_PAUSE * 2**i for i in range(6)]
    assert max(rests(limits)) == MAX_PAUSE
    assert set(limits[10:]) == {0, PROBE}
    late = limits[1000:]
    drafts = sum(limit > 0 for limit in late)
    assert drafts == pytest.approx(len(late) / (MAX_PAUSE + 1), abs=1)


def test_a_right_probe_wakes_a_source_up() -> None:
    gate = AutoPolicy(64, gate=True)
    run(gate, [0.0] * 600)
    while not (limit := gate.limit(0, "a")):
        pass
    gate.record(0, "a", limit, limit)
    assert run(gate, [1.0] * 4) == [6, 12, 24, 48]
    rest = rests(run(gate, [0.0] * 12))
    assert rest[0] == FIRST_PAUSE  # and it begins with short rests again


def test_the_probe_decides_whether_a_source_goes_on() -> None:
    for right, goes_on in ((3, True), (2, True), (1, False), (0, False)):
        gate = AutoPolicy(64, gate=True)
        run(gate, [0.0] * 2)
        while not (limit := gate.limit(0, "a")):
            pass
        gate.record(0, "a", limit, right)
        assert (limit, gate.limit(0, "a") > 0) == (PROBE, goes_on)


def test_a_rest_ends_where_the_source_has_nothing_to_say() -> None:
    gate = AutoPolicy(64, gate=True)
    limits = run(gate, [0.0] * 2)
    rest = 0
    while gate.limit(0, "a") == 0:
        rest += 1
    assert (limits, rest) == ([64, PROBE], FIRST_PAUSE)
    assert [gate.limit(0, "a") for _ in range(9)] == [PROBE] * 9  # no record, no rest


def test_mostly_right_drafts_never_rest() -> None:
    assert 0 not in run(AutoPolicy(64, gate=True), [0.75] * 200)
    assert 0 in run(AutoPolicy(64, gate=True), [0.4] * 20)


def test_slots_and_sources_are_told_apart() -> None:
    gate = AutoPolicy(64, gate=True)
    run(gate, [0.0] * 3)
    assert gate.limit(0, "a") == 0
    assert gate.limit(0, "b") == 64
    assert gate.limit(1, "a") == 64
    gate.record(1, "a", 64, 20)
    assert gate.limit(1, "a") == 31
    assert gate.limit(0, "a") == 0


def test_a_new_request_begins_with_what_the_source_did_lately() -> None:
    gate = AutoPolicy(64, gate=True)
    run(gate, [1.0] * 5)
    gate.begin(0)
    assert gate.limit(0, "a") == 64
    for slot in range(9):  # the source fails now and then
        run(gate, [0.0], slot=slot)
    gate.begin(0)
    assert gate.limit(0, "a") == START
    for slot in range(200):  # it fails everywhere
        run(gate, [0.0] * 10, slot=slot)
    gate.begin(0)
    assert gate.limit(0, "a") == PROBE
    gate.record(0, "a", PROBE, 0)
    assert rests([gate.limit(0, "a") for _ in range(60)]) == [FIRST_PAUSE * 4]
    gate.begin(1)
    assert gate.limit(1, "b") == 64


def test_begin_forgets_that_slot_only() -> None:
    gate = AutoPolicy(64, gate=True)
    run(gate, [0.0] * 3, slot=0)
    run(gate, [0.0] * 3, slot=1)
    gate.begin(0)
    assert (gate.limit(0, "a"), gate.limit(1, "a")) == (64, 0)


@pytest.mark.parametrize("drafted", [0, -1])
def test_empty_drafts_teach_nothing(drafted: int) -> None:
    gate = AutoPolicy(64, gate=True)
    gate.limit(0, "a")
    for _ in range(9):
        gate.record(0, "a", drafted, 0)
        gate.record(3, "never asked", 5, 0)
    assert gate.limit(0, "a") == 64


@given(
    most=st.integers(1, 70),
    shares=st.lists(st.sampled_from([0.0, 0.3, 0.7, 0.97, 1.0]), max_size=80),
)
@settings(SETTINGS, max_examples=10 * SETTINGS.max_examples)
def test_limits_stay_within_bounds(most: int, shares: list[float]) -> None:
    limits = run(AutoPolicy(most, gate=True), shares)
    assert all(0 <= limit <= most for limit in limits)
    assert not limits or limits[0] == most
    assert max(rests(limits), default=0) <= MAX_PAUSE


def test_a_fixed_length_is_fixed() -> None:
    policy = AutoPolicy(fixed=7)
    policy.begin(0)
    policy.record(0, "a", 7, 0)
    policy.observe(9, 0.1)
    assert [policy.limit(slot, "a") for slot in range(3)] == [7, 7, 7]


def test_long_drafts_are_for_policies_that_do_not_weigh() -> None:
    assert make_policy("auto", 1 << 20).max_draft == 1024
    assert make_policy("fixed", 4096).limit(0, "a") == 4096
    assert make_policy("gate", 1 << 20).max_draft == 65535
    with pytest.raises(InputError, match="both fixed and gate"):
        AutoPolicy(fixed=3, gate=True)
    with pytest.raises(InputError, match="a policy with gate is for engines"):
        create_drafter("suffix", policy=AutoPolicy(gate=True))
