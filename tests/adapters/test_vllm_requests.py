"""What single requests ask of vLLM's proposer, and the namespaces they draft in."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.vllm_calls import CALLS, batch_of
from helpers.vllm_engine import config
from helpers.vllm_scenario import OPTIONS
from ngramspec.adapters.vllm.asks import DEFAULT, RequestAsk, hold_asks, read_ask
from ngramspec.adapters.vllm.suffix import BatchProposer
from ngramspec.errors import InputError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTER", "POLICY", "STATIC", "POOL", "LOG_SECONDS", "VLLM"):
        monkeypatch.delenv(f"NGRAMSPEC_{name}", raising=False)


def asking(**asked: Any) -> Any:
    return SimpleNamespace(extra_args={"ngramspec": asked})


def test_requests_say_what_they_want_of_drafts() -> None:
    assert read_ask(None) is read_ask(SimpleNamespace(extra_args=None)) is DEFAULT
    assert read_ask(asking(speculate=False)).speculate is False
    assert read_ask(asking(namespace="a", n_max=0)).namespace == "a"
    flat = {"ngramspec.speculate": 0, "ngramspec.n_max": 3, "other": 1}  # as HTTP brings it
    assert read_ask(SimpleNamespace(extra_args=flat)) == RequestAsk(speculate=False, n_max=3)
    assert read_ask(SimpleNamespace(extra_args={"other": {"speculate": False}})) is DEFAULT


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
        read_ask(asking(**asked))


class Batch:
    """An InputBatch as far as asks go."""

    def __init__(self) -> None:
        self.req_id_to_index: dict[str, int] = {}

    def add_request(self, request: Any) -> int:
        self.req_id_to_index[request.req_id] = len(self.req_id_to_index)
        return 5


def play_with_asks(asks: dict[str, Any], options: dict[str, Any]) -> tuple[BatchProposer, Any]:
    """Replay the calls, requests asking as told; return all drafts by request."""
    add_request = hold_asks(Batch.add_request)
    held, proposer = Batch(), BatchProposer(config(**options))
    for name, ask in asks.items():
        params = SimpleNamespace(extra_args={"ngramspec": ask})
        request = SimpleNamespace(req_id=name, sampling_params=params)
        assert add_request(held, request) == 5
    made: dict[str, list[int]] = {}
    for call in CALLS:
        batch = batch_of(call)
        every = getattr(held, "_ngramspec_asks", {})
        batch._ngramspec_asks = {name: every[name] for name in call["ids"] if name in every}
        drafts = proposer.propose(4, batch, call["sampled"])
        for name, draft in zip(call["ids"], drafts, strict=True):
            made.setdefault(name, []).append(draft)  # type: ignore[arg-type]
    return proposer, made


def test_a_request_can_do_without_drafts_or_with_shorter_ones() -> None:
    _, usual = play_with_asks({}, OPTIONS)
    proposer, made = play_with_asks({"r2": {"speculate": False}, "r3": {"n_max": 2}}, OPTIONS)
    assert any(usual["r2"])
    assert not any(made["r2"])
    assert max(map(len, usual["r3"])) == 4
    assert max(map(len, made["r3"])) == 2
    assert proposer.stats()["ngram-simple"].begin_calls == 6  # one came back, one never began


def test_requests_of_another_namespace_share_no_pool() -> None:
    options = {"drafter": "suffix", "policy": "fixed"}
    own = {"r5": {"namespace": "own"}}  # asked the same as r1
    _, shared = play_with_asks({}, options)
    proposer, alone = play_with_asks(own, options)
    assert list(proposer.groups) == ["", "own"]
    assert alone["r5"] != shared["r5"]
    assert alone["r1"] == shared["r1"]  # it was there before
    together, one_pool = play_with_asks(own, {**options, "namespaces": 0})
    assert one_pool == shared
    assert list(together.groups) == [""]


def test_namespaces_without_requests_give_way() -> None:
    asks = {f"r{i}": {"namespace": f"n{i}"} for i in range(6)}
    proposer, _ = play_with_asks(asks, {"drafter": "suffix", "namespaces": 1})
    assert "" in proposer.groups
    assert len(proposer.groups) <= 5
    assert "n0" not in proposer.groups
    assert proposer.stats()["suffix"].begin_calls >= 6  # those gone count


def test_a_wrong_ask_is_logged_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    _, usual = play_with_asks({}, OPTIONS)
    with caplog.at_level(logging.WARNING, "vllm.ngramspec"):
        _, made = play_with_asks({"r2": {"speculate": "no"}}, OPTIONS)
    assert made == usual
    assert "r2" in caplog.text
