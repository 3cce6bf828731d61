"""Passes: their graphs, what is timed, what fits, and attention by parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


def launch(passes: Any, length: int = 2, at: int = 20) -> list[int]:
    """Verify drafts of a length in every row; return what was chosen."""
    rows = passes._cache.rows
    rng = np.random.default_rng(length)
    newest = rng.integers(0, 2048, rows, dtype=np.int32)
    drafts = rng.integers(0, 2048, (rows, 6), dtype=np.int32)
    places, lengths = np.full(rows, at, np.int32), np.full(rows, length, np.int32)
    passes.launch(newest, places, drafts, lengths)
    return passes.wait().tolist()


def graph_of(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """Stand in for a graph and its output."""
    output = compute()
    return SimpleNamespace(replay=lambda: output.copy_(compute())), output


def test_passes_with_graphs_choose_the_same_and_are_timed(make_passes: Callable[..., Any]) -> None:
    passes = make_passes()
    plain = [launch(passes, length) for length in (0, 3, 0)]
    for timing in passes.timings():
        assert (timing.device, timing.idle, timing.moving) == (None, None, 0)
    passes.graphs, passes.capture = True, graph_of
    assert [launch(passes, length) for length in (0, 3, 0)] == plain
    first, second, third = passes.timings()
    assert min(first.device, second.device, third.device) > 0
    # The first two were captured just before; nothing but the third follows a pass at once.
    assert (first.idle, second.idle) == (None, None)
    assert third.idle > 0
    assert passes.capture_seconds > 0
    assert passes.staging_seconds > 0


def test_moving_tokens_is_timed_and_no_idleness(
    make_passes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, packed: Any
) -> None:
    passes = make_passes()
    moments = iter(range(100))
    monkeypatch.setattr(passes, "_moment", lambda: float(next(moments)))
    monkeypatch.setattr(packed, "_seconds", lambda begun, ended: ended - begun)
    passes.graphs, passes.capture = True, graph_of
    launch(passes)  # 0 to 1
    place = np.array([21], np.int32)
    for _ in range(2):
        passes.move(np.array([1], np.int32), place, place - 1)  # 2 to 3, 4 to 5
    launch(passes)  # 6 to 7
    launch(passes)  # 8 to 9
    assert [tuple(one) for one in passes.timings()] == [(1, None, 0), (1, 3, 2), (1, 1, 0)]


def test_a_size_without_memory_for_a_graph_runs_without_one_and_others_have_theirs(
    make_passes: Callable[..., Any], capsys: pytest.CaptureFixture[str], packed: Any
) -> None:
    import torch

    passes = make_passes()
    plain = [launch(passes, length) for length in (2, 0, 2)]
    passes.timings()

    def capture(compute: Callable[[], Any]) -> Any:
        passes.capture = graph_of
        try:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")
        finally:
            raise RuntimeError("the capture has ended")  # as the end of a real one does

    passes.graphs, passes.capture = True, capture
    assert [launch(passes, length) for length in (2, 0, 2)] == plain
    assert passes.graphs
    assert [one.device is None for one in passes.timings()] == [True, False, True]
    (size,) = passes.eager_sizes
    assert size == packed.Size(6, 3, 64)
    stderr = capsys.readouterr().err
    assert stderr.count("no memory for a graph of Size(tokens=6") == 1
    assert "OutOfMemoryError: tried to allocate 2 GiB" in stderr


def test_passes_whose_graph_fails_otherwise_are_without_graphs_from_then_on(
    make_passes: Callable[..., Any], packed: Any
) -> None:
    passes = make_passes()
    plain = [launch(passes, length) for length in (0, 2)]
    passes.graphs, passes.capture = True, graph_of
    launch(passes, 0)

    def fail(compute: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    passes.capture = fail
    with pytest.raises(packed.CaptureError, match=r"passes are without now: RuntimeError: operat"):
        launch(passes, 2)
    assert not passes.graphs
    assert passes.graph_error == "RuntimeError: operation not permitted when stream is capturing"
    passes.timings()
    assert [launch(passes, length) for length in (0, 2)] == plain
    assert [one.device for one in passes.timings()] == [None, None]


def test_a_failed_capture_leaves_the_stream_that_was_current(
    make_passes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class Stream:
        def __init__(self, *device: Any) -> None:
            self.waited: list[Any] = []

        def wait_stream(self, other: Any) -> None:
            self.waited.append(other)

    @contextmanager
    def capturing(*graph: Any, **options: Any) -> Any:
        yield
        raise RuntimeError("capture_end failed")

    usual, current = Stream(), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: usual)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "set_stream", current.append)
    passes, calls = make_passes(), []
    with pytest.raises(RuntimeError, match="capture_end failed"):
        passes.capture(lambda: calls.append(1))
    assert current == [usual]
    assert len(calls) == 3


def test_a_batch_whose_graphs_fail_begins_again_without(
    packed: Any, small_model: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from packed_llama import SHAPES
    from replay_batch import Batch
    from replay_modes import parse_modes
    from replay_rounds import Budget, run_rounds
    from replay_texts import load_texts

    options = SimpleNamespace(
        shape=SHAPES["small"], device=torch.device("cpu"), dtype=torch.float32, prompt=48,
        output=16, max_draft=8, eager=False, prompts=False,
    )  # fmt: skip
    texts = load_texts(["structured.crux_json"], 2, 48, 16)
    modes = parse_modes(["suffix:auto"])
    batch = Batch(small_model(), options, 2, texts, modes)
    policies = batch.policies

    def fail(compute: Callable[[], Any]) -> Any:
        raise RuntimeError("no stream")

    batch.passes.graphs, batch.passes.capture = True, fail
    again = (packed.CaptureError,)
    (group,) = run_rounds([batch], modes, 1, Budget(None), lambda group: None, again)
    stderr = capsys.readouterr().err
    assert "batch 2: no graph could be captured, passes are without now: RuntimeError: no" in stderr
    assert "batch 2: none" in stderr
    assert len(group.done) == 2
    assert group.of(modes[0])[0].emitted > 0
    assert batch.policies is not policies


@pytest.mark.parametrize("prompts", [True, False])
def test_prompts_are_computed_or_stood_for_by_noise(
    make_passes: Callable[..., Any], prompts: bool
) -> None:
    passes = make_passes(prompts=prompts)
    before = passes._cache._data.clone()
    assert (before != 0).float().mean() > 0.99
    assert abs(before.std() - 1) < 0.1
    passes.fill(1, np.arange(9, dtype=np.int32))
    after = passes._cache._data.view(3, 2, 3, 64, -1)
    changed = (after != before.view_as(after)).any(-1).any(0).any(0)
    assert changed.sum() == (9 if prompts else 0)


def test_steps_begin_when_the_prompts_of_all_rows_are_there(
    make_passes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from replay_loop import Replay
    from replay_modes import parse_mode
    from replay_texts import load_texts

    passes = make_passes(2, 128)
    did: list[str] = []
    for name in ("fill", "launch"):
        method = getattr(passes, name)

        def call(*arguments: Any, name: str = name, method: Any = method) -> Any:
            did.append(name)
            return method(*arguments)

        monkeypatch.setattr(passes, name, call)
    texts = load_texts(["structured.crux_json"], 2, 48, 16)
    run = Replay(passes, texts, 2, 6).run(parse_mode("none"), None, 1, lambda: did.append("ready"))
    assert did == ["fill", "fill", "ready", "launch"]
    assert len(run.harness) == 1
    assert 0 < run.harness[0] < run.steps[0]


def test_batch_sizes_whose_caches_do_not_fit_are_left_out(packed: Any) -> None:
    from replay_options import those_that_fit

    lines: list[str] = []
    needs = [10**9, 90 * 10**9, 5 * 10**9]
    sizes = those_that_fit([1, 32, 8], needs, 20 * 10**9, 80 * 10**9, lines.append)
    assert sizes == [1, 8]
    assert lines == [
        "batch 32 is left out: its cache takes 90.0 GB, all else 21.0 GB, and 80.0 GB are free"
    ]


def test_what_does_not_fit_at_all_is_an_error(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from packed_llama import SHAPES
    from replay_options import leave_out_what_does_not_fit

    options = SimpleNamespace(
        device=torch.device("cuda"), dtype=torch.bfloat16, shape=SHAPES["8b"], batch=[1, 8, 32],
        prompt=2048, output=128, max_draft=32,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (79 * 10**9, 80 * 10**9))
    leave_out_what_does_not_fit(options)
    assert options.batch == [1, 8, 32]
    options.prompt = 32_000
    leave_out_what_does_not_fit(options)
    assert options.batch == [1, 8]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 10**9, 80 * 10**9))
    with pytest.raises(SystemExit, match="no batch size fits in the GPU's memory"):
        leave_out_what_does_not_fit(options)


def test_sizes_are_known_before_anything_is_made(packed: Any) -> None:
    import torch

    from packed_llama import SHAPES, Cache, random_model

    for shape in SHAPES.values():
        model = random_model(shape, torch.device("meta"), torch.bfloat16)
        assert shape.parameters == sum(weights.numel() for weights in model.parameters())
        cache = Cache(shape, 3, 512, torch.device("meta"), torch.bfloat16)
        assert shape.cache_bytes(3, 512, torch.bfloat16) == cache.nbytes


def test_attention_by_parts_sees_what_whole_attention_sees(packed: Any) -> None:
    import torch

    from packed_attention import HIDDEN, PART, look, parts_for

    torch.manual_seed(3)
    heads, size, length = 3, 32, 4 * PART
    keys, values = (torch.randn(1, length, heads, size).transpose(1, 2) for _ in range(2))
    for count, ends in ((1, (1,)), (4, (1, PART, PART + 1, length)), (40, range(5, 45))):
        mask = torch.zeros(1, 1, count, length)
        for query, end in enumerate(ends):
            mask[..., query, end:] = HIDDEN
        asked = torch.randn(1, heads, count, size)
        whole = look(asked, keys, values, mask, 0.3, 1)
        parts = look(asked, keys, values, mask, 0.3, parts_for(1, length))
        assert parts.shape == whole.shape
        assert torch.allclose(parts, whole, atol=1e-5)
    assert parts_for(1, length) == 4
    assert (parts_for(2, length), parts_for(1, PART + 1)) == (1, 1)


def test_a_pass_whose_attention_is_divided_chooses_what_the_plain_model_does(
    packed: Any, make_passes: Callable[..., Any], small_model: Callable[[], Any]
) -> None:
    import torch

    passes = make_passes(1, 512)
    assert passes.parts_error == ""
    rng = np.random.default_rng(4)
    text = rng.integers(0, 2048, 140, dtype=np.int32)
    passes.fill(0, text)
    drafts, lengths = rng.integers(0, 2048, (1, 6), dtype=np.int32), np.array([6], np.int32)
    passes.launch(text[-1:], np.array([139], np.int32), drafts, lengths)
    assert passes.packing(passes.last_size).parts == 4
    chosen = passes.wait().tolist()
    model, whole = small_model(), np.concatenate([text, drafts[0]])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(whole.astype(np.int64))[None]).logits[0]
    model.set_attn_implementation("ngramspec_packed")
    assert chosen == logits[139:].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda *rest: (_ for _ in ()).throw(RuntimeError("no kernel")), "RuntimeError: no ker"),
        (lambda queries, *rest: queries * 0, "relative error 1.0e+00, at most 1e-05 expected"),
    ],
)
def test_attention_that_cannot_be_divided_is_whole_and_that_is_said(
    packed: Any,
    make_passes: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: Any,
    reason: str,
) -> None:
    import packed_attention

    packed_attention.why_not_by_parts.cache_clear()
    monkeypatch.setattr(packed_attention, "_look_by_parts", broken)
    passes = make_passes(1, 512)
    assert reason in passes.parts_error
    assert f"attention is not divided into parts: {passes.parts_error}" in capsys.readouterr().err
    launch(passes)
    assert passes.packing(passes.last_size).parts == 1
    packed_attention.why_not_by_parts.cache_clear()
