"""Loop: draft, one pass, verify, settle; until every row has ended; Stops: where that is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.errors import InputError
from ngramspec.hosts.transformers.checks import cache_name
from ngramspec.hosts.transformers.drafts import Drafts
from ngramspec.hosts.transformers.nodes import Nodes, Texts
from ngramspec.hosts.transformers.passes import CutPass, RowsPass
from ngramspec.hosts.transformers.scores import Scores
from ngramspec.verify import TreeVerification, position_uniforms, verify_tree, verify_tree_sampled


class Loop:
    """One call of generate(): the rows of a batch until all have ended.

    Args:
        model, input_ids, config, kwargs: As generate() prepared them, checked.
        criteria: Stopping criteria.
        scores: Logits processors.

    Raises:
        InputError: As Stops and RowsPass.
    """

    def __init__(
        self,
        model: Any,
        input_ids: Any,
        config: Any,
        kwargs: dict[str, Any],
        criteria: Iterable[Any],
        scores: Scores,
    ) -> None:
        rows, prompt_len = input_ids.shape
        pad = getattr(config, "_pad_token_tensor", None)
        pad = None if pad is None else int(pad)
        self._model, self._input_ids, self._config, self._kwargs = model, input_ids, config, kwargs
        self._scores = scores
        self._stops = StopCriteria(criteria, prompt_len, pad, rows)
        watched = scores.reads_text or self._stops.reads_text
        self._texts = Texts(input_ids, self._stops.room, pad or 0, watched)
        self._open = np.ones(rows, dtype=bool)
        self._newest = np.zeros(rows, dtype=np.int32)
        self._seeds: Any = None
        self._method: Any = "compare"
        self._streamed = 0

    def sample(self, seeds: Any, method: str) -> None:
        """Sample with a seed per row, int64 (rows,), or search greedily with None."""
        self._seeds, self._method = seeds, method

    def run(self, drafter: Drafter, max_draft: int, tree_width: int, streamer: Any) -> Any:
        """Generate, and return the result of generate(); drafts are chains if tree_width is 0."""
        rows = self._input_ids.shape[0]
        vocab_size, ends = self._vocab_size(), self._stops.ends
        self._drafts = Drafts(drafter, rows, max_draft, vocab_size, ends, tree_width)
        self._max_draft, self._streamer = max_draft, streamer
        common = (self._model, self._input_ids, self._config, self._kwargs)
        self._pass = CutPass(*common) if rows == 1 else RowsPass(*common, max_draft)
        try:
            logits = self._pass.prefill()
            for row, prompt in enumerate(self._prompts()):
                self._drafts.begin(row, prompt)
            self._show(logits)
            self._settle(self._verified(logits, self._nodes(0)), first=True)
            with self._model._optimize_model_for_decode():
                while self._open.any():
                    self._step()
        finally:
            self._drafts.end_all()
            self._pass.close()
        if streamer is not None:
            streamer.end()
        return self._result()

    def _step(self) -> None:
        rows = np.flatnonzero(self._open).astype(np.int32)
        limits = np.minimum(self._stops.room - 1 - self._texts.lengths[rows], self._max_draft)
        computed = self._pass.num_rows
        longest = self._drafts.propose(rows, limits.astype(np.int32), computed)
        started = time.perf_counter()
        nodes = self._nodes(longest)
        logits = self._pass.run(nodes)
        self._show(logits)
        verification = self._verified(logits, nodes)
        self._drafts.observe(computed * (1 + longest), time.perf_counter() - started)
        self._settle(verification)

    def _show(self, logits: Any) -> None:
        """Show a drafter that learns from logits what the model held likely, reduced on its device.

        Before processors write into them.
        """
        import torch

        top = min(self._drafts.top, logits.shape[-1])
        if top:
            likeliest = torch.topk(torch.log_softmax(logits, dim=-1), top, dim=-1)
            tokens = likeliest.indices.to(torch.int32).cpu().numpy()
            rows = np.flatnonzero(self._open).astype(np.int32)
            self._drafts.observe_top(rows, tokens, likeliest.values.cpu().numpy())

    def _nodes(self, longest: int) -> Nodes:
        drafts = self._drafts
        tokens, parents = drafts.tokens[:, :longest], drafts.parents[:, :longest]
        return Nodes(self._newest, tokens, parents, drafts.lengths)

    def _verified(self, logits: Any, nodes: Nodes) -> TreeVerification:
        """Return what each row emits, as arrays on the host; waits for the device."""
        import torch

        scores = self._scores.apply(logits, self._texts, nodes, np.flatnonzero(self._open))
        tree = (nodes.ids[:, 1:], nodes.parents, nodes.lengths)
        if self._seeds is None:
            return verify_tree(torch.argmax(scores, dim=-1).cpu().numpy(), *tree)
        probs = torch.softmax(scores, dim=-1)
        if probs.device.type == "mps":  # has no float64
            probs = probs.cpu()
        uniforms = position_uniforms(self._seeds, self._texts.lengths, nodes.ids.shape[1])
        verification = verify_tree_sampled(probs, *tree, method=self._method, uniforms=uniforms)
        return TreeVerification(*(part.cpu().numpy() for part in verification))

    def _settle(self, verification: TreeVerification, first: bool = False) -> None:
        """Write what was emitted, end rows, teach the drafter and keep of the cache what stays."""
        texts, before, emitted = self._texts, self._open.copy(), verification.tokens
        counts = np.zeros(len(before), dtype=np.int64)
        ended = np.zeros(len(before), dtype=bool)
        for row in np.flatnonzero(before).tolist():
            tokens = emitted[row, : int(verification.num_accepted[row]) + 1]
            counts[row], ended[row] = self._stops.cut(texts, row, tokens)
            texts.write(row, int(texts.lengths[row]), tokens[: counts[row]])
        self._stops.check(texts, counts, ended)
        for row in np.flatnonzero(before).tolist():
            tokens = emitted[row, : counts[row]]
            accepted = min(int(verification.num_accepted[row]), len(tokens))
            self._drafts.accept(row, tokens, accepted)
            self._newest[row] = tokens[-1]
        texts.lengths += counts
        if not first:
            self._pass.keep(counts, verification.paths)
        for row in np.flatnonzero(ended).tolist():
            self._end(row)
        if self._streamer is not None:
            self._stream()

    def _end(self, row: int) -> None:
        self._open[row] = False
        self._newest[row] = 0
        self._texts.close(row)
        self._drafts.end(row)
        self._drafts.lengths[row] = 0
        if isinstance(self._pass, RowsPass):
            self._pass.release(row)

    def _stream(self) -> None:
        """Stream the tokens that all rows have, position by position."""
        lengths = self._texts.lengths
        end = int(lengths[self._open].min()) if self._open.any() else int(lengths.max())
        columns = self._texts.columns(self._streamed, end)
        for place in range(columns.shape[1]):
            self._streamer.put(columns[:, place])
        self._streamed = max(self._streamed, end)

    def _prompts(self) -> list[npt.NDArray[np.int32]]:
        """Return the prompts without padding."""
        ids = self._input_ids.cpu().numpy().astype(np.int32)
        mask = self._kwargs.get("attention_mask")
        if mask is None or mask.shape != self._input_ids.shape:
            return list(ids)
        there = mask.cpu().numpy() != 0
        return [np.ascontiguousarray(row[columns]) for row, columns in zip(ids, there, strict=True)]

    def _vocab_size(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def _result(self) -> Any:
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        sequences = self._texts.result()
        if not self._config.return_dict_in_generate:
            return sequences
        cache = self._pass.cache if isinstance(self._pass, CutPass) else None
        return GenerateDecoderOnlyOutput(sequences=sequences, **{cache_name(): cache})


class StopCriteria:
    """The stopping criteria of a call.

    End tokens and the length limit are checked here. Other criteria are called once for each text
    length that a pass reached, with the whole batch, and count for the rows that have just reached
    it; so they must be functions of the ids.

    Args:
        criteria: As generate() prepared them.
        prompt_len: Tokens of the padded prompts.
        pad: Id after a row's end, None for none.
        rows: Rows of the batch.

    Attributes:
        room: Tokens that a row may emit, >= 1.
        ends: Ids that end a row.

    Raises:
        InputError: Nothing bounds the length, or rows may end before others and there is no id to
            pad them with.
    """

    def __init__(
        self, criteria: Iterable[Any], prompt_len: int, pad: int | None, rows: int
    ) -> None:
        from transformers import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

        self._clocks: list[Any] = []
        self._others: list[Any] = []
        self.ends: tuple[int, ...] = ()
        longest = []
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                longest.append(criterion.max_length)
            elif type(criterion) is EosTokenCriteria:
                self.ends += tuple(int(token) for token in criterion.eos_token_id.flatten())
            elif type(criterion) is MaxTimeCriteria:
                self._clocks.append(criterion)
            else:
                self._others.append(criterion)
        if not longest:
            raise InputError("generate() set no length limit: set max_new_tokens")
        if rows > 1 and pad is None and (self.ends or self._others):
            raise InputError("rows of a batch end one by one: set pad_token_id to fill them up")
        self.room = max(1, min(longest) - prompt_len)
        self.reads_text = bool(self._others)
        self._ends = np.array(self.ends, dtype=np.int32)

    def cut(self, texts: Texts, row: int, token_ids: npt.NDArray[np.int32]) -> tuple[int, bool]:
        """Return how many of a row's next tokens belong to its text, and whether they end it."""
        room = self.room - int(texts.lengths[row])
        ends = np.flatnonzero((token_ids[:room, None] == self._ends).any(axis=1))
        if ends.size:
            return int(ends[0]) + 1, True
        return min(len(token_ids), room), len(token_ids) >= room

    def check(
        self, texts: Texts, counts: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]
    ) -> None:
        """Ask the other criteria about tokens just written.

        Args:
            texts: With the tokens written, but the lengths from before.
            counts: New tokens per row, shortened here where a row ends earlier.
            ended: Set here for rows that end.
        """
        if self._others and counts.any():
            starts = texts.lengths
            rows = counts > 0
            open_rows = rows.copy()
            for length in range(int(starts[rows].min()) + 1, int((starts + counts).max()) + 1):
                reached = open_rows & (starts < length) & (length <= starts + counts)
                if reached.any():
                    stop = reached & self._asked(self._others, texts.seen(length))
                    counts[stop] = length - starts[stop]
                    ended |= stop
                    open_rows &= ~stop
        if self._clocks:
            ended |= self._asked(self._clocks, texts.seen(int(texts.lengths.max(initial=0)))) & (
                counts > 0
            )

    @staticmethod
    def _asked(criteria: list[Any], ids: Any) -> npt.NDArray[np.bool_]:
        import torch

        done = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        for criterion in criteria:
            done = done | criterion(ids, None)
        answers: npt.NDArray[np.bool_] = done.cpu().numpy()
        return answers
