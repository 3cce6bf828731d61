"""The peers: real ones where they are installed, otherwise stand-ins with their interface."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.programs import write_program
from helpers.recordings import BENCHMARK_DATA
from helpers.replays import tokens
from ngramspec.costs import PROFILES
from ngramspec.errors import BackendError
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.sets import replay
from peers import ORACLE, ORACLE_OF, PEERS, PeerMissing, open_peer
from peers.record import load_peers
from peers.runs import PeerPlaces, run_peers

SET = "structured.spider_sql"
INSTALLED = {
    "lcp-pld(2,10)": "llama_cpp",
    "hf-pld(3,10)": "transformers",
    "vllm-ngram(2-5,k5)": "vllm",
    "arctic-default": "arctic_inference",
    "arctic-f4p0": "arctic_inference",
}
PROPOSER = """
import torch
from vllm.config import VllmConfig

class NgramProposer:
    def __init__(self, vllm_config: VllmConfig):
        self.k = vllm_config.speculative_config.num_speculative_tokens
        self.max_model_len = vllm_config.model_config.max_model_len
        assert vllm_config.scheduler_config.max_num_seqs == 1
        assert vllm_config.parallel_config.tensor_parallel_size == 1

    def propose(self, k, sampled, lengths, ids, slots: torch.Tensor | None = None):
        assert k <= self.k and len(sampled) == 1 and lengths[0] == ids.shape[1]
        return [ids[0, :k].tolist()]
"""


@pytest.mark.parametrize("name", INSTALLED)
def test_an_installed_peer_drafts_as_recorded(trace_of: Callable[..., Trace], name: str) -> None:
    if importlib.util.find_spec(INSTALLED[name]) is None:
        pytest.skip(f"{INSTALLED[name]} is not installed")
    trace = trace_of(SET)
    recorded, _ = load_peers(BENCHMARK_DATA / "peers.json", [trace], cold=False)
    tally = replay(trace, open_peer(PEERS[name]), PROFILES).first
    assert tally.draft_lengths == recorded[SET][name].draft_lengths
    assert tally.accepted_lengths == recorded[SET][name].accepted_lengths


def test_prompt_lookup_reaches_its_known_figures(trace_of: Callable[..., Trace]) -> None:
    pytest.importorskip("llama_cpp", reason="the peer is llama-cpp-python")
    figures = replay(trace_of(SET), open_peer(PEERS["lcp-pld(2,10)"]), PROFILES).as_json(PROFILES)
    assert figures["mean_accepted_length"] == pytest.approx(1.317, abs=0.001)
    assert figures["acceptance"] == pytest.approx(0.071, abs=0.001)
    assert figures["drafted_per_token"] == pytest.approx(3.38, abs=0.01)
    speedups = {"h100-8b": 1.3, "moe": 0.891, "cpu": 0.611}
    for profile, speedup in speedups.items():
        assert figures["modelled_speedup"][profile] == pytest.approx(speedup, abs=0.001)


def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("llama_cpp.llama_speculative", "torch", "arctic_inference.suffix_decoding"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("lcp-pld(2,10)", "hf-pld(3,10)", "arctic-f2"):
        with pytest.raises(PeerMissing, match=r"import of|No module named"):
            open_peer(PEERS[name])


def test_vllms_file_runs_without_the_rest_of_vllm(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("vllm/v1/spec_decode/ngram_proposer.py", PROPOSER)
    before = {name: sys.modules.get(name) for name in ("vllm", "vllm.config", "torch")}
    peer = PEERS["vllm-ngram(2-5,k5)"]
    source = tmp_path / "ngram_proposer.py"
    source.write_text(PROPOSER)
    for file in (wheel, source):
        player = open_peer(peer, vllm_wheel=file).open(PROFILES["cpu"])
        player.begin(tokens(*range(100)))
        player.accept(tokens(100), 0)
        assert player.propose(9).tolist() == [0, 1, 2, 3, 4]
        assert player.propose(2).tolist() == [0, 1]
        assert player.nbytes() == 0
        player.end()
    assert {name: sys.modules.get(name) for name in before} == before
    for other in (tmp_path / "none.whl", tmp_path / "a.whl"):
        (tmp_path / "a.whl").write_bytes(b"no wheel")
        with pytest.raises(PeerMissing, match=other.name):
            open_peer(peer, vllm_wheel=other)


class Cache:
    """ArcticInference's interface; notes the calls."""

    calls: list[Any]

    def __init__(self, depth: int) -> None:
        tree = types.SimpleNamespace(estimate_memory=lambda: 21)
        self._global_tree, self._local_trees = tree, {0: tree}

    def start_request(self, request: int, prompt: Any) -> None:
        self.calls.append(("start", request, prompt.tolist()))

    def add_active_response(self, request: int, emitted: Any) -> None:
        self.calls.append(("add", request, emitted.tolist()))

    def speculate(self, request: int, context: Any, **settings: Any) -> Any:
        self.calls.append(("speculate", request, len(context), settings))
        return types.SimpleNamespace(token_ids=[7, 8])

    def stop_request(self, request: int) -> None:
        self.calls.append(("stop", request))


def test_arctics_cache_is_called_request_by_request(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("arctic_inference.suffix_decoding")
    module.SuffixDecodingCache = Cache
    Cache.calls = []
    monkeypatch.setitem(sys.modules, "arctic_inference", types.ModuleType("arctic_inference"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    player = open_peer(PEERS[ORACLE_OF]).open(PROFILES["cpu"])
    player.begin(tokens(*range(70)))
    player.accept(tokens(1), 0)
    draft = player.propose(1)
    assert (draft.dtype, draft.tolist()) == (np.int32, [7, 8])
    assert player.nbytes() == 42
    player.end()
    settings = {"max_spec_tokens": 64, "max_spec_factor": 4.0, "min_token_prob": 0.0}
    assert Cache.calls == [
        ("start", 0, list(range(70))),
        ("add", 0, [1]),
        ("speculate", 0, 64, settings),
        ("stop", 0),
    ]


def test_peers_run_in_another_process(trace_of: Callable[..., Trace]) -> None:
    pytest.importorskip("llama_cpp", reason="the peer is llama-cpp-python")
    trace, seen = trace_of(SET, 5), []
    runs = run_peers([trace], PeerPlaces(), on_request=lambda: seen.append(1))
    here = replay(trace, open_peer(PEERS["lcp-pld(2,10)"]), PROFILES).first
    there = runs.tallies[SET]["lcp-pld(2,10)"]
    assert there.draft_lengths == here.draft_lengths
    assert there.accepted_lengths == here.accepted_lengths
    assert set(runs.missing) | set(runs.tallies[SET]) - {ORACLE} == set(PEERS)
    assert len(seen) == 5 * len(set(runs.tallies[SET]) - {ORACLE})
    assert "no program" in runs.missing["llamacpp-ngram-mod"]


@pytest.fixture
def without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first interpreter have none: to try them all takes seconds."""
    says = f"print({json.dumps(json.dumps({'missing': {'hf-pld(3,10)': 'no torch'}}))})"
    first = types.SimpleNamespace(executable=str(write_program(tmp_path / "first", says)))
    monkeypatch.setattr("peers.runs.sys", first)


@pytest.mark.usefixtures("without_peers")
def test_the_process_that_fails_is_named(trace_of: Callable[..., Trace], tmp_path: Path) -> None:
    python = write_program(tmp_path / "python", "sys.exit('no numpy here')")
    with pytest.raises(BackendError, match=r"the peers in .*python failed: no numpy here"):
        run_peers([trace_of(SET, 2)], PeerPlaces(pythons=(str(python),)))


@pytest.mark.usefixtures("without_peers")
def test_compiled_drafters_by_a_program(trace_of: Callable[..., Trace], tmp_path: Path) -> None:
    trace = trace_of(SET, 2)
    summary = {"sessions": 2, "steps": 3, "drafts": 1, "begin_us_per_session": 2.0,
               "draft_us_per_step": 1.0, "accept_us_per_draft": 4.0}  # fmt: skip
    body = (
        f"assert sys.argv[2:] == ['1', 'fresh=1'] and len(sys.stdin.readlines()) == 2\n"
        f"print('0 0 5 7 0 :\\n0 0 6 8 1 : 4 5\\n0 1 5 7 0 :')\n"
        f"print('a line', file=sys.stderr)\n"
        f"print({json.dumps(json.dumps(summary))}, file=sys.stderr)"
    )
    program = write_program(tmp_path / "replay", body)
    runs = run_peers([trace], PeerPlaces(llamacpp=program), cold=True)
    tally = runs.tallies[SET]["llamacpp-ngram-cache"]
    assert (tally.draft_lengths, tally.accepted_lengths) == ((2, 0, 1), (2, 1))
    assert (tally.begin_ns, tally.step_ns, tally.nbytes) == (4000, 7000, None)
    for wrong in ("sys.exit('broken')", "print('{}', file=sys.stderr)", "pass"):
        write_program(program, wrong)
        with pytest.raises(BackendError, match=r"replay ngram-simple failed"):
            run_peers([trace], PeerPlaces(llamacpp=program))
