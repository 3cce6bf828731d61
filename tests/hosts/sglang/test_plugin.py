"""SGLang's own plugin loader, hooks and NGRAM worker, over our corpus."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers import sglang_engine
from helpers.paths import ROOT
from ngramspec.hosts.sglang.corpus import Corpus
from ngramspec.hosts.sglang.plugin import CORPUS, HOOKS, meet, plugin

LONG = list(range(100, 150))
ENTRY = "[sglang.srt.plugins]\nngramspec = ngramspec.hosts.sglang.plugin:plugin\n"


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """SGLang's registry, none of its modules loaded before."""
    pytest.importorskip("torch", reason="SGLang's worker needs torch")
    sglang_engine.load(monkeypatch)
    monkeypatch.setenv("NGRAMSPEC_SGLANG", "1")
    yield importlib.import_module(HOOKS).HookRegistry
    sglang_engine.unload()


def test_sglang_loads_the_entry_point_and_applies_its_hooks(
    hooks: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "ngramspec_here-0.0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ngramspec-here\nVersion: 0.0.0\n"
    )
    (folder / "entry_points.txt").write_text(ENTRY)
    assert ENTRY.splitlines()[1].partition(" = ")[2] in (ROOT / "pyproject.toml").read_text()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SGLANG_PLUGINS", "ngramspec")
    importlib.import_module("sglang.srt.plugins").load_plugins()
    assert importlib.import_module(CORPUS).NgramCorpus is Corpus
    assert importlib.import_module(sglang_engine.WORKER).NgramCorpus is Corpus


def cycle(text: Sequence[int]) -> int:
    """Repeats what followed the last token the first time, with a change now and then."""
    if len(text) % 13 == 0:
        return (text[-1] * 7 + 3) % 97
    return next((text[i + 1] for i in range(len(text) - 1) if text[i] == text[-1]), 5)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_worker_drafts_from_ours_and_says_what_it_says_without(
    hooks: Any, overlap: bool
) -> None:
    plugin()
    hooks.apply_hooks()
    engine = sglang_engine.Engine(cycle, overlap=overlap)
    assert type(engine.worker.ngram_corpus) is Corpus
    assert engine.worker.ngram_corpus.vocab_size == 0
    prompts = {"a": [*LONG, 100], "b": [7, 8, 9, 7], "c": [*LONG[::-1], 149]}
    engine.add("a", prompts["a"], 60)
    engine.add("b", prompts["b"], 30)
    requests = {request.rid: request for request in engine.running}
    while engine.running:
        engine.step()
        if engine.steps == 4:
            engine.add("c", prompts["c"], 40)
            requests["c"] = engine.running[-1]
    for name, prompt in prompts.items():
        text = list(prompt)
        while len(text) < len(requests[name].text):
            text.append(cycle(text))
        assert requests[name].text == text
    assert engine.worker.ngram_corpus.vocab_size == sglang_engine.VOCAB_SIZE
    stats = engine.worker.ngram_corpus.stats()["suffix"]
    assert stats.begin_calls == 3  # once per request, with its whole prompt
    assert stats.num_accepted_tokens > 60
    assert engine.steps < 40


def test_the_worker_loads_and_lists_external_corpora(hooks: Any) -> None:
    plugin()
    hooks.apply_hooks()
    worker = sglang_engine.Engine(cycle).worker
    loaded = worker.add_external_corpus("x", [LONG])
    worker.commit_corpus_load("x", loaded)
    assert worker.list_external_corpora() == {"x": 50}
    worker.remove_external_corpus("x")
    assert worker.list_external_corpora() == {}
    worker.clear_cache_pool()


@pytest.mark.parametrize("text", ["", "0"])
def test_nothing_happens_unless_it_is_asked(
    hooks: Any, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("NGRAMSPEC_SGLANG", text)
    plugin()
    assert not hooks._hooks


def test_another_release_is_left_alone(
    hooks: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = sys.modules[plugin.__module__]
    read = module._read
    monkeypatch.setattr(module, "_read", lambda name: read(name).replace("batch_get", "get_all"))
    plugin()
    assert not hooks._hooks
    assert "NgramCorpus.get_all is new" in caplog.text


def test_wrong_settings_leave_sglang_to_itself(
    hooks: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in (("NGRAMSPEC_STATIC", "/no/such/file"), ("NGRAMSPEC_PARAMS", "{")):
        with monkeypatch.context() as here:
            here.setenv(name, text)
            plugin()
    assert not hooks._hooks
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2


def test_without_sglang_the_plugin_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NGRAMSPEC_SGLANG", "1")
    places = [p for p in sys.path if not (Path(p) / "sglang").exists()]
    monkeypatch.setattr(sys, "path", places)
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    with caplog.at_level(logging.WARNING, "ngramspec"):
        plugin()
    assert "sglang is not installed" in caplog.text


def test_a_worker_with_another_corpus_is_left_alone() -> None:
    met: list[Any] = []
    worker = SimpleNamespace(ngram_corpus=SimpleNamespace(meet=met.append))
    meet(worker, SimpleNamespace(reqs=["a request"]))
    meet(object(), object())  # one without any
    assert met == []
