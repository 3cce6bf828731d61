"""Records of peers' replays."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.recordings import BENCHMARK_DATA, TRACES, load_trace, trace_names
from helpers.replays import request
from ngramspec.costs import PROFILES
from ngramspec.errors import FormatError
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.walk import ReplayTally
from peers import ORACLE, ORACLE_OF, PEERS
from peers.record import load_peers, read_tally, save_peers

TALLY = ReplayTally(1, (0, 0, 1, 1), (0, 0, 2), 5, 6, None)
TRACE = Trace("a", (request([1, 2], [3, 4]),))
OTHER = Trace("b", (request([1, 2], [3, 5]),))


def save(path: Path, trace: Trace = TRACE, cold: bool = False, **rows: ReplayTally) -> None:
    save_peers(path, [trace], {trace.name: rows}, PROFILES, cold=cold)


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    save(path, one=TALLY)
    assert load_peers(path, [TRACE, OTHER], cold=False) == ({"a": {"one": TALLY}}, ["b"])
    body = json.loads(path.read_text())
    row = body["sets"]["a"]["one"]
    assert row["mean_accepted_length"] == 3.0
    assert row["modelled_speedup"]["moe"] == pytest.approx(6 * 1.12 / (1.36 + 1.48), abs=1e-4)
    assert list(body["names"]) == [*PEERS, ORACLE]


def test_a_file_is_extended_and_changed_tokens_replace_a_set(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    longer = dataclasses.replace(TALLY, step_ns=9)
    save(path, one=TALLY)
    save(path, two=longer)
    save(path, OTHER, one=TALLY)
    peers, _ = load_peers(path, [TRACE, OTHER], cold=False)
    assert peers == {"a": {"one": TALLY, "two": longer}, "b": {"one": TALLY}}
    changed = Trace("a", OTHER.requests)
    assert load_peers(path, [changed], cold=False) == ({}, ["a"])
    save(path, changed, three=TALLY)
    assert load_peers(path, [changed], cold=False)[0] == {"a": {"three": TALLY}}


def test_replays_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    save(path, cold=True, one=TALLY)
    for call in (lambda: save(path, one=TALLY), lambda: load_peers(path, [TRACE], cold=False)):
        with pytest.raises(FormatError, match="with a fresh drafter each"):
            call()


@pytest.mark.parametrize(
    "change",
    [
        lambda body: "no JSON",
        lambda body: "[]",
        lambda body: {**body, "format": "other"},
        lambda body: {**body, "version": 2},
        lambda body: {**body, "tokens": {}},
        lambda body: {k: v for k, v in body.items() if k != "cold"},
        lambda body: {**body, "sets": {"a": {"one": {}}}},
    ],
)
def test_damaged_files(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    path = tmp_path / "peers.json"
    save(path, one=TALLY)
    body = change(json.loads(path.read_text()))
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    with pytest.raises(FormatError, match=str(path)):
        load_peers(path, [TRACE], cold=False)


def test_the_recorded_peers_are_of_the_recorded_sets() -> None:
    path = BENCHMARK_DATA / "peers.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    assert sorted(body["sets"]) == trace_names()
    for rows in body["sets"].values():
        assert set(rows) == {*PEERS, ORACLE}
        for row in rows.values():
            assert list(row["modelled_speedup"]) == list(PROFILES)
    small = [load_trace(TRACES / f"{name}.txt.xz") for name in
             ("structured.spider_sql", "doc_rewrite.booookscore_inc")]  # fmt: skip
    peers, others = load_peers(path, small, cold=False)
    assert not others
    for rows in peers.values():
        assert rows[ORACLE].acceptance == 1.0
        assert rows[ORACLE].accepted == rows[ORACLE_OF].accepted


def test_the_recorded_counts_give_the_recorded_figures() -> None:
    body = json.loads((BENCHMARK_DATA / "peers.json").read_text(encoding="utf-8"))
    upstream = json.loads((BENCHMARK_DATA / "llama_cpp_mat.json").read_text(encoding="utf-8"))
    for name, rows in body["sets"].items():
        for peer, row in rows.items():
            tally = read_tally(row)
            assert round(tally.mean_accepted_length, 4) == row["mean_accepted_length"]
            for profile, table in PROFILES.items():
                assert round(tally.speedup(table), 4) == row["modelled_speedup"][profile]
            if peer.startswith("llamacpp-"):
                length = upstream["sets"][name][peer.removeprefix("llamacpp-")]
                assert tally.mean_accepted_length == pytest.approx(length, abs=0.0005)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("requests", -1),
        ("draft_lengths", [1, "2"]),
        ("draft_lengths", 3),
        ("step_ns", 1.5),
        ("accepted_lengths", [1]),
        ("accepted_lengths", [0, 0, 0, 2]),
        ("nbytes", "few"),
        ("begin_ns", None),
    ],
)
def test_counts_that_cannot_be_are_refused(key: str, value: Any) -> None:
    good = {"requests": 1, "draft_lengths": [0, 0, 1, 1], "accepted_lengths": [0, 0, 2],
            "begin_ns": 1, "step_ns": 2, "nbytes": None}  # fmt: skip
    assert read_tally(good).drafted == 5
    with pytest.raises(FormatError, match="not the counts of a replay"):
        read_tally({**good, key: value})
    with pytest.raises(FormatError, match="not the counts of a replay"):
        read_tally({name: count for name, count in good.items() if name != key})
