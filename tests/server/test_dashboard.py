"""The Grafana dashboard: importable, made by its tool, and about metrics that exist."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.paths import ROOT

pytest.importorskip("prometheus_client", reason="needs the extra 'server'")

from prometheus_client import CollectorRegistry, ProcessCollector

import ngramspec
from helpers.fake_target import FakeTarget
from ngramspec.engine import Engine, Request
from ngramspec.server.http.connections import Traffic
from ngramspec.server.metrics.collectors import EngineCollector, TrafficCollector

PATH = Path(ngramspec.__file__).parent / "server" / "metrics" / "grafana.json"
METRIC = re.compile(r"\b(?:(?:vllm|llamacpp|ngramspec):|process_)[a-z0-9_]+")
LABEL = re.compile(r'(\w+)=~?"')
GRID_WIDTH = 24


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads(PATH.read_text())


@pytest.fixture(scope="module")
def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.fixture(scope="module")
def scraped() -> dict[str, set[str]]:
    """Return the labels of every metric that a scrape shows."""
    engine = Engine(FakeTarget(), "ngram-mod,ngram-cache", slots=2)
    prompt_ids = np.arange(1, 20, dtype=np.int32)
    engine.generate([Request(prompt_ids=prompt_ids, max_tokens=60)] * 3)
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, "tiny"))
    registry.register(TrafficCollector(Traffic()))
    ProcessCollector(registry=registry)
    labels: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_it_is_what_its_tool_writes() -> None:
    command = (sys.executable, "tools/grafana_dashboard.py", "--check")
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def test_it_has_what_grafana_asks_of_an_import(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] >= 39
    assert dashboard["title"]
    assert "id" not in dashboard  # Grafana gives one
    datasource, instance = dashboard["templating"]["list"]
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    assert instance["datasource"]["uid"] == "${datasource}"


def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    every = dashboard["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    places = [panel["gridPos"] for panel in every]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= GRID_WIDTH
    for a, b in itertools.combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]


def test_every_panel_asks_the_chosen_data_source(panels: list[dict[str, Any]]) -> None:
    assert len(panels) > 20
    for panel in panels:
        assert panel["targets"], panel["title"]
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_every_metric_and_label_exists(
    panels: list[dict[str, Any]], scraped: dict[str, set[str]]
) -> None:
    labels = set().union(*scraped.values()) | {"instance"}  # Prometheus adds it
    for expression in expressions(panels):
        names = METRIC.findall(expression)
        assert names, expression
        for name in names:
            assert name in scraped, expression
        for group in re.findall(r"by \((\w+)\)", expression):
            assert group in labels, expression
        assert set(LABEL.findall(expression)) <= labels, expression


def test_counters_are_rates_and_quantiles_are_of_buckets(panels: list[dict[str, Any]]) -> None:
    for expression in expressions(panels):
        assert expression.count("(") == expression.count(")")
        for name in METRIC.findall(expression):
            counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
            assert (f"rate({name}{{" in expression) == counter, expression
        if "histogram_quantile" in expression:
            assert "by (le)" in expression
            assert "_bucket{" in expression


def test_legends_name_labels_that_the_query_keeps(panels: list[dict[str, Any]]) -> None:
    for panel in panels:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                stays = f"by ({label})" in target["expr"] or label == "instance"
                assert stays, (panel["title"], target["legendFormat"])


def test_all_drafter_metrics_are_shown(
    panels: list[dict[str, Any]], scraped: dict[str, set[str]]
) -> None:
    shown = {name for expression in expressions(panels) for name in METRIC.findall(expression)}
    own = {name for name in scraped if name.startswith(("ngramspec:source_", "ngramspec:pool_"))}
    assert own <= shown
