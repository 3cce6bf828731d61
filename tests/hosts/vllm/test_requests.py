"""What single requests ask of vLLM's proposer, and the namespaces they draft in."""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.vllm_calls import CALLS, batch_of
from helpers.vllm_engine import config
from helpers.vllm_scenario import OPTIONS
from ngramspec.errors import InputError, StateError
from ngramspec.hosts.vllm.request_options import (
    DEFAULT,
    RequestOptions,
    held_options,
    hold_options,
    read_options,
)
from ngramspec.hosts.vllm.suffix import BatchProposer


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTER", "POLICY", "STATIC", "POOL", "LOG_SECONDS", "VLLM"):
        monkeypatch.delenv(f"NGRAMSPEC_{name}", raising=False)


def asking(**asked: Any) -> Any:
    return SimpleNamespace(extra_args={"ngramspec": asked})


def test_requests_say_what_they_want_of_drafts() -> None:
    assert read_options(None) is read_options(SimpleNamespace(extra_args=None)) is DEFAULT
    assert read_options(asking(speculate=False)).speculate is False
    assert read_options(asking(namespace="a", n_max=0)).namespace == "a"
    flat = {"ngramspec.speculate": 0, "ngramspec.n_max": 3, "other": 1}  # as HTTP brings it
    assert read_options(SimpleNamespace(extra_args=flat)) == RequestOptions(
        speculate=False, n_max=3
    )
    assert read_options(SimpleNamespace(extra_args={"other": {"speculate": False}})) is DEFAULT


@pytest.mark.parametrize(
    "asked",
    [
        {"speculate": 2},
        {"speculate": "no"},
        {"namespace": 3},
        {"namespace": "x" * 257},
        {"n_max": -1},
        {"n_max": True},
        {"namespaces": "a"},
    ],
)
def test_what_a_request_cannot_ask_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read_options(asking(**asked))


class Batch:
    """An InputBatch as far as asks go."""

    def __init__(self) -> None:
        self.req_id_to_index: dict[str, int] = {}

    def add_request(self, request: Any) -> int:
        self.req_id_to_index[request.req_id] = len(self.req_id_to_index)
        return 5


def play_with_options(asks: dict[str, Any], options: dict[str, Any]) -> tuple[BatchProposer, Any]:
    """Replay the calls, requests asking as told; return all drafts by request."""
    add_request = hold_options(Batch.add_request)
    held, proposer = Batch(), BatchProposer(config(**options))
    for name, ask in asks.items():
        params = SimpleNamespace(extra_args={"ngramspec": ask})
        request = SimpleNamespace(req_id=name, sampling_params=params)
        assert add_request(held, request) == 5
    by_request: dict[str, list[int]] = {}
    for call in CALLS:
        batch = batch_of(call)
        every = getattr(held, "_ngramspec_options", {})
        batch._ngramspec_options = {name: every[name] for name in call["ids"] if name in every}
        drafts = proposer.propose(4, batch, call["sampled"])
        for name, draft in zip(call["ids"], drafts, strict=True):
            by_request.setdefault(name, []).append(draft)  # type: ignore[arg-type]
    return proposer, by_request


def test_a_request_can_do_without_drafts_or_with_shorter_ones() -> None:
    _, usual = play_with_options({}, OPTIONS)
    proposer, drafts = play_with_options({"r2": {"speculate": False}, "r3": {"n_max": 2}}, OPTIONS)
    assert any(usual["r2"])
    assert not any(drafts["r2"])
    assert max(map(len, usual["r3"])) == 4
    assert max(map(len, drafts["r3"])) == 2
    assert (
        proposer.namespaces.stats()["ngram-simple"].begin_calls == 6
    )  # one came back, one never began


def test_requests_of_another_namespace_share_no_pool() -> None:
    options = {"drafter": "suffix", "policy": "fixed"}
    own = {"r5": {"namespace": "own"}}  # asked the same as r1
    _, shared = play_with_options({}, options)
    proposer, alone = play_with_options(own, options)
    assert sorted(proposer.namespaces.groups) == ["", "own"]
    assert alone["r5"] != shared["r5"]
    assert alone["r1"] == shared["r1"]  # it was there before
    together, one_pool = play_with_options(own, {**options, "namespaces": 0})
    assert one_pool == shared
    assert list(together.namespaces.groups) == [""]


def test_namespaces_without_requests_give_way() -> None:
    asks = {f"r{i}": {"namespace": f"n{i}"} for i in range(6)}
    proposer, _ = play_with_options(asks, {"drafter": "suffix", "namespaces": 1})
    assert "" in proposer.namespaces.groups
    assert len(proposer.namespaces.groups) <= 5
    assert "n0" not in proposer.namespaces.groups
    assert proposer.namespaces.stats()["suffix"].begin_calls >= 6  # those gone count


def test_a_namespace_whose_rows_are_all_gone_ends_their_requests() -> None:
    proposer = BatchProposer(config(drafter="suffix", namespaces=4))
    texts = {"r0": list(range(30)), "r1": list(range(50, 80)), "r2": list(range(100, 130))}
    names = {"r0": "a", "r1": "b", "r2": "b"}

    def step(ids: list[str]) -> None:
        """Let each request emit a token more."""
        for name in ids:
            texts[name].append(7)
        call = {"table": [[4, 64]], "ids": ids, "texts": [texts[name] for name in ids]}
        batch = batch_of(call)
        batch._ngramspec_options = {name: RequestOptions(namespace=names[name]) for name in ids}
        proposer.propose(4, batch, [[7]] * len(ids))

    def running(namespace: str) -> int:
        """Count the slots on which a request has begun and not ended."""
        drafter, count = proposer.namespaces.groups[namespace].drafter, 0
        for slot in range(drafter.slots):
            with contextlib.suppress(StateError):
                drafter.confidence(slot)
                count += 1
        return count

    step(["r0", "r1", "r2"])
    assert (running("a"), running("b")) == (1, 2)
    step(["r0", "r2"])
    assert (running("a"), running("b")) == (1, 1)
    step(["r0"])
    assert (running("a"), running("b")) == (1, 0)
    step(["r1"])
    assert (running("a"), running("b")) == (0, 1)


@pytest.mark.parametrize("ask", [{"namespace": 7}, {"namespace": "own", "n_max": "4"}])
def test_a_request_with_a_wrong_ask_gets_no_drafts_and_shares_no_pool(
    ask: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"drafter": "suffix", "policy": "fixed"}
    usual, _ = play_with_options({}, options)
    with caplog.at_level(logging.WARNING, "vllm.ngramspec"):
        proposer, drafts = play_with_options({"r1": ask}, options)
    assert not any(drafts["r1"])
    assert list(proposer.namespaces.groups) == [""]
    begun = [one.namespaces.stats()["suffix"].begin_calls for one in (usual, proposer)]
    assert begun[1] < begun[0]  # its text was not even looked at
    assert "request r1 gets no drafts: " in caplog.text


def test_times_are_learnt_while_namespaces_draft_side_by_side() -> None:
    proposer = BatchProposer(config(drafter="suffix"))
    texts = {"r0": list(range(30)), "r1": list(range(50, 80)), "r2": list(range(100, 130))}
    asks = {"r1": RequestOptions(namespace="own"), "r2": RequestOptions(speculate=False)}

    def step(ids: list[str], chunked: Any = ()) -> list[bool]:
        """Let requests emit a token more; return whose policies know times."""
        sampled = [[] if name in chunked else [7] for name in ids]
        for name, new in zip(ids, sampled, strict=True):
            texts[name] += new
        batch = batch_of({"table": [[4, 64]], "ids": ids, "texts": [texts[one] for one in ids]})
        batch._ngramspec_options = {name: asks[name] for name in ids if name in asks}
        proposer.propose(4, batch, sampled)
        policies = [group.drafter.policy for group in proposer.namespaces.groups.values()]
        return [policy is not None and policy.timed for policy in policies]

    assert step(["r0", "r1"]) == [False, False]
    assert step(["r0", "r1", "r2"]) == [False, False]  # another row than expected
    assert step(["r0", "r1", "r2"], chunked=["r2"]) == [False, False]
    assert step(["r0", "r1", "r2"]) == [False, False]
    assert step(["r0", "r1", "r2"]) == [True, True]


def test_what_requests_asked_goes_where_no_proposer_looks_at_it() -> None:
    """As on a rank whose drafts nobody uses."""
    add_request, batch = hold_options(Batch.add_request), Batch()
    for number in range(50):
        ask = asking(namespace=f"n{number}")
        add_request(batch, SimpleNamespace(req_id=f"r{number}", sampling_params=ask))
        assert list(getattr(batch, "_ngramspec_options", {})) == [f"r{number}"]
        del batch.req_id_to_index[f"r{number}"]


def test_what_requests_asked_goes_when_they_have_gone() -> None:
    ask = RequestOptions(namespace="a")
    batch = SimpleNamespace(
        _ngramspec_options={"gone": ask, "here": ask}, req_id_to_index={"here": 0}
    )
    assert held_options(batch) == {"here": ask}
    assert batch._ngramspec_options == {"here": ask}
