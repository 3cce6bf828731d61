"""The search for the best drafter: splits, rounds, the planted winner, what is held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.planted import PLANTED, few_candidates, noise, planted, trace
from ngramspec.costs import PROFILES
from ngramspec.errors import InputError
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.tally import ReplayTally, total_of
from ngramspec.lab.tune.candidates import DEFAULT, LLAMA_SERVER, Candidate, grid
from ngramspec.lab.tune.memo import Memo
from ngramspec.lab.tune.search import FINALISTS, Tuning, count_replays, plan_rounds, tune
from ngramspec.lab.tune.split import LEAST, Split, split

H100 = PROFILES["h100-8b"]


def tuned(parts: Split, **more: Callable[[], object]) -> Tuning:
    return tune(parts, few_candidates(), H100, **more)  # type: ignore[arg-type]


def after(calls: int) -> Callable[[], bool]:
    """Return a function that is True from that call on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def names(found: Tuning) -> list[str]:
    return [result.candidate.name for result in found.results]


def test_the_planted_drafter_and_size_win() -> None:
    found = tuned(split([trace(*planted(36))]))
    assert found.finished
    assert found.best.candidate.name == PLANTED
    assert found.best_for_llama_server is found.best
    assert (found.gain(found.best) or 0) > 1.03
    assert (found.held_out_gain(found.best) or 0) > 1.03
    assert [result.held_out is not None for result in found.finalists] == [True] * FINALISTS


def test_held_out_requests_have_no_say_in_the_ranking() -> None:
    one = tuned(split([trace(*planted(24), *planted(12, 1))]))
    other = tuned(split([trace(*planted(24), *noise(12))]))
    assert names(one) == names(other)
    assert [r.tally.steps for r in one.results] == [r.tally.steps for r in other.results]
    assert other.results[0].candidate.name == PLANTED
    assert other.best is other.default  # what was chosen gains nothing where it was not chosen
    held_out = other.best.held_out
    assert held_out is not None
    assert held_out.requests == 12
    assert other.speedup(held_out) == pytest.approx(1, abs=0.05)
    assert other.best_for_llama_server is None


def test_held_out_drafters_know_the_requests_before() -> None:
    again = noise(24)
    found = tuned(split([trace(*again, *again[:12])]))
    held_out = found.default.held_out
    assert held_out is not None
    assert found.default.tally.mean_accepted_length < 1.1
    assert held_out.mean_accepted_length > 5


def test_the_default_unless_it_is_beaten_by_more_than_one_percent() -> None:
    found = tuned(split([trace(*noise(30))]))
    assert found.best is found.default
    assert found.best.candidate == DEFAULT
    assert found.best_for_llama_server is None


def test_too_few_requests_to_hold_some_out() -> None:
    found = tuned(split([trace(*planted(3 * LEAST - 1))]))
    assert found.num_held_out == 0
    assert found.finished
    assert found.best.held_out is None
    assert found.best.candidate.name == PLANTED


def test_the_same_seed_finds_the_same() -> None:
    requests = (*planted(20), *noise(20))
    found = [tuned(split([trace(*requests)], seed)) for seed in (3, 3, 4)]
    steps = [[r.tally.draft_lengths for r in one.results] for one in found]
    assert names(found[0]) == names(found[1])
    assert steps[0] == steps[1]


def test_every_call_of_advance_was_announced() -> None:
    parts = split([trace(*planted(20)), trace(*noise(31), name="b")])
    calls = [0]

    def count() -> None:
        calls[0] += 1

    tuned(parts, advance=count)
    assert calls[0] == count_replays(len(few_candidates()), parts)


def test_a_search_that_is_stopped_says_the_best_so_far() -> None:
    parts = split([trace(*planted(60))])
    (many, requests), (_, more) = plan_rounds(len(few_candidates()), parts)[:2]
    for calls in (0, requests):  # not even the default and another one
        found = tuned(parts, stop=after(calls))
        assert (found.finished, list(found.results)) == (False, [])
    found = tuned(parts, stop=after(4 * requests))
    assert found.default in found.results
    assert found.rounds == []
    found = tuned(parts, stop=after(many * requests + more + 1))  # the default of round 2 is done
    assert found.rounds == [(many, requests)]
    assert {result.requests for result in found.results} == {requests}
    assert found.best.candidate.name == PLANTED
    found = tuned(parts, stop_search=after(many * requests + 2 * more + 1))
    assert found.results[0].requests == more > requests
    assert [result.held_out is not None for result in found.finalists] == [True] * FINALISTS
    assert {result.requests for result in found.finalists} == {requests, more}
    assert found.gain(found.finalists[-1]) is None
    assert found.best.held_out is not None
    assert not found.finished


def test_without_held_out_figures_of_both_nothing_is_compared_on_them() -> None:
    parts = split([trace(*planted(36))])
    search = count_replays(len(few_candidates()), parts) - FINALISTS * 36
    found = tuned(parts, stop=after(search + 40))  # only the default is judged
    assert found.default.held_out is not None
    assert found.held_out_gain(found.results[0]) is None
    assert found.best.candidate.name == PLANTED


def test_the_default_must_be_among_the_candidates() -> None:
    with pytest.raises(InputError, match="the default must be"):
        tune(split([trace(*noise(3))]), [], H100)


def test_a_split_keeps_the_order_and_loses_nothing() -> None:
    sets = [trace(*noise(n, n), name=str(n)) for n in (1, 2, 30)]
    parts = split(sets)
    for part, one in zip(parts.parts, sets, strict=True):
        assert (*part.chosen_on, *part.held_out) == one.requests
    assert [len(part.held_out) for part in parts.parts] == [0, 0, 10]
    whole = parts.sample(parts.num_chosen_on)
    assert [tuple(group) for group in whole] == [part.chosen_on for part in parts.parts]


def test_samples_grow_and_every_set_has_its_share() -> None:
    sets = [trace(*noise(n, n), name=str(n)) for n in (60, 120)]
    parts = split(sets)
    smaller: set[int] = set()
    for count in (7, 24, 60, 119):
        sample = parts.sample(count)
        taken = {id(request) for group in sample for request in group}
        assert len(taken) == count
        assert smaller <= taken
        smaller = taken
        for group, part in zip(sample, parts.parts, strict=False):
            order = [id(request) for request in part.chosen_on]
            places = [order.index(id(request)) for request in group]
            assert places == sorted(places)
    assert [len(group) for group in parts.sample(24)] == [8, 16]
    assert parts.order != split(sets, seed=1).order


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([3], [(339, 3)]),
        ([12], [(339, 12)]),
        ([120], [(339, 12), (113, 36), (38, 80)]),
        ([600], [(339, 12), (113, 36), (38, 108), (13, 324), (8, 400)]),
        ([60] * 6, [(339, 24), (113, 72), (38, 216), (13, 240)]),
    ],
)
def test_rounds_have_more_requests_and_fewer_candidates(
    sizes: list[int], expected: list[tuple[int, int]]
) -> None:
    (one,) = noise(1)
    sets = [Trace(str(number), (one,) * size) for number, size in enumerate(sizes)]
    assert plan_rounds(339, split(sets)) == expected


def test_candidates_can_be_opened_and_are_different() -> None:
    candidates = grid()
    assert candidates[0] == DEFAULT
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    for candidate in candidates:
        candidate.open(H100)
    for name in LLAMA_SERVER:
        assert sum(one.for_llama_server for one in candidates if one.spec == name) > 10


@pytest.mark.parametrize(
    ("spec", "params", "adaptive", "expected"),
    [
        ("ngram-mod", {}, False, True),
        ("ngram-mod", {}, True, False),
        ("ngram-mod", {"capacity": 1 << 20}, False, False),
        ("ngram-cache", {}, False, False),
        ("suffix", {}, False, False),
        ("ngram-map-k,ngram-mod", {"size_n": 8, "n_match": 12}, False, True),
        ("ngram-mod,ngram-cache", {}, False, False),
        ("ngram-simple", {"size_m": 8}, False, False),  # 12 are matched
        ("ngram-simple", {"size_n": 8, "size_m": 8}, False, True),
        ("ngram-map-k", {"min_hits": 2}, False, False),
        ("ngram-map-k4v", {"min_hits": 2}, False, True),
    ],
)
def test_what_llama_server_can_do(
    spec: str, params: dict[str, int], adaptive: bool, expected: bool
) -> None:
    assert Candidate(spec, params, adaptive).for_llama_server is expected


@pytest.mark.parametrize(
    ("name", "other"), [("__version__", "0.0.9"), ("confidence_weights", lambda: np.ones(9))]
)
def test_replays_of_other_drafters_are_not_taken_for_those_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, other: object
) -> None:
    def key() -> str:
        return Memo(tmp_path / "state").key(DEFAULT, H100, planted(2))

    known = key()
    assert key() == known
    monkeypatch.setattr(f"ngramspec.lab.tune.memo.{name}", other)
    assert key() != known


def test_tallies_add_up() -> None:
    one = ReplayTally(1, (2, 1), (3,), 5, 7, 11)
    other = dataclasses.replace(one, draft_lengths=(1, 0, 2), accepted_lengths=(1, 2), nbytes=None)
    assert total_of([one, other]) == ReplayTally(2, (3, 1, 2), (4, 2), 10, 14, 11)
    assert total_of([other]) == other
