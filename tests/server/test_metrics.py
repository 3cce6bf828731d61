"""What GET /metrics tells: names, values, and that the documentation lists all of it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from helpers.paths import ROOT

pytest.importorskip("starlette", reason="needs the extra 'server'")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families
from starlette.testclient import TestClient

from helpers.fake_target import FakeTarget
from ngramspec import DynamicFile
from ngramspec.engine import AutoPolicy, DraftSource, Engine, Request, Speculation
from ngramspec.errors import FormatError
from ngramspec.lab.recordings.record import Head
from ngramspec.lab.recordings.writer import RecordFile
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.metrics.collectors import MAX_POSITIONS, EngineCollector
from ngramspec.server.recorder import Recorder

DOCS = ROOT / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `([a-z0-9_:]+)` \| (\w+)(.*?) \|", re.MULTILINE)
OF_VLLM = {"model_name": "tiny", "engine": "0"}


def request(length: int = 20, **fields: Any) -> Request:
    return Request(prompt_ids=np.arange(1, length + 1, dtype=np.int32), **fields)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    params = {"ngram-cache": {"dynamic": DynamicFile(tmp_path / "learned.ngc")}}
    return Engine(
        FakeTarget(), "ngram-mod,ngram-cache", slots=2, policy=AutoPolicy(gate=True), params=params
    )


@pytest.fixture
def registry(engine: Engine) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, "tiny"))
    return registry


@pytest.fixture
def client(engine: Engine) -> TestClient:
    return client_of(engine, metrics=True)


def client_of(engine: Engine, recorder: Recorder | None = None, **settings: Any) -> TestClient:
    served = ServedModel(name="tiny", model=cast(Any, None), engine=engine, recorder=recorder)
    return TestClient(create_app(served, ServerSettings(**settings)))


def labels_of(family: Any) -> set[str]:
    """Return the labels of a family's samples, those of every histogram and of vLLM left out."""
    names = {name for sample in family.samples for name in sample.labels}
    return names - {"le", *(OF_VLLM if family.name.startswith("vllm:") else ())}


def test_documented_and_scraped_metrics_are_the_same(engine: Engine, tmp_path: Path) -> None:
    head = Head(model="tiny", tokenizer="", vocab_size=9, drafter="", started=0, apart=False)
    recorder = Recorder(RecordFile(tmp_path / "r.jsonl", head), "")
    kinds = [Speculation(), *(Speculation(types=(name,)) for name in ("suffix", "recycle"))]
    kinds.append(Speculation(shadow=True))
    engine.generate([request(max_tokens=60, speculation=kind) for kind in kinds])
    text = client_of(engine, recorder, metrics=True).get("/metrics").text
    assert recorder.close()
    scraped = {}
    for family in families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        scraped[name] = (family.type, labels_of(family))
    page = DOCS.read_text()
    documented = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(page)
    }
    of_process = {name for name in scraped if name.startswith("process_")}
    assert documented == {name: scraped[name] for name in scraped.keys() - of_process}
    assert of_process <= set(re.findall(r"`(\w+)`", page))


def test_values_are_those_of_the_engine(engine: Engine, registry: CollectorRegistry) -> None:
    engine.generate([request(max_tokens=60)] * 3)
    stats, value = engine.stats(), registry.get_sample_value
    assert value("vllm:generation_tokens_total", OF_VLLM) == 180 == stats.num_emitted_tokens
    assert value("llamacpp:tokens_predicted_total") == 180
    assert value("vllm:prompt_tokens_total", OF_VLLM) == 60
    assert value("llamacpp:prompt_tokens_total") == stats.num_prompt_tokens
    assert value("vllm:prefix_cache_hits_total", OF_VLLM) == stats.num_cached_tokens > 0
    assert value("llamacpp:n_decode_total") == stats.num_steps
    assert value("llamacpp:n_busy_slots_per_decode") == stats.num_busy_slots / stats.num_steps
    assert stats.num_steps < stats.num_busy_slots <= 2 * stats.num_steps
    assert 3 * 60 > stats.num_slot_steps == value("ngramspec:slot_steps_total")
    assert value("ngramspec:batch_capacity_tokens") == engine.batch_capacity == 64
    assert value("vllm:iteration_tokens_total_sum", OF_VLLM) == stats.num_batch_tokens
    assert value("vllm:iteration_tokens_total_count", OF_VLLM) == stats.num_steps
    assert value("vllm:request_success_total", {**OF_VLLM, "finished_reason": "length"}) == 3
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert value(f"vllm:{name}_seconds_count", OF_VLLM) == 3
    assert value("vllm:inter_token_latency_seconds_count", OF_VLLM) == 177
    accepted = "spec_decode_num_accepted_tokens_total"
    assert value(f"vllm:{accepted}", OF_VLLM) == value(f"llamacpp:{accepted}") > 100


def test_sources_are_told_apart(engine: Engine, registry: CollectorRegistry) -> None:
    engine.generate([request(max_tokens=200)] * 2)
    value = registry.get_sample_value
    for name, source in engine.source_stats().items():
        label = {"source": name}
        assert value("ngramspec:source_drafts_total", label) == source.num_drafts
        assert value("ngramspec:source_draft_tokens_total", label) == source.num_draft_tokens
        accepted = value("ngramspec:source_accepted_tokens_total", label)
        wasted = value("ngramspec:source_wasted_tokens_total", label)
        assert (accepted or 0) + (wasted or 0) == source.num_draft_tokens
        for call in ("begin", "propose", "accept"):
            calls = value("ngramspec:source_calls_total", {**label, "call": call})
            assert calls == getattr(source, f"{call}_calls")
    first = {"source": "ngram-cache", "position": "0"}
    assert value("ngramspec:source_accepted_tokens_per_pos_total", first)


def test_what_sources_have_saved_is_told_where_passes_are_timed() -> None:
    registry = CollectorRegistry()
    engine = Engine(FakeTarget(), "suffix,ngram-mod", policy=AutoPolicy())
    registry.register(EngineCollector(engine, "tiny"))
    engine.generate([request(max_tokens=200)] * 2)
    for name, seconds in engine.seconds_saved().items():
        label = {"source": name}
        assert registry.get_sample_value("ngramspec:source_saved_seconds", label) == seconds
    assert engine.seconds_saved()["suffix"] != 0


def test_a_failing_source_is_counted(registry: CollectorRegistry) -> None:
    class Broken(DraftSource):
        name = "broken"

        def draft(self, slot: int, limit: int) -> Any:
            raise RuntimeError("out of ideas")

    engine = Engine(FakeTarget(), Broken(), slots=1)
    engine.generate([request(max_tokens=5)])
    failing = CollectorRegistry()
    failing.register(EngineCollector(engine, "tiny"))
    assert failing.get_sample_value("ngramspec:source_failures_total", {"source": "broken"}) == 1
    assert registry.get_sample_value("ngramspec:source_failures_total", {"source": "ngram"}) == 0
    for name in ("pool_cells", "suffix_pool_tokens", "successor_pool_contexts"):
        assert failing.get_sample_value(f"ngramspec:{name}") is None  # no pool, no figures


def test_slots_queue_and_pool(engine: Engine, registry: CollectorRegistry) -> None:
    for _ in range(3):
        engine.submit(request(90, max_tokens=100))
    for _ in range(8):
        engine.step()
    value = registry.get_sample_value
    assert value("vllm:num_requests_running", OF_VLLM) == 2
    assert value("vllm:num_requests_waiting", OF_VLLM) == value("ngramspec:queue_length") == 1
    assert value("llamacpp:requests_processing") == 2
    assert value("llamacpp:requests_deferred") == 1
    assert [value("ngramspec:slot_busy", {"slot": slot}) for slot in "01"] == [1, 1]
    assert (value("ngramspec:slot_cached_tokens", {"slot": "0"}) or 0) >= 20
    pool = engine.drafters.pool()
    assert pool is not None
    assert value("ngramspec:pool_cells") == pool.capacity
    assert value("ngramspec:pool_used_cells") == pool.num_used > 0
    for slot in engine.slots():
        assert slot.num_remaining == 100 - slot.num_emitted < 100
    engine.close()
    assert value("vllm:request_success_total", {**OF_VLLM, "finished_reason": "abort"}) == 3
    assert [slot.num_remaining for slot in engine.slots()] == [-1, -1]
    assert (value("llamacpp:n_tokens_max") or 0) > 90


def test_saves_of_the_dynamic_cache_are_counted(
    engine: Engine, registry: CollectorRegistry, tmp_path: Path
) -> None:
    file, value = engine.drafters.dynamic_file, registry.get_sample_value
    assert file is not None
    names = ("dynamic_saves_total", "dynamic_save_failures_total", "dynamic_save_failing")

    def values() -> list[float | None]:
        return [value(f"ngramspec:{name}") for name in names]

    assert values() == [0, 0, 0]
    engine.generate([request(max_tokens=60)])
    (tmp_path / "learned.ngc").mkdir()
    for _ in range(2):
        with pytest.raises(FormatError):
            file.save()
    assert values() == [0, 2, 1]
    (tmp_path / "learned.ngc").rmdir()
    assert file.save()
    assert values() == [1, 2, 0]
    assert not file.save()
    assert values() == [1, 2, 0]


def test_rates_are_those_since_the_last_scrape(engine: Engine, registry: CollectorRegistry) -> None:
    engine.generate([request(max_tokens=60)])
    first = families(generate_latest(registry).decode())
    rates = {f.name: f.samples[0].value for f in first if f.name.endswith("tokens_seconds")}
    assert rates["llamacpp:prompt_tokens_seconds"] > 0
    assert rates["llamacpp:predicted_tokens_seconds"] > 0
    assert registry.get_sample_value("llamacpp:predicted_tokens_seconds") == 0


def test_no_counter_goes_down_while_drafts_are_verified(
    engine: Engine, registry: CollectorRegistry
) -> None:
    for _ in range(4):
        engine.submit(request(max_tokens=100))
    before: dict[tuple[str, ...], float] = {}
    while engine.step():
        for family in families(generate_latest(registry).decode()):
            for sample in family.samples if family.type != "gauge" else ():
                key = (sample.name, *map(str, sorted(sample.labels.items())))
                assert sample.value >= before.get(key, 0), key
                before[key] = sample.value
    assert len(before) > 100


def test_positions_of_long_drafts_are_not_all_told(
    engine: Engine, registry: CollectorRegistry
) -> None:
    engine.stats().count_draft(500, 400)
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    assert registry.get_sample_value(name, {"position": str(MAX_POSITIONS - 1)}) == 1
    assert registry.get_sample_value(name, {"position": str(MAX_POSITIONS)}) is None


def test_the_client_chooses_the_format(engine: Engine, client: TestClient) -> None:
    engine.generate([request(max_tokens=30)])
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 0 <= time.time() - int(plain.headers["process-start-time-unix"]) < 3600
    opened = client.get(
        "/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"}
    )
    assert opened.headers["content-type"].startswith("application/openmetrics-text")
    assert opened.text.endswith("# EOF\n")
    names = {family.name for family in families(plain.text)}
    assert {family.name for family in open_families(opened.text)} == names


def test_two_apps_in_one_process_do_not_share_metrics() -> None:
    engines = [Engine(FakeTarget(), None, slots=1) for _ in range(2)]
    engines[0].generate([request(max_tokens=5)])
    texts = [client_of(engine, metrics=True).get("/metrics").text for engine in engines]
    assert "llamacpp:tokens_predicted_total 5.0" in texts[0]
    assert "llamacpp:tokens_predicted_total 0.0" in texts[1]


def test_metrics_are_off_unless_asked_for(engine: Engine) -> None:
    refused = client_of(engine).get("/metrics")
    assert refused.status_code == 501
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == (501, "not_supported_error")
    assert "--metrics" in error["message"]


def test_where_keys_protect_the_server_they_protect_the_metrics_too(engine: Engine) -> None:
    for settings in ({}, {"metrics": True}):
        client = client_of(engine, api_keys=("secret",), **settings)
        assert client.get("/metrics").status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert client.get("/metrics", headers=headers).status_code == 200


def test_pools_of_namespaces_are_told_together(engine: Engine, registry: CollectorRegistry) -> None:
    engine.generate([request(max_tokens=90, speculation=Speculation(namespace="b"))])
    pools, value = engine.drafters.pools(), registry.get_sample_value
    assert value("ngramspec:pool_used_cells") == pools[""].num_used == 0
    assert value("ngramspec:namespace_pools") == 1
    assert value("ngramspec:namespace_pool_used_cells") == pools["b"].num_used > 0
    total = sum(engine.drafters.nbytes().values())
    assert value("ngramspec:kept_bytes") == total > pools["b"].nbytes


def test_the_pool_of_recycle_tells_what_it_holds() -> None:
    engine, registry = Engine(FakeTarget(), "suffix,recycle", slots=2), CollectorRegistry()
    registry.register(EngineCollector(engine, "tiny"))
    value = registry.get_sample_value
    engine.generate([request(max_tokens=90)])
    engine.generate([request(max_tokens=90, speculation=Speculation(namespace="b"))])
    pool, others = engine.drafters.successor_pool(), engine.drafters.successor_pools()
    assert pool is not None
    name = "ngramspec:successor_pool"
    assert value(f"{name}_contexts") == pool.num_entries > 5
    assert value(f"{name}_capacity_contexts") == pool.capacity
    assert value(f"{name}_bytes") == pool.nbytes
    assert value(f"{name}_observed_contexts_total") == pool.num_observed > 20
    assert value(f"{name}_evicted_contexts_total") == pool.num_evicted
    assert value("ngramspec:namespace_successor_pool_contexts") == others["b"].num_entries > 5
    assert value("ngramspec:namespace_pools") == 1
