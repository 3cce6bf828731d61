"""Namespaces side by side in a batch: what they share, what each costs, and what fails for one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.vllm_calls import CALLS, batch_of
from helpers.vllm_engine import config
from helpers.vllm_requests import SAID, Requests, of, texts
from ngramspec import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.errors import VocabMismatchError
from ngramspec.files.cache_file import Origin
from ngramspec.files.pool_file import PoolShape, create_pool
from ngramspec.files.suffix_file import write_suffix_index
from ngramspec.hosts.rows import Rows
from ngramspec.hosts.vllm import suffix
from ngramspec.hosts.vllm.request_options import RequestOptions
from ngramspec.hosts.vllm.settings import read_settings
from ngramspec.hosts.vllm.suffix import BatchProposer, Namespaces


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTER", "POLICY", "STATIC", "POOL", "LOG_SECONDS", "VLLM"):
        monkeypatch.delenv(f"NGRAMSPEC_{name}", raising=False)


def test_files_are_opened_once(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "said.ngx", tmp_path / "tokenizer.json"
    write_suffix_index(path, np.array([*SAID, -1], np.int32), Origin())
    tokenizer.write_text('{"model": {"vocab": {"a": 0}}}')
    options = {"static": str(path), "tokenizer": str(tokenizer), "any_tokenizer": True}
    proposer = BatchProposer(config(drafter="suffix", policy="fixed", **options))
    for file in (path, tokenizer):
        file.unlink()
    run = Requests(proposer, texts("r", "a"), of("a"))
    for _ in range(2):
        drafts = run.step("r", "a")
    assert drafts == {"r": SAID[2:6], "a": SAID[2:6]}


@pytest.mark.parametrize("role", ["static", "pool"])
def test_a_file_of_another_tokenizer_names_both_models(tmp_path: Path, role: str) -> None:
    path, tokenizer = tmp_path / "said", tmp_path / "small" / "tokenizer.json"
    tokenizer.parent.mkdir()
    tokenizer.write_text('{"model": {"vocab": {"a": 0}}}')
    origin = Origin(b"another-tokeniz.", 100_000, {"tokenizer": "large.gguf"})
    if role == "static":
        write_suffix_index(path, np.array([*SAID, -1], np.int32), origin)
    else:
        create_pool(path, PoolShape(4, 1024), origin)
    drafter = "suffix" if role == "static" else "ngram-mod"
    message = r"another tokenizer, of large\.gguf: .*; the target is small/tokenizer\.json"
    with pytest.raises(VocabMismatchError, match=message):
        BatchProposer(config(drafter=drafter, tokenizer=str(tokenizer), **{role: str(path)}))


def test_what_a_namespace_costs_ends_with_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "IDLE_STEPS", 5)
    proposer = BatchProposer(config(drafter="suffix", policy="fixed"))
    run = Requests(proposer, texts("r", "a", "again"), {**of("a"), "again": of("a")["a"]})
    run.step("r", "a")
    own = run.groups["a"].rows
    followed: list[int] = []
    follow = own.follow
    monkeypatch.setattr(own, "follow", lambda *args: (followed.append(1), follow(*args))[1])
    for _ in range(3):
        run.step("r", "a")
    assert len(followed) == 3
    run.step("r")  # its request has ended
    assert len(followed) == 4
    for _ in range(4):
        run.step("r")
    assert len(followed) == 4
    assert list(run.groups) == [""]
    assert proposer.namespaces.stats()["suffix"].begin_calls == 2
    # What was said is remembered: the namespace has its pool again.
    run.step("r", "again")
    assert run.step("r", "again")["again"] == SAID[2:4]  # as far as the first one said it
    assert proposer.namespaces.stats()["suffix"].begin_calls == 3


def test_a_namespace_is_shown_its_part_of_the_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = BatchProposer(config(drafter="ngram-simple", policy="fixed", size_n=2))
    order = ("a1", "b1", "r", "a2", "c")
    by_name = {name: [10 * i + k for k in range(5)] * 20 for i, name in enumerate(order)}
    asks = {name: RequestOptions(namespace=name[0]) for name in order if name != "r"}
    run = Requests(proposer, by_name, asks)
    run.step(*order)
    shown: dict[str, int] = {}

    def watch(name: str, follow: Any) -> Any:
        def watched(rows: Rows) -> Any:
            shown[name] = len(rows.lengths)
            return follow(rows)

        return watched

    for name, group in run.groups.items():
        monkeypatch.setattr(group.rows, "follow", watch(name, group.rows.follow))
    drafts = run.step(*order)
    assert drafts == {name: text[12:16] for name, text in by_name.items()}
    assert shown == {"a": 4, "b": 1, "": 1, "c": 1}
    drafts = run.step("c", "r")  # requests of a and b have ended
    assert drafts == {name: by_name[name][13:17] for name in ("c", "r")}
    assert shown == {"a": 0, "b": 0, "": 1, "c": 1}
    assert sorted(run.proposer.namespaces.running()) == ["", "c"]


def test_what_namespaces_beyond_the_limit_said_is_forgotten() -> None:
    proposer = BatchProposer(config(drafter="suffix", policy="fixed", namespaces=1))
    run = Requests(proposer, texts("a", "b", "again"), {**of("a", "b"), "again": of("a")["a"]})
    for _ in range(8):
        run.step("a")
    run.step("b")
    assert "a" not in run.groups
    run.step("again")
    assert run.step("again") == {"again": []}


def test_an_error_of_a_namespace_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = BatchProposer(config(drafter="suffix", policy="fixed"))
    names = ("r", "a", "b", "later")
    run = Requests(proposer, texts(*names), {**of("a", "b"), "later": of("a")["a"]})
    for _ in range(12):
        run.step("r", "b")
    make = suffix.make_drafter

    def fail(*args: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(suffix, "make_drafter", fail)
    with caplog.at_level(logging.ERROR, "vllm.ngramspec"):
        for _ in range(3):
            assert run.step("r", "a", "b")["a"] == []
    assert [record.getMessage() for record in caplog.records] == [
        "ngramspec failed: no drafts for namespace 'a' until its requests of now have ended"
    ]
    assert "none left" in caplog.text
    monkeypatch.setattr(suffix, "make_drafter", make)
    run.step("a", "later", "b", "r")
    assert sorted(run.groups) == ["", "b"]  # `a` itself is still there
    run.step("later", "b", "r")
    assert sorted(run.groups) == ["", "a", "b"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("call", ["follow", "propose"])
def test_a_draft_that_fails_ends_those_of_its_namespace(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = BatchProposer(config(drafter="ngram-simple", policy="fixed", size_n=2))
    loop = [1, 2, 3, 4, 5] * 20
    run = Requests(proposer, dict.fromkeys(("r", "s", "a", "b"), loop), of("a", "b"))
    run.step("r", "a", "b")
    for name in ("a", ""):
        monkeypatch.setattr(run.groups[name], call, lambda *_, **__: 1 / 0)
    with caplog.at_level(logging.ERROR, "vllm.ngramspec"):
        for _ in range(3):
            drafts = run.step("r", "a", "b")
            assert {name: len(draft) for name, draft in drafts.items()} == {"r": 0, "a": 0, "b": 4}
    assert len(caplog.records) == 2
    assert len(run.step("b", "s")["s"]) == 4  # another request of ""
    assert proposer.namespaces.stats()["ngram-simple"].begin_calls == 4


def test_namespaces_that_a_client_makes_up_end_no_drafts_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_up = [f"n{i}" for i in range(3 * suffix.MOST_LOGGED)]
    loop = [1, 2, 3, 4, 5] * 20
    proposer = BatchProposer(config(drafter="ngram-simple", policy="fixed", size_n=2))
    run = Requests(proposer, dict.fromkeys(("r", "a", *made_up), loop), of("a", *made_up))
    run.step("r", "a")
    make = suffix.make_drafter
    monkeypatch.setattr(suffix, "make_drafter", lambda *_: 1 / 0)
    for name in made_up:
        drafts = run.step("r", "a", name)
        assert {one: len(draft) for one, draft in drafts.items()} == {"r": 4, "a": 4, name: 0}
    monkeypatch.setattr(suffix, "make_drafter", make)
    assert len(run.step("r", "a", made_up[0])[made_up[0]]) == 4  # it has not failed for ever


def test_failures_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    spaces = Namespaces(read_settings(config(drafter="suffix")), lambda: now)
    with caplog.at_level(logging.ERROR, "vllm.ngramspec"):
        for i in range(suffix.MOST_LOGGED + 5):
            spaces.fail(f"n{i}", ValueError("odd"), [])
        assert len(caplog.records) == suffix.MOST_LOGGED
        now = suffix.LOG_SECONDS
        spaces.fail("late", ValueError("odd"), [])
    assert [one.getMessage() for one in caplog.records[suffix.MOST_LOGGED :]] == [
        "ngramspec failed 5 times more, which was not logged",
        "ngramspec failed: no drafts for namespace 'late' until its requests of now have ended",
    ]


def test_a_failure_of_no_namespace_ends_all_drafts(caplog: pytest.LogCaptureFixture) -> None:
    proposer = BatchProposer(config(drafter="suffix", policy="fixed"))
    batch = batch_of(CALLS[0])
    del batch.req_ids  # as of a vLLM that has changed
    with caplog.at_level(logging.ERROR, "vllm.ngramspec"):
        for _ in range(3):
            assert not any(proposer.propose(4, batch, CALLS[0]["sampled"]))
    assert [one.getMessage() for one in caplog.records] == [
        "ngramspec failed and drafts nothing from now on"
    ]


# A pass costs the same up to 4 tokens, and 3 times that more for each further one.
BOARD = CostTable(((1, 1.0), (4, 1.0), (5, 4.0), (6, 7.0)))


def judged(monkeypatch: pytest.MonkeyPatch) -> BatchProposer:
    """A proposer whose policy keeps these costs: it learns no times."""
    monkeypatch.setattr(suffix, "make_policy", lambda _: AutoPolicy(costs=BOARD))
    facts = config(drafter="ngram-simple", size_n=2)
    parallel = facts.parallel_config
    parallel.distributed_executor_backend, parallel.world_size = "external_launcher", 2
    return BatchProposer(facts)


@pytest.mark.parametrize("speculate", [True, False])
def test_a_policy_knows_of_all_rows_of_the_pass(
    speculate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["r0", "r1", "r2"]
    asks = {name: RequestOptions(speculate=speculate) for name in rows if not speculate}
    by_name = {name: [*range(100 * i, 100 * i + 60)] for i, name in enumerate(rows)}
    loop = [901, 902, 903, 904] * 20
    for beside, length in (([], 3), (rows[:1], 2), (rows, 0)):
        run = Requests(judged(monkeypatch), {**by_name, "a": loop}, {**asks, **of("a")})
        for _ in range(3):
            drafts = run.step(*beside, "a")
        assert drafts == {**{name: [] for name in beside}, "a": drafts["a"]}
        assert len(drafts["a"]) == length


def test_drafts_of_other_namespaces_count_for_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = [901, 902, 903, 904] * 20
    run = Requests(judged(monkeypatch), {"a": loop, "b": loop}, of("a", "b"))
    for _ in range(3):
        drafts = run.step("a", "b")
    assert sum(map(len, drafts.values())) == 2  # with the two newest ones, all that costs nothing
    assert run.proposer._next == (4, True)


def test_all_rows_count_for_how_fast_tokens_come(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {f"r{i}": [*range(100 * i, 100 * i + 60)] for i in range(4)}
    rates = []
    for asks in (
        {},
        {"r1": RequestOptions(namespace="a"), "r2": RequestOptions(namespace="b")},
        {"r2": RequestOptions(speculate=False), "r3": RequestOptions(speculate=False)},
    ):
        proposer = judged(monkeypatch)
        run = Requests(proposer, by_name, asks)
        for _ in range(20):
            run.step(*by_name)
        policy = proposer.namespaces.policy
        assert policy is not None
        assert {group.drafter.policy for group in run.groups.values()} == {policy}
        rates.append(policy.rate)
    assert rates[0] > 2.5
    assert rates == [rates[0]] * 3
