"""Installing in a vLLM that has changed: all of it, or nothing. The modules are doubles."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from ngramspec.hosts.vllm import plugin


class Proposer:
    def __init__(self, vllm_config: Any) -> None: ...

    def propose(
        self,
        num_speculative_tokens: int,
        input_batch: Any,
        sampled_token_ids: Any,
        slot_mappings: Any = None,
    ) -> None: ...


class InputBatch:
    def __init__(self) -> None:
        self.req_id_to_index: dict[str, int] = {}
        self.num_prompt_tokens = self.token_ids_cpu = self.num_tokens_no_spec = None

    @property
    def req_ids(self) -> list[str]:
        return []

    def add_request(self, request: Any) -> None: ...


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put modules with what the plugin needs in the place of vLLM's."""
    members: dict[str, dict[str, Any]] = {
        plugin.HOME: {plugin.NAME: Proposer},
        plugin.RUNNER: {plugin.NAME: Proposer},
        plugin.BATCH: {"InputBatch": InputBatch},
        plugin.CONFIG: {plugin.CHECK: lambda: False},
    }
    monkeypatch.setattr(InputBatch, "add_request", InputBatch.add_request)  # put back afterwards
    by_name: dict[str, Any] = {}
    for name, contents in members.items():
        by_name[name] = ModuleType(name)
        vars(by_name[name]).update(contents)
        monkeypatch.setitem(sys.modules, name, by_name[name])
    for name in {".".join(path.split(".")[:n]) for path in members for n in range(1, 4)}:
        monkeypatch.setitem(sys.modules, name, by_name.get(name) or ModuleType(name))
    return by_name


def test_everything_is_replaced(modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arctic_inference", None)  # not there, even if it is installed
    assert plugin.install() == ""
    mine = getattr(modules[plugin.HOME], plugin.NAME)
    assert mine.is_ngramspec
    assert getattr(modules[plugin.RUNNER], plugin.NAME) is mine
    assert getattr(modules[plugin.CONFIG], plugin.CHECK)()
    assert plugin.install() == ""
    assert getattr(modules[plugin.HOME], plugin.NAME) is mine


@pytest.mark.parametrize(
    ("module", "name"), [(plugin.CONFIG, plugin.CHECK), (plugin.BATCH, "InputBatch")]
)
def test_where_something_is_missing_nothing_is_replaced(
    modules: dict[str, Any], module: str, name: str
) -> None:
    delattr(modules[module], name)
    before = {name: dict(vars(one)) for name, one in modules.items()}
    with pytest.raises(AttributeError):
        plugin.install()
    assert {name: dict(vars(one)) for name, one in modules.items()} == before


def test_where_batches_cannot_hold_options_nothing_is_replaced(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InputBatch, "add_request", lambda self, request, more: None)
    assert plugin.install() == "InputBatch.add_request takes request, more instead of request"
    assert getattr(modules[plugin.HOME], plugin.NAME) is Proposer


def test_an_arctic_without_a_spec_counts_as_there(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "arctic_inference", ModuleType("arctic_inference"))
    assert plugin.install() == ""
    assert getattr(modules[plugin.RUNNER], plugin.NAME).is_ngramspec
    assert not getattr(modules[plugin.CONFIG], plugin.CHECK)()


def test_a_batch_that_adds_no_requests_is_left_alone(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(InputBatch, "add_request")
    with pytest.raises(AttributeError):
        plugin.install()
    assert getattr(modules[plugin.HOME], plugin.NAME) is Proposer
    assert not getattr(modules[plugin.CONFIG], plugin.CHECK)()
