"""vLLM's own suffix proposer over our cache; needs vLLM's Python files and nothing else of it."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ngramspec.hosts.arctic.cache import SuffixDecodingCache
from ngramspec.hosts.arctic.install import install, uninstall

SOURCES = "VLLM_SOURCES"  # names a folder with an unpacked vllm wheel, or an installed one's
PROPOSER = "vllm/v1/spec_decode/suffix_decoding.py"
CHECKS = "vllm/utils/import_utils.py"
MODULES = ("torch", "vllm", "vllm.config", "vllm.v1", "vllm.v1.worker")
BATCH = "vllm.v1.worker.gpu_input_batch"
LENGTH = 200
TEXT = [*range(20, 60), 3, *range(20, 32)]


def source(path: str) -> str:
    named = os.environ.get(SOURCES, "")
    spec = importlib.util.find_spec("vllm") if not named else None
    folder = (
        Path(named) if named else Path(spec.origin).parents[1] if spec and spec.origin else None
    )
    if folder is None:
        pytest.skip(f"no vllm: install it, or let {SOURCES} name an unpacked wheel")
    return (folder / path).read_text("utf-8")


@pytest.fixture
def proposer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's class, run as it stands; of three modules it imports names of types only."""
    code = source(PROPOSER)
    for name in (*MODULES, BATCH):
        module: Any = types.ModuleType(name)
        module.VllmConfig = module.InputBatch = module.Tensor = object
        monkeypatch.setitem(sys.modules, name, module)
    install(replace=True)
    module = types.ModuleType("suffix_proposer")
    exec(compile(code, PROPOSER, "exec"), module.__dict__)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=6,
            suffix_decoding_max_tree_depth=24,
            suffix_decoding_max_cached_requests=100,
            suffix_decoding_max_spec_factor=1.0,
            suffix_decoding_min_token_prob=0.1,
        ),
        model_config=SimpleNamespace(max_model_len=LENGTH),
    )
    yield module.SuffixDecodingProposer(config)
    uninstall()


class Batch:
    """What the proposer reads of an InputBatch."""

    def __init__(self) -> None:
        self.req_ids: list[str] = []
        self.texts: dict[str, list[int]] = {}
        self.prompt_lens: dict[str, int] = {}

    def add(self, name: str, prompt: list[int]) -> None:
        self.req_ids.append(name)
        self.texts[name], self.prompt_lens[name] = list(prompt), len(prompt)

    def remove(self, name: str) -> None:
        """The last row moves into the hole, as condense() does it."""
        at = self.req_ids.index(name)
        last = self.req_ids.pop()
        if last != name:
            self.req_ids[at] = last

    @property
    def req_id_to_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.req_ids)}

    @property
    def num_tokens_no_spec(self) -> Any:
        return np.array([len(self.texts[name]) for name in self.req_ids])

    @property
    def num_prompt_tokens(self) -> Any:
        return np.array([self.prompt_lens[name] for name in self.req_ids])

    @property
    def token_ids_cpu(self) -> Any:
        rows = np.zeros((len(self.req_ids), LENGTH), np.int32)
        for row, name in zip(rows, self.req_ids, strict=True):
            row[: len(self.texts[name])] = self.texts[name]
        return rows


def step(proposer: Any, batch: Batch, sampled: dict[str, list[int]]) -> dict[str, list[int]]:
    for name, new in sampled.items():
        batch.texts[name] += new
    rows = [sampled.get(name, []) for name in batch.req_ids]
    return dict(zip(batch.req_ids, proposer.propose(6, batch, rows), strict=True))


def test_the_method_runs_on_our_cache(proposer: Any) -> None:
    cache, batch = proposer.suffix_cache, Batch()
    assert type(cache) is SuffixDecodingCache
    batch.add("a", TEXT)
    batch.add("b", [1, 2])
    drafts = step(proposer, batch, {"a": [32], "b": [9]})
    assert drafts == {"a": [33, 34, 35, 36, 37, 38], "b": []}
    assert step(proposer, batch, {"a": [33, 34, 50], "b": []})["b"] == []  # a partial prefill
    for new in range(51, 57):
        step(proposer, batch, {"a": [new], "b": [new - 31]})
    assert list(cache.active_requests) == ["a", "b"]
    batch.remove("a")
    assert step(proposer, batch, {"b": [26]})["b"] == []  # it said nothing twice
    assert list(cache.active_requests) == ["b"]
    assert list(cache.cached_requests) == ["a", "b"]
    batch.add("c", [8, 8])
    assert step(proposer, batch, {"b": [27], "c": [33, 34, 50, 51, 52]})["c"] == [53, 54, 55, 56]


def test_a_request_that_comes_back_begins_anew(proposer: Any) -> None:
    batch = Batch()
    batch.add("a", TEXT)
    step(proposer, batch, {"a": [32]})
    batch.remove("a")
    step(proposer, batch, {})
    batch.add("a", batch.texts["a"][:])
    batch.prompt_lens["a"] = len(TEXT)  # what it said before is not shown again
    assert list(proposer.suffix_cache.active_requests) == []
    drafts: dict[str, list[int]] = {}
    for new in range(33, 38):
        drafts = step(proposer, batch, {"a": [new]})
    assert list(proposer.suffix_cache.cached_requests) == ["a"]
    assert isinstance(drafts["a"], list)


def test_drafts_fit_the_longest_text(proposer: Any) -> None:
    batch = Batch()
    text = [*TEXT, *[4] * (LENGTH - 2 * len(TEXT) - 3), 3, *TEXT]
    batch.add("a", text[:-2])
    for left in (2, 1, 0):
        at = LENGTH - left - 1
        batch.texts["a"] = batch.texts["a"][: at - 1] + [4] * (at - 1 - len(batch.texts["a"]))
        assert len(step(proposer, batch, {"a": [4]})["a"]) <= left


def test_vllm_finds_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration refuses the method unless this check of its own says yes."""
    tree = ast.parse(source(CHECKS))
    functions = ("_has_module", "has_arctic_inference")
    body = [node for node in tree.body if getattr(node, "name", "") in functions]
    assert len(body) == 2, f"{CHECKS} no longer has {' and '.join(functions)}"
    names: dict[str, Any] = {
        "cache": functools.cache, "importlib": importlib, "logger": logging.getLogger("vllm"),
    }  # fmt: skip
    install(replace=True)
    try:
        exec(compile(ast.Module(body, []), CHECKS, "exec"), names)
        assert names["has_arctic_inference"]()
    finally:
        uninstall()


def test_plugins_are_loaded_before_the_check() -> None:
    """EngineArgs loads plugins when it is made, and makes the configuration afterwards."""
    tree = ast.parse(source("vllm/engine/arg_utils.py"))
    (engine_args,) = [
        n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "EngineArgs"
    ]
    (after,) = [n for n in engine_args.body if getattr(n, "name", "") == "__post_init__"]
    called = [n.func.id for n in ast.walk(after)
              if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]  # fmt: skip
    assert "load_general_plugins" in called, "EngineArgs no longer loads plugins first"
