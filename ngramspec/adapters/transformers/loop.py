"""Loop: draft, one pass, verify, settle; until every row has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.adapters.transformers.drafts import Drafts
from ngramspec.adapters.transformers.passes import CutPass, RowsPass
from ngramspec.adapters.transformers.scores import Scores
from ngramspec.adapters.transformers.stops import Stops
from ngramspec.adapters.transformers.texts import Texts
from ngramspec.verify import position_uniforms, verify_greedy, verify_sampled


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
        self._stops = Stops(criteria, prompt_len, pad, rows)
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

    def run(self, drafter: Drafter, max_draft: int, streamer: Any) -> Any:
        """Generate, and return the result of generate()."""
        rows = self._input_ids.shape[0]
        self._drafts = Drafts(drafter, rows, max_draft, self._vocab_size(), self._stops.ends)
        self._width, self._streamer = max_draft, streamer
        common = (self._model, self._input_ids, self._config, self._kwargs)
        self._pass = CutPass(*common) if rows == 1 else RowsPass(*common, max_draft)
        try:
            logits = self._pass.prefill()
            for row, prompt in enumerate(self._prompts()):
                self._drafts.begin(row, prompt)
            self._settle(self._verified(logits, 0), 0)
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
        texts, lengths = self._texts, self._drafts.lengths
        rows = np.flatnonzero(self._open).astype(np.int32)
        limits = np.minimum(self._stops.room - 1 - texts.lengths[rows], self._width)
        width = self._drafts.propose(rows, limits.astype(np.int32))
        if self._scores.reads_text:
            for row in rows:
                draft = self._drafts.tokens[row, : lengths[row]]
                texts.write(int(row), int(texts.lengths[row]), draft)
        started = time.perf_counter()
        logits = self._pass.run(self._batch(width))
        made = self._verified(logits, width)
        self._drafts.observe(int(rows.size + lengths[rows].sum()), time.perf_counter() - started)
        self._settle(made, width + 1)

    def _batch(self, width: int) -> Any:
        """Return the newest token of each row, followed by its draft."""
        import torch

        ids = np.empty((len(self._newest), 1 + width), dtype=np.int64)
        ids[:, 0] = self._newest
        ids[:, 1:] = self._drafts.tokens[:, :width]
        # What follows a draft is of another text, or not a token at all.
        ids[:, 1:][np.arange(width) >= self._drafts.lengths[:, None]] = 0
        return torch.from_numpy(ids).to(self._input_ids.device)

    def _verified(self, logits: Any, width: int) -> npt.NDArray[np.int32]:
        """Return what each row emits, int32 (rows, 1 + width), then -1; waits for the device."""
        import torch

        drafts, lengths = self._drafts.tokens[:, :width], self._drafts.lengths
        active = np.flatnonzero(self._open)
        scores = self._scores.apply(logits, self._texts, lengths, active)
        if self._seeds is None:
            made = verify_greedy(scores, drafts, lengths)
        else:
            probs = torch.softmax(scores, dim=-1)
            if probs.device.type == "mps":  # has no float64
                probs = probs.cpu()
            uniforms = position_uniforms(self._seeds, self._texts.lengths, 1 + width)
            made = verify_sampled(probs, drafts, lengths, method=self._method, uniforms=uniforms)
        emitted: npt.NDArray[np.int32] = made.tokens.cpu().numpy()
        return emitted

    def _settle(self, emitted: npt.NDArray[np.int32], queries: int) -> None:
        """Write what was emitted, end rows, teach the drafter and cut the cache."""
        texts, before = self._texts, self._open.copy()
        counts = np.zeros(len(before), dtype=np.int64)
        ended = np.zeros(len(before), dtype=bool)
        for row in np.flatnonzero(before).tolist():
            said = emitted[row, : int((emitted[row] >= 0).sum())]
            counts[row], ended[row] = self._stops.cut(texts, row, said)
            texts.write(row, int(texts.lengths[row]), said[: counts[row]])
        self._stops.check(texts, counts, ended)
        for row in np.flatnonzero(before).tolist():
            said = emitted[row, : counts[row]]
            accepted = min(int((emitted[row] >= 0).sum()) - 1, len(said))
            self._drafts.accept(row, said, accepted)
            self._newest[row] = said[-1]
        texts.lengths += counts
        if queries:
            self._pass.keep(counts, queries)
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
        return [np.ascontiguousarray(row[kept]) for row, kept in zip(ids, there, strict=True)]

    def _vocab_size(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def _result(self) -> Any:
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        sequences = self._texts.result()
        if not self._config.return_dict_in_generate:
            return sequences
        cache = self._pass.cache if isinstance(self._pass, CutPass) else None
        return GenerateDecoderOnlyOutput(sequences=sequences, past_key_values=cache)
