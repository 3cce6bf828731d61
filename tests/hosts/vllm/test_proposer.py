"""The proposer for vLLM on recorded calls of vLLM's runner, its options, ranks and failures."""

from __future__ import annotations

import ast
import importlib
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.logits import teach
from helpers.paths import ROOT
from helpers.vllm_calls import CALLS, batch_of
from helpers.vllm_engine import config
from helpers.vllm_scenario import OPTIONS
from ngramspec import create_drafter
from ngramspec.errors import InputError
from ngramspec.hosts.vllm import Proposer
from ngramspec.hosts.vllm.counters import SourceCounters
from ngramspec.hosts.vllm.proposer import StepClock
from ngramspec.hosts.vllm.request_options import read_options
from ngramspec.hosts.vllm.settings import Options, read_settings
from ngramspec.hosts.vllm.suffix import BatchProposer, suffix_proposer


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTER", "POLICY", "STATIC", "POOL", "LOG_SECONDS", "VLLM"):
        monkeypatch.delenv(f"NGRAMSPEC_{name}", raising=False)


def replay(proposer: Any, by_id: bool = False) -> Iterator[tuple[Any, list[list[int]]]]:
    for call in CALLS:
        batch = batch_of(call)
        if by_id:
            yield call, proposer.propose(4, batch, call["sampled"])
        else:
            table = batch.token_ids_cpu
            yield call, proposer.propose(call["sampled"], batch.num_tokens_no_spec, table)


def drafts_by_id() -> list[list[list[int]]]:
    """What one drafter per request would have drafted."""
    alone: dict[str, Any] = {}
    by_call = []
    for call in CALLS:
        for name in set(alone) - set(call["ids"]):
            alone[name][1] = []  # its draft will not be verified
        drafts = []
        for name, text, new in zip(call["ids"], call["texts"], call["sampled"], strict=True):
            if not new:
                drafts.append([])
                continue
            if name not in alone:
                drafter = create_drafter("ngram-simple", size_n=3, size_m=4)
                drafter.begin(0, text[: -len(new)])
                alone[name] = [drafter, []]
            drafter, pending = alone[name]
            length = drafter.length(0)
            right = 0
            for token, drafted in zip(text[length:-1], pending, strict=False):
                if token != drafted:
                    break
                right += 1
            drafter.accept(0, text[length:], right)
            alone[name][1] = drafter.propose(0, 4).tolist()
            drafts.append(alone[name][1])
        by_call.append(drafts)
    return by_call


def test_drafts_are_those_of_a_drafter_per_request() -> None:
    expected = drafts_by_id()
    assert sum(len(draft) for drafts in expected for draft in drafts) > 20
    assert [step for _, step in replay(Proposer(config(**OPTIONS)))] == expected
    assert [call["drafts"] for call in CALLS] == expected


def test_the_proposer_that_knows_ids_drafts_the_same() -> None:
    assert [step for _, step in replay(BatchProposer(config(**OPTIONS)), True)] == drafts_by_id()


@pytest.mark.parametrize("drafter", ["suffix", "ngram-mod,ngram-cache", "suffix,ngram-map-k4v"])
@pytest.mark.parametrize("policy", ["auto", "fixed"])
def test_any_drafter_and_policy_serves(drafter: str, policy: str) -> None:
    for by_id, kind in ((False, Proposer), (True, BatchProposer)):
        proposer = kind(config(drafter=drafter, policy=policy))
        for call, drafts in replay(proposer, by_id):
            assert len(drafts) == len(call["sampled"])
            assert all(len(draft) <= 4 for draft in drafts)
            assert all(type(token) is int for draft in drafts for token in draft)
            assert all(s or not d for s, d in zip(call["sampled"], drafts, strict=True))


def test_recycle_drafts_what_a_file_of_its_pool_holds(tmp_path: Path) -> None:
    path = tmp_path / "said.pool"
    drafter = create_drafter("recycle", pool=path, any_tokenizer=True)
    for call in CALLS:
        for text in call["texts"]:
            drafter.begin(0, text)
            teach(drafter)
    del drafter  # which saves the file
    own = {"pool": str(path), "any_tokenizer": True}
    proposer = Proposer(config(drafter="recycle", policy="fixed", params={"recycle": own}))
    assert any(draft for _, drafts in replay(proposer) for draft in drafts)


def test_equal_steps_give_equal_drafts_on_every_rank_of_the_external_launcher() -> None:
    by_rank = []
    for rank in (0, 1):
        facts = config(drafter="suffix")
        parallel = facts.parallel_config
        parallel.distributed_executor_backend, parallel.rank = "external_launcher", rank
        parallel.world_size = parallel.tensor_parallel_size = 2
        proposer = Proposer(facts)
        by_rank.append([drafts for _, drafts in replay(proposer)])
        policy = proposer.drafts.drafter.policy  # type: ignore[union-attr]
        assert policy is not None
        assert policy.costs().cost(1) == pytest.approx(1.0)  # it knows of no time
    assert by_rank[0] == by_rank[1]
    assert any(draft for drafts in by_rank[0] for draft in drafts)


@pytest.mark.parametrize(
    ("rank", "stage", "context", "drafts"),
    [(0, 4, 1, True), (1, 4, 1, False), (4, 4, 1, True), (6, 4, 1, False), (4, 4, 2, False)],
)
def test_only_the_rank_drafts_whose_drafts_are_used(
    rank: int, stage: int, context: int, drafts: bool
) -> None:
    facts = config()
    parallel = facts.parallel_config
    parallel.rank, parallel.tensor_parallel_size = rank, stage
    parallel.prefill_context_parallel_size, parallel.world_size = context, 8
    parallel.distributed_executor_backend = "mp"
    assert (Proposer(facts).drafts is not None) is drafts
    for _, proposals in replay(Proposer(facts)):
        assert drafts or not any(proposals)
    for _, proposals in replay(BatchProposer(facts), True):
        assert drafts or not any(proposals)


def test_files_that_change_are_refused_where_ranks_must_agree(tmp_path: Path) -> None:
    facts = config(drafter="ngram-mod", pool=str(tmp_path / "pool"), n_match=8)
    Proposer(facts)
    facts.parallel_config.distributed_executor_backend = "external_launcher"
    facts.parallel_config.world_size = 2
    with pytest.raises(InputError, match="external launcher"):
        Proposer(facts)


def test_a_failure_is_logged_once_and_ends_drafting(caplog: pytest.LogCaptureFixture) -> None:
    proposer = Proposer(config())
    batch = batch_of(CALLS[0])
    wrong = batch.token_ids_cpu.astype(np.int64)
    with caplog.at_level(logging.ERROR, "vllm.ngramspec"):
        for _ in range(3):
            drafts = proposer.propose(CALLS[0]["sampled"], batch.num_tokens_no_spec, wrong)
            assert drafts == [[], [], [], []]
    assert len(caplog.records) == 1
    assert "drafts nothing from now on" in caplog.text
    keyed = BatchProposer(config())
    batch.token_ids_cpu = wrong
    assert keyed.propose(4, batch, CALLS[0]["sampled"]) == [[], [], [], []]
    assert len(caplog.records) == 2


def test_no_rows_are_no_drafts() -> None:
    assert Proposer(config()).propose([], np.zeros(0, np.int32), np.zeros((0, 9), np.int32)) == []


def test_options_come_from_the_configuration_and_from_the_environment() -> None:
    environment = {
        "NGRAMSPEC_DRAFTER": "ngram-mod",
        "NGRAMSPEC_POLICY": "fixed",
        "NGRAMSPEC_NAMESPACES": "3",
        "NGRAMSPEC_PARAMS": '{"ngram-mod": {"n_match": 9}}',
        "NGRAMSPEC_ANY_TOKENIZER": "true",
        "NGRAMSPEC_UNKNOWN": "x",
    }
    settings = read_settings(config(policy="auto", n_max=5), environment)
    assert settings.options.drafter == "ngram-mod"
    assert settings.options.policy == "auto"  # the configuration goes first
    assert settings.options.namespaces == 3
    assert settings.params == {"ngram-mod": {"n_match": 9, "n_max": 5, "any_tokenizer": True}}
    assert (settings.max_draft, settings.max_rows, settings.max_length) == (4, 8, 160)
    assert read_settings(SimpleNamespace(**{**vars(config()), "additional_config": {}}), {}).options


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"drafter": "sufix"}, "suffix"),
        ({"policy": "gate"}, "policy"),
        ({"namespaces": -1}, "namespaces"),
        ({"namespaces": True}, "namespaces"),
        ({"log_seconds": "often"}, "log_seconds"),
        ({"params": {"suffix": 3}}, "params"),
        ({"params": {"ngram-mod": {}}}, "ngram-mod"),
        ({"capcity": 5}, "capacity"),
        ({"policies": "auto"}, "policy"),
        ({"drafter": "ngram-simple", "size_n": 0}, "size_n"),
        ({"drafter": "recycle"}, "recycle learns from the target's logits, which vLLM never shows"),
        ({"drafter": "suffix,recycle", "params": {"recycle": {"top": 4}}}, "leave it out"),
    ],
)
def test_wrong_options_are_refused_at_the_start(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        Proposer(config(**options))


def test_wrong_texts_of_the_environment_are_named() -> None:
    with pytest.raises(InputError, match="NGRAMSPEC_NAMESPACES"):
        read_settings(config(), {"NGRAMSPEC_NAMESPACES": "many"})
    facts = config()
    facts.additional_config = {"ngramspec": ["suffix"]}
    with pytest.raises(InputError, match="additional_config"):
        read_settings(facts, {})


def test_statistics_of_a_local_tokenizer_are_checked(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    facts = config()
    facts.model_config.tokenizer = str(tmp_path)
    tokenizer = read_settings(facts, {}).params["suffix"]["tokenizer"]
    assert tokenizer == str(tmp_path / "tokenizer.json")


def test_the_suffix_class_is_vllms_for_isinstance_checks() -> None:
    class Theirs:
        def __init__(self, vllm_config: Any) -> None:
            raise AssertionError

    proposer = suffix_proposer(Theirs)(config())
    assert isinstance(proposer, Theirs)
    assert proposer.is_ngramspec


def test_time_is_learnt_from_passes_whose_rows_are_known() -> None:
    seen: list[tuple[int, float]] = []
    policy: Any = SimpleNamespace(observe=lambda *arguments: seen.append(arguments))
    clock = StepClock()
    for steady, tokens in ((False, 5), (True, 7), (False, 9), (True, 0), (True, 3)):
        clock.stop()
        clock.start(tokens, steady, policy)
    assert [tokens for tokens, _ in seen] == [5, 9]
    assert all(seconds > 0 for _, seconds in seen)


def test_figures_by_source_are_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    drafter = create_drafter("ngram-simple", size_n=2, size_m=4)
    figures = SourceCounters(drafter.stats, 10, lambda: now)
    drafter.begin(0, [1, 2, 3, 1, 2])
    drafter.propose(0, 4)
    drafter.accept(0, [3, 9], 1)
    with caplog.at_level(logging.INFO, "vllm.ngramspec"):
        figures.report()
        assert not caplog.records
        now = 10.0
        figures.report()
        now = 20.0
        figures.report()  # nothing new
    assert [record.getMessage() for record in caplog.records] == [
        "Drafts of ngram-simple: 1, Drafted: 4 tokens, Accepted: 1 tokens (25.0%)"
    ]


def test_figures_reach_prometheus_where_processes_share_it(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    code = """
import sys
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from ngramspec import create_drafter
from ngramspec.hosts.vllm.counters import SourceCounters
for run in range(2):  # a second proposer in one process uses the same counters
    d = create_drafter("ngram-simple", size_n=2, size_m=4)
    figures = SourceCounters(d.stats, 1e-9)
    d.begin(0, [1, 2, 3, 1, 2]); d.propose(0, 4); d.accept(0, [3, 9], 1)
    figures.report()
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 'ngramspec:draft_tokens_total{source="ngram-simple"} 8.0' in shown
    assert 'ngramspec:accepted_tokens_total{source="ngram-simple"} 2.0' in shown


def test_importing_the_adapter_imports_no_engine() -> None:
    code = "import sys, ngramspec.hosts.vllm.plugin as p; p.register(); print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert not {"vllm", "torch", "prometheus_client"} & set(shown.split())


def test_the_page_shows_options_that_are_taken() -> None:
    page = (ROOT / "docs" / "engines" / "vllm.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.S | re.M)
    shown = {
        word.arg: ast.literal_eval(word.value)
        for block in blocks[:2]
        for call in ast.walk(ast.parse(block))
        if isinstance(call, ast.Call)
        for word in call.keywords
    }
    module, _, name = shown["speculative_config"]["model"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is Proposer
    settings = read_settings(config(**shown["additional_config"]["ngramspec"]), {})
    assert settings.options.drafter == "suffix"
    assert read_options(SimpleNamespace(extra_args=shown["extra_args"])).namespace == "tenant-7"


def test_options_have_defaults_that_are_valid() -> None:
    assert Options().drafter == "suffix"
