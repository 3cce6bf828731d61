"""ngramspec bench replay: tables, JSON, files, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers.cli import assert_one_error
from helpers.recordings import BENCHMARK_DATA, TRACES
from ngramspec.costs import PROFILES, CostTable, save_costs
from ngramspec.models import embedded_model

SQL = TRACES / "structured.spider_sql.txt.xz"
RECORD = BENCHMARK_DATA / "peers.json"
FIGURES = {"mean_accepted_length", "acceptance", "drafted_per_token", "us_per_step"}
Run = Callable[..., Result]


def report_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_json_of_the_default(bench_replay: Run) -> None:
    report = report_of(bench_replay(TRACES, "--limit", "2", "--json"))
    assert len(report["sets"]) == 12
    for row in report["sets"].values():
        assert row.keys() >= FIGURES
        assert list(row["modelled_speedup"]) == list(PROFILES)
    assert "drafters" not in report


def test_several_drafters(bench_replay: Run) -> None:
    arguments = (SQL, "--limit", "30", "--drafter", "ngram-cache", "--spec-type", "ngram-mod")
    report = report_of(bench_replay(*arguments, "--json"))
    assert list(report["drafters"]) == ["ngram-cache", "ngram-mod"]
    assert report["sets"] == report["drafters"]["ngram-cache"]["sets"]
    text = bench_replay(*arguments).stdout
    assert text.startswith("structured.spider_sql: 30 requests in order")
    assert "ngram-cache" in text
    assert "*: the best for these costs" in " ".join(text.split())


def test_tables_fit_80_columns_and_wider_ones_are_one(
    bench_replay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = bench_replay(TRACES, "--limit", "1").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "reasoning.misguided_attention" in text
    assert text.count("structured.spider_sql") == 2
    monkeypatch.setenv("COLUMNS", "120")
    assert bench_replay(TRACES, "--limit", "1").stdout.count("structured.spider_sql") == 1


def test_text_is_read_with_a_tokenizer(bench_replay: Run, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="the tokenizer comes from llama-cpp-python")
    path = tmp_path / "chat.jsonl"
    path.write_text('{"prompt": "def area(width", "completion": "def area(width, height):"}\n')
    result = bench_replay(path)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"no --model or --tokenizer given: using the embedded model {embedded_model().name}",
        f"{path}: prompts and answers: 1 to replay",
    ]
    for option in ("--tokenizer", "--model"):
        report = report_of(bench_replay(path, option, embedded_model(), "--json"))
        assert report["sets"]["chat"]["tokens"] > 3


def test_a_measured_table_is_one_more_profile(bench_replay: Run, tmp_path: Path) -> None:
    costs = tmp_path / "mine.json"
    save_costs(CostTable(((1, 0.01), (9, 0.02)), "mine"), costs)
    report = report_of(bench_replay(SQL, "--limit", "9", "--costs", costs, "--json"))
    assert list(report["sets"]["structured.spider_sql"]["modelled_speedup"])[-1] == "mine"
    save_costs(CostTable(((1, 0.01),), "moe"), costs)
    assert_one_error(bench_replay(SQL, "--costs", costs), "already a profile named 'moe'", 2)
    costs.write_text("{}")
    assert_one_error(bench_replay(SQL, "--costs", costs), "not a table of costs", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'TRACES...'"),
        (("none.txt",), "none.txt: No such file"),
        ((SQL, SQL.parents[1] / "logits"), "no traces"),
        ((SQL, "--drafter", "ngram-mood"), "did you mean ngram-mod"),
        ((SQL, "--limit", "0"), "0 is not in the range"),
    ],
)
def test_usage_errors(bench_replay: Run, arguments: tuple[Any, ...], message: str) -> None:
    assert_one_error(bench_replay(*arguments), message, 2)


def test_damaged_traces_are_one_line(bench_replay: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3\n4 x\n")
    assert_one_error(bench_replay(tmp_path), "a.txt, line 2", 1)


def test_help_has_examples(bench_replay: Run) -> None:
    text = bench_replay("--help").stdout
    assert "ngramspec bench replay benchmarks/data/traces" in text
    options = text.split("Examples:")[0]
    assert max(map(len, options.splitlines())) <= 80
