"""Scores: logits processors, applied to each row as if the draft before it were emitted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np

from ngramspec.adapters.transformers.texts import Texts
from ngramspec.errors import InputError

# Processors of transformers that read only scores: one call for all rows of a pass.
PLAIN = {
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "InfNanRemoveLogitsProcessor"),
    *("LogitNormalization", "MinPLogitsWarper", "SuppressTokensLogitsProcessor"),
    *("TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper"),
    "TypicalLogitsWarper",
}
# Processors that count calls, or run the model: they must see each token once, in order.
STATEFUL = {
    *("AlternatingCodebooksLogitsProcessor", "ClassifierFreeGuidanceLogitsProcessor"),
    *("DiaClassifierFreeGuidanceLogitsProcessor", "DiaEOSChannelFilterLogitsProcessor"),
    *("DiaEOSDelayPatternLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"),
    *("UnbatchedClassifierFreeGuidanceLogitsProcessor", "WhisperNoSpeechDetection"),
}
HOME = "transformers.generation.logits_process"


class Scores:
    """The processors of a call, in their order.

    Processors that look at the text are called once for each length of text in the pass, with the
    whole batch, as generate() does; results for rows of another length are ignored. So they must be
    functions of ids and scores.

    Args:
        processors: LogitsProcessors as generate() prepared them.

    Raises:
        InputError: One of them is known to keep a state.
    """

    def __init__(self, processors: Iterable[Any]) -> None:
        known = list(processors)
        for processor in known:
            if _name(processor) in STATEFUL:
                raise InputError(
                    f"{_name(processor)} must see every token once, in order: unusable with drafts"
                )
        groups = groupby(known, key=lambda processor: _name(processor) in PLAIN)
        self._parts = [(plain, list(group)) for plain, group in groups]
        self.reads_text = any(not plain for plain, _ in self._parts)

    def apply(self, rows: Any, texts: Texts, lengths: Any, active: Any) -> Any:
        """Return the scores of a pass.

        Args:
            rows: float32 tensor (batch, queries, vocab_size), the logits; may be overwritten.
            texts: With each row's draft after its text, if `reads_text`.
            lengths: int (batch,), tokens of the drafts.
            active: int, rows of the batch that still generate.
        """
        for plain, processors in self._parts:
            if plain:
                flat = rows.reshape(-1, rows.shape[2])
                for processor in processors:
                    flat = processor(None, flat)
                rows = flat.reshape(rows.shape)
            else:
                rows = _apply_by_length(processors, rows, texts, lengths, active)
        return rows


def _apply_by_length(
    processors: list[Any], rows: Any, texts: Texts, lengths: Any, active: Any
) -> Any:
    """Call processors once for each length of text before a row of logits."""
    import torch

    starts = texts.lengths
    first = int(starts[active].min())
    last = int((starts + lengths)[active].max())
    every = torch.arange(rows.shape[0], device=rows.device)
    for length in range(first, last + 1):
        there = active[(starts[active] <= length) & (length <= (starts + lengths)[active])]
        if not there.size:
            continue
        index = np.clip(length - starts, 0, rows.shape[1] - 1)
        places = torch.from_numpy(index).to(rows.device)
        scores = rows[every, places]
        for processor in processors:
            scores = processor(texts.seen(length), scores)
        chosen = torch.from_numpy(there).to(device=rows.device, dtype=torch.int64)
        rows[chosen, places[chosen]] = scores[chosen].to(rows.dtype)
    return rows


def _name(processor: Any) -> str:
    kind = type(processor)
    return kind.__name__ if kind.__module__ == HOME else ""
