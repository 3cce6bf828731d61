"""The replays for a GPU run small on a CPU, and their packed passes compute what a model does."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.gpu_scripts import GPU, needs, run, run_here


def full_logits(model: Any, token_ids: Any) -> Any:
    """What transformers' own attention makes of one text."""
    import torch

    with torch.no_grad():
        return model(input_ids=torch.from_numpy(token_ids.astype(np.int64))[None]).logits[0]


def test_a_packed_pass_chooses_what_the_plain_model_does(packed: Any) -> None:
    import torch

    from packed_llama import SHAPES, Cache, random_model

    rows, most = 3, 6
    model = random_model(SHAPES["small"], torch.device("cpu"), torch.float32)
    cache = Cache(SHAPES["small"], rows, 64, torch.device("cpu"), torch.float32)
    passes = packed.Passes(model, cache, most, graphs=True)
    assert not passes.graphs  # there is no device to capture them on
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 2048, size, dtype=np.int32) for size in (7, 1, 19)]
    for row, text in enumerate(texts):
        passes.fill(row, text)
    for lengths in ([0, 6, 2], [0, 0, 0], [5, 1, 0]):
        drafts = rng.integers(0, 2048, (rows, most), dtype=np.int32)
        newest = rng.integers(0, 2048, rows, dtype=np.int32)
        at = np.array([len(text) for text in texts], np.int32)
        passes.launch(newest, at, drafts, np.array(lengths, np.int32))
        chosen = passes.wait().tolist()
        model.set_attn_implementation("eager")
        for row, length in enumerate(lengths):
            whole = np.concatenate([texts[row], newest[row : row + 1], drafts[row, :length]])
            expected = full_logits(model, whole)[len(texts[row]) :].argmax(-1).tolist()
            assert chosen[: length + 1] == expected
            del chosen[: length + 1]
            # One right token of each draft is kept, so that rejected ones must be overwritten.
            texts[row] = whole[: len(texts[row]) + 1 + min(1, length)]
        model.set_attn_implementation("ngramspec_packed")
        assert not chosen
    assert len(passes.timings()) == 3
    assert passes.timings() == []


def test_a_packed_pass_of_trees_chooses_what_the_plain_model_does_on_each_path(
    packed: Any,
) -> None:
    import torch

    from packed_llama import SHAPES, TREE_TOKENS, Cache, random_model

    rows, most = 3, 7
    model = random_model(SHAPES["small"], torch.device("cpu"), torch.float32)
    cache = Cache(SHAPES["small"], rows, 64, torch.device("cpu"), torch.float32)
    passes = packed.Passes(model, cache, most, graphs=False)
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, 2048, size, dtype=np.int32) for size in (7, 1, 19)]
    for row, text in enumerate(texts):
        passes.fill(row, text)
    for lengths in ([3, 7, 0], [5, 2, 6], [7, 7, 7]):
        parents = np.array([[rng.integers(-1, i) for i in range(most)] for _ in range(rows)])
        parents = parents.astype(np.int32)
        drafts = rng.integers(0, 2048, (rows, most), dtype=np.int32)
        newest = rng.integers(0, 2048, rows, dtype=np.int32)
        at = np.array([len(text) for text in texts], np.int32)
        passes.launch(newest, at, drafts, np.array(lengths, np.int32), parents)
        chosen = passes.wait().tolist()
        model.set_attn_implementation("eager")
        moves = []
        for row, length in enumerate(lengths):
            paths: list[list[int]] = []
            for node, parent in enumerate(parents[row, :length]):
                paths.append([*(paths[parent] if parent >= 0 else []), node])
            start = np.append(texts[row], newest[row])
            for path in ([], *paths):
                whole = np.concatenate([start, drafts[row, path]]).astype(np.int32)
                assert chosen.pop(0) == full_logits(model, whole)[-1].argmax().item()
            # The path to the last token is kept: what was a side branch must be moved.
            last = paths[-1] if paths else []
            moves += [(row, at[row] + 1 + node, at[row] + 1 + i) for i, node in enumerate(last)]
            texts[row] = np.concatenate([start, drafts[row, last]]).astype(np.int32)
        passes.move(*np.array(moves, np.int32).T)
        model.set_attn_implementation("ngramspec_packed")
        assert not chosen
    too_many = np.full(1, TREE_TOKENS, np.int32)
    with pytest.raises(ValueError, match="a tree may have 61 tokens, got 62"):
        packed.paths_of(np.zeros((1, TREE_TOKENS), np.int32), too_many)


def test_a_replay_of_trees_emits_what_was_recorded_in_fewer_passes(
    packed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from ngramspec import AutoPolicy
    from packed_llama import SHAPES, Cache, random_model
    from replay_loop import Replay
    from replay_modes import parse_mode
    from replay_texts import load_texts

    texts = load_texts(["chat_revise.mt_redundant", "structured.crux_json"], 4, 200, 100)
    model = random_model(SHAPES["small"], torch.device("cpu"), torch.float32)
    cache = Cache(SHAPES["small"], 2, 512, torch.device("cpu"), torch.float32)
    passes = packed.Passes(model, cache, 12, graphs=False)
    runs, moved = {}, []
    move = passes.move
    monkeypatch.setattr(passes, "move", lambda *parts: (moved.append(parts), move(*parts)))
    for width in (1, 8):
        replay = Replay(passes, texts, 2, 12)
        mode = parse_mode(f"suffix:tree-{width}")
        runs[width] = replay.run(mode, AutoPolicy(12, fixed=12))
        for row in range(2):  # what the pass would go on from is what was recorded
            assert replay._lengths[row] <= replay._ends[row]
        assert (len(moved) > 0) == (width > 1)
    assert runs[8].emitted / runs[8].row_steps > runs[1].emitted / runs[1].row_steps


def test_sizes_are_rounded_up_to_few(packed: Any) -> None:
    for round_up, most in ((packed.rounded_tokens, 1.35), (packed.rounded_longest, 2.0)):
        sizes = [round_up(count) for count in range(1, 1025)]
        assert all(size >= count for count, size in enumerate(sizes, start=1))
        assert all(size <= most * count for count, size in enumerate(sizes, start=1))
        assert sizes == sorted(sizes)
        assert len(set(sizes)) < 40


def test_the_8b_shape_has_eight_billion_weights_and_computes_on_its_device_alone(
    packed: Any,
) -> None:
    """Meta tensors have shapes and a device, no data: what is left on the CPU would raise."""
    import torch

    from packed_llama import SHAPES, Cache, random_model

    shape, meta = SHAPES["8b"], torch.device("meta")
    model = random_model(shape, meta, torch.bfloat16)
    assert round(sum(weights.numel() for weights in model.parameters()) / 1e9, 2) == 8.03
    assert {weights.dtype for weights in model.parameters()} == {torch.bfloat16}
    cache = Cache(shape, 32, 2560, meta, torch.bfloat16)
    weights = sum(weights.nbytes for weights in model.parameters())
    assert weights + cache.nbytes < 40 * 2**30
    passes = packed.Passes(model, cache, 16, graphs=False)
    chosen = passes._compute(packed.Size(tokens=544, longest=17, context=2560))
    assert (tuple(chosen.shape), chosen.device) == ((544,), meta)


def test_a_replay_emits_what_was_recorded_and_counts_as_the_walk_does(packed: Any) -> None:
    """One row, one text: the steps of `ngramspec bench replay`."""
    import torch

    from ngramspec import create_drafter
    from packed_llama import SHAPES, Cache, random_model
    from replay_loop import Replay
    from replay_modes import parse_mode
    from replay_texts import load_texts

    texts = load_texts(["structured.crux_json"], 3, 48, 120)
    model = random_model(SHAPES["small"], torch.device("cpu"), torch.float32)
    cache = Cache(SHAPES["small"], 1, 256, torch.device("cpu"), torch.float32)
    replay = Replay(packed.Passes(model, cache, 8, graphs=False), texts, 1, 8)
    mode = parse_mode("ngram-cache:fixed-8")
    drafter = create_drafter("ngram-cache")
    walks = [drafter.replay(t.ids[: t.num_prompt], t.ids[t.num_prompt :], 8) for t in texts]
    totals = replay.run(mode, mode.make_policy(8))
    assert totals.emitted == sum(len(t.ids) - t.num_prompt - 1 for t in texts)
    accepted = sum(one.accepted for one in walks)
    # The walk lets a draft reach the end of an output, here the target's own token is the last.
    assert 0 < accepted - len(texts) <= totals.accepted <= accepted
    assert totals.drafted > totals.accepted
    plain = parse_mode("none")
    without = replay.run(plain, plain.make_policy(8))
    assert (without.emitted, without.drafted) == (totals.emitted, 0)
    assert without.row_steps == without.emitted == len(without.steps) == len(without.passes)


def test_the_replay_of_transformers_runs_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("torch", "transformers")
    path = tmp_path / "made.json"
    run_here(
        *("transformers_replay.py", "--small", "--batch", "1", "3", "--output", "12"),
        *("--modes", "suffix:auto", "suffix:gate", "ngram-simple:fixed-4", "suffix:tree-4"),
        *("--json", str(path)),
        monkeypatch=monkeypatch,
    )
    assert "suffix:gate" in capsys.readouterr().out
    report = json.loads(path.read_text())
    modes = ["none", "suffix:auto", "suffix:gate", "ngram-simple:fixed-4", "suffix:tree-4"]
    assert [(r["batch"], r["mode"]) for r in report["rows"]] == [
        (b, m) for b in (1, 3) for m in modes
    ]
    assert all(row["tokens_per_second"] > 0 for row in report["rows"])
    assert [row["ratio_to_none"] for row in report["rows"] if row["mode"] == "none"] == [1.0, 1.0]
    assert report["what"] == "replay"
    assert report["complete"] is True
    assert report["rounds"] == {"batch 1": 1, "batch 3": 1}
    assert report["setup"]["prompts"] == "noise in the cache"
    assert report["setup"]["command"].startswith(
        "python benchmarks/gpu/transformers_replay.py --sm"
    )


@pytest.mark.parametrize("drafter", [None, "ngram-cache", "suffix"])
def test_the_engine_emits_what_was_recorded_while_llama_computes(
    drafter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("llama_cpp")
    monkeypatch.syspath_prepend(str(GPU))
    from llama_trace import TraceTarget
    from ngramspec import embedded_model
    from ngramspec.engine import Engine, Request, Sampling
    from ngramspec.engine.policy import make_policy
    from ngramspec.llamacpp.model import LlamaModel
    from ngramspec.llamacpp.target import LlamaTarget
    from replay_texts import load_texts

    slots, most = 2, 8
    with LlamaModel(embedded_model()) as model:
        chosen = load_texts(["structured.crux_json", "chat_revise.mt_redundant"], 4, 60, 40)
        texts = [(text.ids % model.vocab_size, text.num_prompt) for text in chosen]
        with LlamaTarget(model, slots=slots, context_size=256, threads=1) as target:
            own = [[ids for ids, _ in texts[slot::slots]] for slot in range(slots)]
            traced = TraceTarget(target, own, slots * (1 + most))
            engine = Engine(traced, drafter, slots=slots, policy=make_policy("fixed", most))
            answers = engine.generate(
                [
                    Request(
                        prompt_ids=ids[:size],
                        max_tokens=len(ids) - size,
                        sampling=Sampling(temperature=0.0),
                        cache_prompt=False,
                        slot=index % slots,
                    )
                    for index, (ids, size) in enumerate(texts)
                ]
            )
            stats = engine.stats()
            engine.close()
    for one, (ids, size) in zip(answers, texts, strict=True):
        assert one.error is None
        assert list(one.token_ids) == ids[size:].tolist()
    assert (stats.num_accepted_tokens > 0) == (drafter is not None)


def test_the_replay_of_llama_runs_small(tmp_path: Path) -> None:
    needs("llama_cpp")
    path = tmp_path / "made.json"
    printed = run(
        *("llama_replay.py", "--small", "--output", "12", "--threads", "1"),
        *("--modes", "suffix:gate", "--json", str(path)),
        cwd=tmp_path,
    )
    assert "on the CPU: its figures say nothing of GPUs" in printed
    report = json.loads(path.read_text())
    rows, expected = (
        report["rows"],
        [(slots, mode) for slots in (1, 2) for mode in ("none", "suffix:gate")],
    )
    assert [(row["slots"], row["mode"]) for row in rows] == expected
    assert all(row["mean_accepted_length"] >= 1 and row["steps"] > 0 for row in rows)
    assert report["complete"] is True


def test_the_costs_of_passes_are_measured_small(
    packed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pass_costs

    path = tmp_path / "made.json"
    options = ("--small", "--batch", "1", "3", "--repeats", "2", "--max-draft", "4")
    monkeypatch.setattr(sys, "argv", ["pass_costs.py", *options, "--json", str(path)])
    pass_costs.main()
    assert "attention" in capsys.readouterr().out
    report = json.loads(path.read_text())
    expected = [(rows, draft, rows * (1 + draft)) for rows in (1, 3) for draft in (0, 1, 2, 4)]
    assert [(row["batch"], row["draft"], row["tokens"]) for row in report["rows"]] == expected
    assert report["complete"] is True
    for row in report["rows"]:
        assert row["pass_ms"] > 0
        assert row["samples"] == 2
        assert (row["device_ms"], row["attention_ms"]) == (None, None)  # no graphs
        assert row["draft"] > 0 or row["relative"] == 1


def test_passes_over_drafts_choose_what_single_tokens_do_small(
    packed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import packed_exactness

    path = tmp_path / "made.json"
    options = ("--small", "--batch", "1", "2", "--max-draft", "8", "--tokens", "18")
    monkeypatch.setattr(sys, "argv", ["packed_exactness.py", *options, "--json", str(path)])
    packed_exactness.main()
    report = json.loads(path.read_text())
    figures = [(row["batch"], row["draft"], row["choices"], row["share"]) for row in report["rows"]]
    each = [(0, 18), (1, 18), (2, 18), (4, 15), (8, 18)]
    assert figures == [(rows, draft, rows * n, 1.0) for rows in (1, 2) for draft, n in each]
    assert report["complete"] is True
    assert "100.00%" in capsys.readouterr().out


def test_what_is_computed_for_attention_alone_is_that_of_all_layers(
    packed: Any, make_passes: Any, small_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pass_costs

    passes, layers = make_passes(1, 512), []
    attend = pass_costs.attend

    def noting(layer: Any, *arguments: Any, **named: Any) -> Any:
        layers.append((layer.layer_idx, named["packing"].parts))
        return attend(layer, *arguments, **named)

    monkeypatch.setattr(pass_costs, "attend", noting)
    costs = pass_costs.Costs(passes, 1, 40, 6)
    costs.run(2)
    assert costs.attention(2, small_model()) is None  # without graphs
    seen = pass_costs.attention_of(passes, passes.last_size, small_model())()
    assert tuple(seen.shape) == (1, 3, 4, 32)
    assert layers == [(0, 4), (1, 4), (2, 4)]


def test_the_profile_runs_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("torch", "transformers")
    path = tmp_path / "made.json"
    monkeypatch.chdir(tmp_path)
    run_here(
        *("profile_steps.py", "--small", "--batch", "2", "--steps", "5", "--json", str(path)),
        *("--modes", "suffix:gate", "--trace", "steps.json.gz"),
        monkeypatch=monkeypatch,
    )
    assert "suffix:gate" in capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert [row["steps"] for row in rows] == [5, 5]
    assert 0 < rows[1]["share"] < 1
    assert rows[1]["harness_us"] > 0
    assert [row["device_us"] for row in rows] == [None, None]  # no graphs, no device
    with gzip.open(tmp_path / "steps.json.gz") as file:
        events = json.load(file)["traceEvents"]
    spans = [event.get("name") for event in events]
    assert {"propose", "launch", "wait", "accept"} <= set(spans)
    assert spans.count("propose") == 5


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("profile_steps", ("--trace", "steps.json"), "--trace must end with .json.gz, got steps.j"),
        ("profile_steps", ("--steps", "0"), "--steps must be 1 or more"),
        ("pass_costs", ("--repeats", "0"), "--repeats must be 1 or more"),
        ("packed_exactness", ("--tokens", "32"), "--tokens must be above --max-draft (32)"),
        ("transformers_replay", ("--minutes", "0"), "'0' is no number of minutes above 0"),
    ],
)
def test_wrong_options_of_the_scripts_are_named(
    packed: Any,
    script: str,
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--small", *options])
    with pytest.raises(SystemExit):
        importlib.import_module(script).parse()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--modes", "suffix:often"), "expected none, or DRAFTER:auto"),
        (("--modes", "suffix:fixed-"), "expected none, or DRAFTER:auto"),
        (("--modes", "suffix:tree"), "expected none, or DRAFTER:auto"),
        (("--modes", "suffix:tree-0"), "N must be 1 or more"),
        (("--modes", "suffix:tree-4"), "trees: only in transformers_replay.py"),
        (("--modes", "sufix:auto"), "suffix"),
        (("--sets", "nothing"), "no set 'nothing'"),
        (("--requests", "4000"), "more than they hold"),
        (("--output", "3"), "--output must be 4 or more"),
        (("--minutes", "soon"), "'soon' is no number of minutes above 0"),
    ],
)
def test_wrong_options_are_named(
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(GPU))
    import llama_replay

    monkeypatch.setattr(sys, "argv", ["llama_replay.py", "--small", *options])
    with pytest.raises(SystemExit) as raised:
        llama_replay.main()
    assert message in f"{raised.value} {capsys.readouterr().err}"
