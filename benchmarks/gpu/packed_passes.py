"""Passes: verification passes of a packed model, from token arrays on the host and back.

On CUDA every shape is captured as a graph once, so that a pass costs what the device needs and not
what Python needs to launch it. Tokens, queries and context are rounded up to few sizes for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from messages import say
from packed_attention import parts_for, why_not_by_parts
from packed_llama import TREE_TOKENS, Cache, Packing, causal_mask, forward, tree_mask

Int32 = npt.NDArray[np.int32]
CONTEXT_STEP = 512
PREFILL_CHUNK = 512


class Size(NamedTuple):
    """What a graph is captured for."""

    tokens: int
    longest: int  # queries of a row
    context: int
    branched: bool = False  # drafts are trees


class Timing(NamedTuple):
    """One pass in seconds, by events in the device's queue.

    device: From where it begins to copy the inputs to where the chosen tokens are copied. The
        launch of the graph, for which the device waits between the two, is in it. None without a
        graph: kernels that are launched one by one are waited for all the time.
    idle: From the end of the pass before to there, less `moving`; None too if no pass was just
        before.
    moving: Copying tokens of side branches to where their text is, between the two passes.
    """

    device: float | None
    idle: float | None
    moving: float


class CaptureError(RuntimeError):
    """A graph could not be captured; passes are without graphs from now on."""


def rounded_tokens(count: int) -> int:
    """Return the tokens to compute: a third more at most, a quarter beyond 16."""
    for most, step in ((8, 1), (32, 4), (64, 8), (128, 16), (256, 32), (512, 64)):
        if count <= most:
            return -(-count // step) * step
    return -(-count // 128) * 128


def rounded_longest(longest: int) -> int:
    """Return the queries per row: one, and a power of two for the draft."""
    return 1 if longest <= 1 else 1 + (1 << (longest - 2).bit_length())


def paths_of(parents: Int32, lengths: Int32) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return for the newest token and each of a tree its depth, and the bits of those it sees.

    Raises:
        ValueError: A tree has too many tokens for the bits.
    """
    rows, most = parents.shape
    if lengths.max(initial=0) >= TREE_TOKENS:
        raise ValueError(f"a tree may have {TREE_TOKENS - 1} tokens, got {lengths.max()}")
    depths, bits = np.zeros((2, rows, 1 + most), np.int64)
    for row, count in enumerate(lengths.tolist()):
        depth, seen = [0], [1]
        for i, parent in enumerate(parents[row, :count].tolist(), start=1):
            depth.append(depth[parent + 1] + 1)
            seen.append(seen[parent + 1] | 1 << i)
        depths[row, : 1 + count], bits[row, : 1 + count] = depth, seen
    return depths, bits


class Passes:
    """Runs passes of up to `rows` texts.

    Args:
        model: From random_model.
        cache: Its cache; a row per text.
        max_draft: Longest draft in tokens.
        graphs: Capture CUDA graphs.
        prompts: Compute prompts; else what the cache holds, noise at best, stands for them.

    After `launch` the device works and the host is free until `wait`. One pass at a time.

    graph_error: Why there are no graphs, where that was not asked for.
    eager_sizes: Of these there are none for want of memory.
    parts_error: Why attention is not divided into parts, where that would do.
    capture_seconds: Of all graphs so far.
    staging_seconds: Laying out the inputs of all passes so far, on the host.
    sizes: How many passes there were of each.
    last_size: Of the pass that was launched last.
    """

    def __init__(
        self, model: Any, cache: Cache, max_draft: int, graphs: bool, prompts: bool = True
    ) -> None:
        self._model, self._cache = model, cache
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        self.on_cuda = self.device.type == "cuda"
        self.graphs = graphs and self.on_cuda
        self.prompts = prompts
        config = model.config
        self._group = config.num_attention_heads // config.num_key_value_heads
        self._vocab = config.vocab_size
        most = rounded_tokens(cache.rows * (1 + max_draft))
        queries = cache.rows * rounded_longest(1 + max_draft)
        room = 4 * most + 3 * queries
        self._staged = torch.zeros(room, dtype=torch.int64, pin_memory=self.on_cuda)
        self._staged_np = self._staged.numpy()
        self._inputs = torch.zeros(room, dtype=torch.int64, device=self.device)
        self._chosen = torch.zeros(most, dtype=torch.int64, pin_memory=self.on_cuda)
        self._captured: dict[Size, tuple[Any, torch.Tensor]] = {}  # graph and its output
        self._pool = torch.cuda.graph_pool_handle() if self.graphs else None
        self._log: list[_Logged] = []
        self._moved: list[tuple[Any, Any]] = []  # since the last pass
        self._followed = False
        self._num_tokens = 0
        self.capture_seconds = self.staging_seconds = 0.0
        self.graph_error = ""
        self.eager_sizes: set[Size] = set()
        self.sizes: dict[Size, int] = {}
        self.last_size = Size(0, 0, 0)
        # Tried here, off the clock; the cache of several rows is never divided.
        self.parts_error = why_not_by_parts(self.device, self.dtype) if cache.rows == 1 else ""
        if self.parts_error:
            say(f"attention is not divided into parts: {self.parts_error}")

    def fill(self, row: int, token_ids: Int32) -> None:
        """Let a row of the cache hold a prompt; what was there is gone. Not timed."""
        if self.prompts:
            for at in range(0, len(token_ids), PREFILL_CHUNK):
                self._fill_chunk(row, at, token_ids[at : at + PREFILL_CHUNK])
        self._followed = False
        self.synchronize()

    @torch.no_grad()
    def _fill_chunk(self, row: int, at: int, tokens: Int32) -> None:
        device, count = self.device, len(tokens)
        ids = torch.from_numpy(tokens.astype(np.int64) % self._vocab).to(device)
        positions = torch.arange(at, at + count, device=device)
        length = min(self._cache.length, -(-(at + count) // CONTEXT_STEP) * CONTEXT_STEP)
        order = torch.arange(count, device=device)
        packing = Packing(
            cache=self._cache,
            where=positions + row * self._cache.length,
            padded=order[None],
            unpadded=order,
            mask=causal_mask(positions[None], length, self._group, self.dtype),
            first=row,
            count=1,
            length=length,
        )
        forward(self._model, ids, positions, packing, keep=1)

    def launch(
        self,
        newest: Int32,
        positions: Int32,
        drafts: Int32,
        lengths: Int32,
        parents: Int32 | None = None,
    ) -> None:
        """Start a pass over all rows.

        Args:
            newest: (rows,), the last token of each text, not yet in the cache.
            positions: (rows,), its position.
            drafts: (rows, m). lengths: (rows,), tokens of each draft, 0..m.
            parents: (rows, m), the index of the token before each, -1 = the newest; None = chains.

        Raises:
            CaptureError: A graph could not be captured, for another reason than want of memory.
        """
        started = time.perf_counter()
        size, self._num_tokens = self._stage(newest, positions, drafts, lengths, parents)
        self.last_size = size
        self.staging_seconds += time.perf_counter() - started
        self.sizes[size] = self.sizes.get(size, 0) + 1
        staged = self._staged[: self._staged_tokens(size)]
        if self.graphs and size not in self._captured and size not in self.eager_sizes:
            self._capture(size, staged)
        captured = self._captured.get(size) if self.graphs else None
        begun = self._moment()
        self._inputs[: len(staged)].copy_(staged, non_blocking=True)
        if captured:
            graph, chosen = captured
            graph.replay()
        else:
            chosen = self._compute(size)
        self._chosen[: size.tokens].copy_(chosen, non_blocking=True)
        ended, moved = self._moment(), self._moved
        self._log.append(_Logged(begun, ended, self._followed, captured is not None, moved))
        self._followed, self._moved = True, []

    def wait(self) -> npt.NDArray[np.int64]:
        """Return the likeliest token after each token of the pass, when they are there.

        The array is overwritten by the next pass.
        """
        if self.on_cuda:
            self._log[-1].ended.synchronize()
        chosen: npt.NDArray[np.int64] = self._chosen[: self._num_tokens].numpy()
        return chosen

    def move(self, rows: Int32, sources: Int32, targets: Int32) -> None:
        """Copy tokens of rows to other places of theirs, after a pass and before the next."""
        parts = (rows.astype(np.int64) * self._cache.length + place for place in (sources, targets))
        begun = self._moment()
        self._cache.move(*(torch.from_numpy(part).to(self.device) for part in parts))
        self._moved.append((begun, self._moment()))

    def timings(self) -> list[Timing]:
        """Return what the passes since the last call took, in their order."""
        self.synchronize()
        timings: list[Timing] = []
        before: Any = None
        for one in self._log:
            device = idle = None
            moving = sum(_seconds(*moved) for moved in one.moved)
            if one.graph:
                device = _seconds(one.begun, one.ended)
                if one.followed and before is not None:
                    idle = _seconds(before, one.begun) - moving
            timings.append(Timing(device, idle, moving))
            before = one.ended
        self._log.clear()
        self._moved.clear()
        return timings

    def packing(self, size: Size) -> Packing:
        """Return where the tokens of the pass that was launched last belong, of its size."""
        rows = self._cache.rows
        _, where, _, unpadded, padded, asked, seen = self._parts(self._inputs, size)
        asked, seen = asked.view(rows, size.longest), seen.view(rows, size.longest)
        if size.branched:
            mask = tree_mask(asked, seen, size.context, self._group, self.dtype)
        else:
            mask = causal_mask(asked, size.context, self._group, self.dtype)
        return Packing(
            cache=self._cache,
            where=where,
            padded=padded.view(rows, size.longest),
            unpadded=unpadded,
            mask=mask,
            first=0,
            count=rows,
            length=size.context,
            parts=1 if self.parts_error else parts_for(rows, size.context),
        )

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
        """Return a graph of what a function launches, and its output.

        Raises:
            RuntimeError: It cannot be captured. The stream is the one that it was.
        """
        current = torch.cuda.current_stream(self.device)
        try:
            side = torch.cuda.Stream(self.device)
            side.wait_stream(current)
            with torch.cuda.stream(side):  # what is set up at a first call cannot be captured
                for _ in range(2):
                    compute()
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                output = compute()
        except BaseException:
            torch.cuda.set_stream(current)  # a failed capture can leave its own behind
            raise
        return graph, output

    def synchronize(self) -> None:
        """Wait until the device has nothing to do."""
        if self.on_cuda:
            torch.cuda.synchronize(self.device)

    def _stage(
        self,
        newest: Int32,
        positions: Int32,
        drafts: Int32,
        lengths: Int32,
        parents: Int32 | None,
    ) -> tuple[Size, int]:
        """Lay out the inputs of a pass on the host; return its size and its tokens."""
        rows, length = self._cache.rows, self._cache.length
        counts = lengths.astype(np.int64) + 1
        total, longest = int(counts.sum()), rounded_longest(int(counts.max()))
        context = int((positions + counts).max())
        context = min(length, -(-context // CONTEXT_STEP) * CONTEXT_STEP)
        size = Size(rounded_tokens(total), longest, context, parents is not None)
        parts = self._parts(self._staged_np, size)
        ids, where, at, unpadded, padded, asked, seen = parts
        row = np.repeat(np.arange(rows), counts)
        first = np.cumsum(counts) - counts
        index = np.arange(total) - first[row]  # in the row, 0 = its newest token
        ids[:total] = newest[row]
        drafted = index > 0
        ids[:total][drafted] = drafts[row[drafted], index[drafted] - 1]
        ids[:total] %= self._vocab
        at[:total] = positions[row] + index
        where[:total] = row * length + at[:total]
        unpadded[:total] = row * longest + index
        # Padding: computed like all else, written where no text is.
        ids[total:] = at[total:] = unpadded[total:] = 0
        where[total:] = rows * length + np.arange(size.tokens - total)
        step = np.minimum(np.arange(longest), (counts - 1)[:, None])
        padded.reshape(rows, longest)[:] = first[:, None] + step
        if parents is None:
            asked.reshape(rows, longest)[:] = positions[:, None] + step
            return size, total
        depths, bits = paths_of(parents, lengths)
        at[:total] = positions[row] + depths[row, index]
        asked.reshape(rows, longest)[:] = positions[:, None]
        seen.reshape(rows, longest)[:] = np.take_along_axis(bits, step, axis=1)
        return size, total

    def _parts(self, array: Any, size: Size) -> list[Any]:
        """Return views of ids, where, positions, unpadded, padded, queries' positions and bits."""
        parts, start = [], 0
        for count in (*[size.tokens] * 4, *[self._cache.rows * size.longest] * 3):
            parts.append(array[start : start + count])
            start += count
        return parts

    def _staged_tokens(self, size: Size) -> int:
        return 4 * size.tokens + 3 * self._cache.rows * size.longest

    @torch.no_grad()
    def _compute(self, size: Size) -> torch.Tensor:
        """Return the chosen tokens of a pass whose inputs are on the device."""
        ids, _, at, *_ = self._parts(self._inputs, size)
        return forward(self._model, ids, at, self.packing(size), keep=0).argmax(dim=-1)

    def _capture(self, size: Size, staged: torch.Tensor) -> None:
        """Capture the graph of a size, with the inputs of its first pass; not timed.

        Without memory for it, passes of this size run without a graph. Where it fails otherwise, no
        other is tried.

        Raises:
            CaptureError: It failed otherwise.
        """
        started = time.perf_counter()
        self.synchronize()
        self._inputs[: len(staged)].copy_(staged)
        try:
            self._captured[size] = self.capture(lambda: self._compute(size))
        except RuntimeError as error:
            self._give_up(size, error)
        finally:
            self._followed = False
            self.capture_seconds += time.perf_counter() - started
        self.synchronize()

    def _give_up(self, size: Size, error: RuntimeError) -> None:
        causes = _causes(error)
        why = f"{type(causes[-1]).__name__}: {causes[-1]}"  # the end of a capture adds its own
        if any(isinstance(one, torch.OutOfMemoryError) for one in causes):
            self.eager_sizes.add(size)
            torch.cuda.empty_cache()
            say(f"no memory for a graph of {size}: these passes run without: {why}")
            return
        self.graphs, self.graph_error = False, why
        self._captured.clear()
        raise CaptureError(f"no graph could be captured, passes are without now: {why}") from error

    def _moment(self) -> Any:
        """Return now: an event in the device's queue, on a CPU the time."""
        if not self.on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Logged(NamedTuple):
    """Two moments of a pass, and what there was to it."""

    begun: Any
    ended: Any
    followed: bool  # right after the one before
    graph: bool
    moved: list[tuple[Any, Any]]  # before it, since the one before


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and those during which it came up, the first of them last."""
    causes = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(before)
    return causes


def _seconds(begun: Any, ended: Any) -> float:
    if isinstance(begun, float):
        return float(ended - begun)
    return float(begun.elapsed_time(ended)) / 1e3
