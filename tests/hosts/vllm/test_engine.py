"""The adapter driven by vLLM's own runner, batch, loader and plugin loader, on the CPU.

Needs what importing vllm.v1.worker.gpu_model_runner needs (torch and vLLM's Python requirements; no
compiled part of vLLM) and its sources, see test_contract.py.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import vllm_engine
from helpers.paths import ROOT
from helpers.vllm_calls import RECORDED
from helpers.vllm_engine import Engine, config, load
from helpers.vllm_scenario import OPTIONS, VERSION, model, prompt, record
from ngramspec.hosts.vllm import Proposer, plugin
from ngramspec.hosts.vllm.request_options import HELD_AT

try:
    load()
    WHY = ""
except ImportError as error:
    WHY = f"vLLM's runner cannot be imported: {error}"
pytestmark = [
    pytest.mark.skipif(bool(WHY), reason=WHY),
    pytest.mark.filterwarnings("ignore"),  # vLLM's own
]


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Undo what the plugin does to vLLM."""
    for module in (plugin.HOME, plugin.RUNNER):
        monkeypatch.setattr(load(module), plugin.NAME, getattr(load(module), plugin.NAME))
    batch = load(plugin.BATCH).InputBatch
    monkeypatch.setattr(batch, "add_request", batch.add_request)
    check = load(plugin.CONFIG)
    monkeypatch.setattr(check, plugin.CHECK, getattr(check, plugin.CHECK))
    monkeypatch.delenv(plugin.SWITCH, raising=False)
    return monkeypatch


def loaded(**options: Any) -> Any:
    create = load("vllm.v1.spec_decode.custom_class_proposer").create_custom_proposer
    return create(config(**options))


def test_the_loader_takes_the_class() -> None:
    assert type(loaded()) is Proposer


def test_the_loader_names_wrong_options() -> None:
    with pytest.raises(RuntimeError, match="did you mean suffix"):
        loaded(drafter="sufix")


def test_the_calls_of_the_runner_are_those_recorded() -> None:
    calls = json.loads(json.dumps(record()))["calls"]
    assert calls == json.loads(RECORDED.read_text())["calls"], (
        f"vLLM's runner calls a proposer otherwise than {VERSION} did; if it should, record anew: "
        "helpers/vllm_scenario.py"
    )


def chaos(engine: Engine, seed: int, steps: int = 60) -> dict[str, list[int]]:
    """Let requests come, pause, chunk, move and end at random; return what each one said."""
    rng = random.Random(seed)
    texts, count, chunking = {}, 0, set()
    for _ in range(steps):
        while len(engine.running) < 3 or (len(engine.running) < 8 and rng.random() < 0.3):
            engine.add(f"r{count}", prompt(count % 6, rng.randrange(10, 40)))
            count += 1
        for name in list(engine.running):
            long = len(engine.texts[name]) > 140
            if long or (rng.random() < 0.05 and name in engine.seen):
                texts[name] = engine.finish(name)
        fresh = [name for name in engine.running if name not in engine.rows()]
        paused = [n for n in engine.running if n in engine.seen and rng.random() < 0.08]
        chunking = {n for n in fresh if rng.random() < 0.3} - set(paused)
        if len(engine.running) == len(paused):
            continue
        rows = len(engine.rows())
        if rows > 1 and rng.random() < 0.3 and not engine.finished:
            engine.runner.input_batch.swap_states(*rng.sample(range(rows), 2))
        engine.step(paused, sorted(chunking))
    texts.update({name: engine.finish(name) for name in list(engine.running)})
    return texts


def alone(texts: dict[str, list[int]], name: str, start: Sequence[int]) -> None:
    """What a request said is what the model says, with or without drafts."""
    text = list(start)
    for token in texts[name]:
        assert token == model(name, text)
        text.append(token)


@pytest.mark.parametrize("drafter", ["ngram-simple", "suffix"])
@pytest.mark.parametrize("seed", range(4))
def test_texts_stay_the_models_own_and_no_slot_is_lost(drafter: str, seed: int) -> None:
    options = {**OPTIONS, "drafter": drafter} if drafter != "suffix" else {"policy": "fixed"}
    proposer = loaded(**options)
    engine = Engine(proposer, "custom_class", model)
    prompts: dict[str, list[int]] = {}
    add = engine.add
    engine.add = lambda name, start: (prompts.__setitem__(name, start), add(name, start))[1]  # type: ignore[method-assign]
    texts = chaos(engine, seed)
    for name in texts:
        alone(texts, name, prompts[name])
    stats = proposer.drafts.drafter.stats()[drafter]
    assert stats.num_accepted_tokens > 100
    assert not proposer._failed
    assert proposer.drafts.drafter.check() == ""


@pytest.mark.parametrize("seed", range(4))
def test_drafts_are_those_of_the_proposer_that_knows_ids(
    seed: int, unpatched: pytest.MonkeyPatch
) -> None:
    """Content finds the same requests as ids do; ngram-simple has no state but the text."""
    unpatched.setenv(plugin.SWITCH, "suffix")
    plugin.register()
    runs = []
    for kind, method in ((Proposer, "custom_class"), (None, "suffix")):
        proposer = (kind or load().SuffixDecodingProposer)(config(**OPTIONS))
        drafts: list[Any] = []
        engine = Engine(proposer, method, model)
        step = engine.step
        engine.step = lambda *a, d=drafts, s=step: d.append(s(*a))  # type: ignore[method-assign]
        runs.append((chaos(engine, seed), drafts))
    assert runs[0] == runs[1]


def test_a_step_without_drafting_is_caught_up_with() -> None:
    """vLLM asks for no drafts while a text is near the longest."""
    proposer = loaded(**OPTIONS)
    engine = Engine(proposer, "custom_class", model)
    engine.add("r1", prompt(1))
    engine.step()
    propose, proposer.propose = proposer.propose, lambda sampled, *a, **k: [[] for _ in sampled]
    for _ in range(3):
        engine.step()
    proposer.propose = propose
    engine.step()
    drafter = proposer.drafts.drafter
    assert drafter.history(0).tolist() == engine.texts["r1"]
    assert drafter.stats()["ngram-simple"].begin_calls == 1


def test_nothing_is_changed_unless_asked_for(unpatched: pytest.MonkeyPatch) -> None:
    before = load().SuffixDecodingProposer, load(plugin.BATCH).InputBatch.add_request
    plugin.register()
    unpatched.setenv(plugin.SWITCH, "ngram")
    plugin.register()
    assert before == (load().SuffixDecodingProposer, load(plugin.BATCH).InputBatch.add_request)


def test_the_plugin_can_run_again(unpatched: pytest.MonkeyPatch) -> None:
    unpatched.setenv(plugin.SWITCH, "suffix")
    theirs = load().SuffixDecodingProposer
    plugin.register()
    first = load().SuffixDecodingProposer, load(plugin.BATCH).InputBatch.add_request
    assert issubclass(first[0], theirs)
    assert first[0].is_ngramspec
    plugin.register()
    assert first == (load().SuffixDecodingProposer, load(plugin.BATCH).InputBatch.add_request)
    assert load(plugin.HOME).SuffixDecodingProposer is first[0]


def test_vllm_loads_the_entry_point(tmp_path: Path, unpatched: pytest.MonkeyPatch) -> None:
    info = tmp_path / "ngramspec_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ngramspec-entry\nVersion: 1\n")
    project = (ROOT / "pyproject.toml").read_text()
    line = next(one for one in project.splitlines() if "vllm.plugin:register" in one)
    # By another name: of two with the same one, vLLM keeps either.
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nof_test_" + line.replace('"', "") + "_of_test\n"
    )
    called: list[str] = []
    unpatched.setattr(plugin, "register_of_test", lambda: called.append("yes"), raising=False)
    unpatched.syspath_prepend(str(tmp_path))
    plugins = load("vllm.plugins")
    unpatched.setattr(plugins, "plugins_loaded", False)
    plugins.load_general_plugins()
    assert called == ["yes"]


def test_the_method_is_allowed_without_arctic(unpatched: pytest.MonkeyPatch) -> None:
    unpatched.setenv(plugin.SWITCH, "suffix")
    check = load(plugin.CONFIG)
    unpatched.setattr(check, plugin.CHECK, lambda: False)
    unpatched.setattr(plugin.importlib.util, "find_spec", lambda name: None)
    facts = SimpleNamespace(
        num_speculative_tokens=4,
        suffix_decoding_max_tree_depth=24,
        suffix_decoding_max_cached_requests=10,
        suffix_decoding_max_spec_factor=1.0,
        suffix_decoding_min_token_prob=0.1,
    )
    validate = check.SpeculativeConfig._validate_suffix_decoding
    with pytest.raises(ImportError, match="Arctic"):
        validate(facts)
    plugin.register()
    validate(facts)


@pytest.mark.parametrize("change", ["propose", "add_request", "field", "gone"])
def test_a_vllm_that_changed_is_left_alone(
    change: str, unpatched: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unpatched.setenv(plugin.SWITCH, "suffix")
    theirs = load().SuffixDecodingProposer
    unpatched.setattr(load("logging").getLogger("vllm"), "propagate", True)
    if change == "propose":
        unpatched.setattr(theirs, "propose", lambda self, input_batch: [])
    elif change == "add_request":
        batch = load(plugin.BATCH).InputBatch
        unpatched.setattr(batch, "add_request", lambda self, request, other: 0)
    elif change == "field":
        unpatched.setattr(plugin, "BATCH_FIELDS", (*plugin.BATCH_FIELDS, "texts"))
    else:
        unpatched.delattr(load(plugin.HOME), plugin.NAME)
    plugin.register()
    assert load().SuffixDecodingProposer is theirs
    assert "goes on without it" in caplog.text


def test_requests_have_options_of_their_own(unpatched: pytest.MonkeyPatch) -> None:
    unpatched.setenv(plugin.SWITCH, "suffix")
    plugin.register()
    proposer = load().SuffixDecodingProposer(config(**OPTIONS))
    engine = Engine(proposer, "suffix", model)
    asks = {"r0": {"speculate": False}, "r1": {"n_max": 1}, "r2": None, "r3": {"namespace": "x"}}
    for number, (name, ask) in enumerate(asks.items()):
        engine.add(name, prompt(number), {"ngramspec": ask} if ask else None)
    longest = dict.fromkeys(asks, 0)
    for step in range(16):
        for name, draft in engine.step(paused=["r0"] if step == 8 else []).items():
            longest[name] = max(longest[name], len(draft))
    assert longest == {"r0": 0, "r1": 1, "r2": 4, "r3": 4}
    assert sorted(proposer.namespaces.groups) == ["", "x"]
    assert set(getattr(engine.runner.input_batch, HELD_AT)) == {"r0", "r1", "r3"}


def test_vllms_count_takes_our_drafts() -> None:
    stats = load("vllm.v1.spec_decode.metrics").SpecDecodingStats.new(4)
    proposer = loaded(policy="fixed")
    engine = Engine(proposer, "custom_class", model)
    engine.add("r1", prompt(1))
    for _ in range(20):
        verified, before = len(engine.drafts["r1"]), len(engine.texts["r1"])
        engine.step()
        if verified:
            stats.observe_draft(verified, len(engine.texts["r1"]) - before - 1)
    own = proposer.drafts.drafter.stats()["suffix"]
    assert stats.num_accepted_tokens == own.num_accepted_tokens > 10
    assert stats.num_draft_tokens == own.num_draft_tokens


def test_the_table_is_read_in_place() -> None:
    proposer = loaded()
    batch = Engine(proposer, "custom_class", model).runner.input_batch
    assert batch.token_ids_cpu.dtype == batch.num_tokens_no_spec.dtype == np.int32
    assert batch.token_ids_cpu.flags.c_contiguous
    assert sys.modules[plugin.RUNNER] is vllm_engine.load()
