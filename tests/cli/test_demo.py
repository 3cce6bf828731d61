"""The demo with one task: what it prints, that texts are equal, that a difference is an error."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import succeed
from ngramspec import LLM
from ngramspec.engine.exactness import Exactness, Setting
from ngramspec.errors import BackendError
from ngramspec.lab.e2e.bench import Bench, Run
from ngramspec.lab.e2e.tasks import CLOSE, FILE, INVOICE, PARTS, READ_TABLE, TASKS
from ngramspec.models import embedded_model

RUN = Bench._run
QUICK = ("demo", "--task", "repeat", "--repeats", "1", "--max-tokens", "60")


@pytest.fixture(scope="module")
def one_drafter() -> dict[str, Any]:
    result = succeed(*QUICK, "--drafter", "ngram-simple", "--json")
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def cheating(bench: Bench, mode: Any, request: Any, *prompt: Any) -> Run:
    """Return a run, with a wrong token in it if something drafts."""
    run = RUN(bench, mode, request, *prompt)
    ids = run.token_ids
    if not mode.names or len(ids) < 10:
        return run
    return dataclasses.replace(run, token_ids=(*ids[:7], ids[7] + 1, *ids[8:]))


def test_json_has_settings_summary_and_tasks(one_drafter: dict[str, Any]) -> None:
    assert set(one_drafter) == {
        "version", "model", "settings", "exact_batch", "exact", "timed",
    }  # fmt: skip
    assert 2 <= one_drafter["exact_batch"] < 64
    assert one_drafter["settings"] == {"repeats": 1, "max_tokens": 60, "threads": 1}
    for report in (one_drafter["exact"], one_drafter["timed"]):
        assert [row["drafter"] for row in report["summary"]] == ["none", "ngram-simple"]
        (task,) = report["prompts"]
        assert task["name"] == "repeat"
        assert task["text"].startswith("```python\ndef push(self, job, priority=0):")


def test_drafts_help_and_keep_the_text(one_drafter: dict[str, Any]) -> None:
    assert one_drafter["exact"]["identical"] is True
    (_, exact), (plain, drafted) = (one_drafter[name]["summary"] for name in ("exact", "timed"))
    assert plain["ratio"] == 1.0
    assert plain["drafted"] == plain["accepted"] == 0
    assert exact["identical_texts"] == exact["texts"] == 1
    ratio = drafted["tokens_per_second"] / plain["tokens_per_second"]
    assert drafted["ratio"] == pytest.approx(ratio, rel=1e-3)
    assert drafted["accepted"] > 20
    assert 0.5 < drafted["accepted"] / drafted["drafted"] <= 1
    runs = one_drafter["timed"]["prompts"][0]["runs"]
    assert runs[1]["parameters"] == {"ngram-simple": {"size_n": 4, "size_m": 10}}
    assert one_drafter["exact"]["prompts"][0]["runs"][1]["first_difference"] is None
    ((one,), (other,)) = (outcome["runs"] for outcome in runs)
    assert other["steps"] < one["steps"] / 2
    mean = (other["tokens"] - 1) / other["steps"]
    assert drafted["mean_accepted_length"] == pytest.approx(mean, abs=1e-3)
    assert drafted["draft_us_per_step"] == pytest.approx(
        1e6 * other["draft_seconds"] / other["steps"], rel=0.02
    )
    assert all(outcome["tokens_per_second"] > 0 for outcome in runs)


def test_another_model_gets_the_same_tables(tmp_path: Path) -> None:
    path = tmp_path / "another.gguf"
    path.symlink_to(embedded_model())
    shown = succeed(*QUICK, "--drafter", "ngram-simple", "--model", path)
    assert shown.stdout.splitlines()[0].endswith(", model another.gguf")
    assert "All tasks, 1 run, 1 thread" in shown.stdout
    assert "1 of 1 texts equal those without drafts" in shown.stdout
    assert "For so small a" not in shown.stdout  # of the embedded model


def test_the_embedded_model_answers_every_task_right() -> None:
    shown = {
        "rename": READ_TABLE.replace("values", "entry"),
        "repeat": FILE,
        "find": CLOSE,
        "think": INVOICE.replace("item", "entry").replace("entrys", "items"),
    }
    with LLM(exact=True) as llm:  # as the demo compares texts
        answers = llm.chat([task.messages for task in TASKS], temperature=0.0, max_tokens=256)
    texts = {task.name: answer.text for task, answer in zip(TASKS, answers, strict=True)}
    converted = json.loads(texts.pop("convert").strip("`json\n"))
    assert [list(row.values()) for row in converted] == [
        [name, kind, int(count)] for name, kind, count in csv.reader(PARTS.split()[1:])
    ]
    for name, code in shown.items():
        assert texts.pop(name).rpartition("```python\n")[2] == f"{code.strip()}\n```", name
    assert not texts


def check_view(stdout: str, stderr: str) -> None:
    assert stderr == ""  # no progress bar where there is no terminal
    assert "\x1b" not in stdout
    lines = stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("«def push(self, »" in line for line in lines)
    row = next(line for line in lines if line.lstrip().startswith("ngram-mod,ngram-cache"))
    assert re.fullmatch(r" *ngram-mod,ngram-cache +\d+ +[\d.]+x +\d+% +[\d.]+ +\d+ +1/1 *", row)
    assert "1 of 1 texts equal those without drafts" in stdout


def test_view_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = succeed(*QUICK, "--spec-type", "ngram-cache,ngram-mod")  # llama.cpp's name of it
    check_view(result.stdout, result.stderr)


def test_view_in_colour(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    short = (*QUICK, "--drafter", "ngram-simple", "--max-tokens", "30")
    result = succeed(*short)
    assert "\x1b[32m" in result.stdout  # green: accepted draft tokens
    assert "\x1b[1m" in result.stdout  # bold: the model's own
    assert "«" not in result.stdout
    monkeypatch.setenv("NO_COLOR", "1")
    marked = invoke(*short).stdout
    assert "\x1b[32m" not in marked
    assert "«" in marked


def test_lengths_are_fixed_only_where_all_drafters_have_settings() -> None:
    pytest.importorskip("llama_cpp", reason="the model is llama.cpp's")
    from ngramspec.lab.e2e.demo import open_benches

    policies = {
        "suffix": "auto",
        "suffix,ngram-mod": "auto",
        "recycle": "auto",
        "ngram-mod": "fixed",
        "ngram-cache,ngram-simple": "fixed",
    }
    with open_benches(list(policies)) as benches:
        assert {mode.spec: mode.policy for mode in benches.modes[1:]} == policies


def test_tasks_begin_with_one_mode_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    original = Bench._run

    def watched(self: Bench, mode: Any, request: Any, *prompt: Any) -> Run:
        order.append(mode.spec)
        return original(self, mode, request, *prompt)

    monkeypatch.setattr(Bench, "_run", watched)
    short = ("--repeats", "1", "--max-tokens", "4", "--json")
    tasks = ("--task", "rename", "--task", "repeat", "--drafter", "ngram-simple")
    succeed("demo", *tasks, *short)
    warm_up = ["none", "ngram-simple"]
    rounds = [order[at : at + 2] for at in range(0, len(order), 2)]
    # Of each target; of each task the bit-exact round and the timed one.
    assert rounds == [*[warm_up] * 2, *[warm_up] * 2, *[warm_up[::-1]] * 2]


def test_drafts_stay_within_what_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    exactness = Exactness(Setting(), {"alone": {1: 0, 2: 0, 3: 0, 4: 1}})
    monkeypatch.setattr("ngramspec.llamacpp.exact.find_exact", lambda *_: exactness)
    result = succeed(*QUICK, "--drafter", "ngram-simple", "--json")
    report = json.loads(result.stdout)
    (run,) = report["exact"]["prompts"][0]["runs"][1]["runs"]
    assert report["exact_batch"] == 3
    assert 0 < run["drafted"] <= 2 * run["steps"]


def test_where_no_setting_is_exact_a_line_says_so(
    invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_none(*_: Any) -> None:
        raise BackendError("no setting is exact for this model")

    monkeypatch.setattr("ngramspec.llamacpp.exact.find_exact", find_none)
    monkeypatch.setattr(Bench, "_run", cheating)
    quick = (*QUICK, "--drafter", "ngram-cache")
    result = succeed(*quick)
    assert result.stderr == (
        "texts are compared as they are timed: no setting is exact for this model\n"
    )
    assert "in the\nbit-exact setting" not in result.stdout
    assert "Times are without flash attention; there 0 of 1 are equal" in result.stdout
    report = json.loads(invoke(*quick, "--json").stdout)
    assert (report["exact_batch"], report["exact"]["identical"]) == (0, False)


def test_text_that_differs_is_an_error(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "_run", cheating)
    result = invoke(*QUICK, "--drafter", "ngram-cache", "--json")
    assert result.exit_code == 1
    assert "Error: task repeat, ngram-cache: the texts part at token 8" in result.stderr
    report = json.loads(result.stdout)
    assert report["exact"]["identical"] is False
    assert report["exact"]["prompts"][0]["runs"][1]["first_difference"] == 7


def test_ctrl_c_shows_what_was_measured(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def interrupted(bench: Bench, mode: Any, request: Any, *prompt: Any) -> Run:
        runs.append(mode)
        if len(runs) == 9:  # 4 to warm up, 2 whose texts are compared, a round, half of another
            signal.raise_signal(signal.SIGINT)
        return RUN(bench, mode, request, *prompt)

    monkeypatch.setattr(Bench, "_run", interrupted)
    line = ("demo", "--repeats", "9", "--max-tokens", "4", "--drafter", "ngram-simple")
    result = invoke(*line)
    assert result.exit_code == 130, result.output
    assert len(runs) == 9
    assert "All tasks, 1 run, 1 thread" in result.stdout
