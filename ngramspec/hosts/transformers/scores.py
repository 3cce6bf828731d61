"""Scores: logits processors, applied to each token as if the draft before it were emitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import numpy as np

from ngramspec.errors import InputError
from ngramspec.hosts.transformers.nodes import Nodes, Texts

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
# Modules of others whose processors go on from what they saw in the call before.
GOING_ON = ("outlines.backends", "xgrammar.contrib")
HOME = "transformers.generation.logits_process"


class Scores:
    """The processors of a call, in their order.

    Processors that look at the text are called once for each length of text in the pass, with the
    whole batch, as generate() does; where drafts branch, once more for each further text of that
    length. A row that has none is shown another row's text, and its result is ignored; a
    prefix_allowed_tokens_fn is not asked about it. No text goes on from a token whose score became
    -inf. So they must be functions of ids and scores.

    Args:
        processors: LogitsProcessors as generate() prepared them.

    Raises:
        InputError: One of them is known to keep a state.
    """

    def __init__(self, processors: Iterable[Any]) -> None:
        processors = list(processors)
        for processor in processors:
            if _keeps_state(processor):
                raise InputError(
                    f"{type(processor).__name__} must see every token once, in order: unusable "
                    "with drafts"
                )
        groups = groupby(processors, key=lambda processor: _name(processor) in PLAIN)
        self._parts = [(plain, list(group)) for plain, group in groups]
        self.reads_text = any(not plain for plain, _ in self._parts)

    def apply(self, rows: Any, texts: Texts, nodes: Nodes, active: Any) -> Any:
        """Return the scores of a pass.

        Args:
            rows: float32 tensor (batch, queries, vocab_size), the logits; may be overwritten.
            texts: Drafts are written after the texts, if `reads_text`.
            nodes: The tokens of the pass.
            active: int, rows of the batch that still generate.
        """
        for plain, processors in self._parts:
            if plain:
                flat = rows.reshape(-1, rows.shape[2])
                for processor in processors:
                    flat = processor(None, flat)
                rows = flat.reshape(rows.shape)
            else:
                rows = _apply_by_text(processors, rows, texts, nodes, active)
        return rows


def _apply_by_text(
    processors: list[Any], rows: Any, texts: Texts, nodes: Nodes, active: Any
) -> Any:
    """Call processors for each length of text before a row of logits, and each such text."""
    import torch

    every = torch.arange(rows.shape[0], device=rows.device)
    shown: dict[int, list[int]] = {}  # by row the path that stands after its text
    out: set[tuple[int, int]] = set()  # nodes that processors rule out: no text goes on from them
    for length, turn in _turns(texts, nodes, active):
        chosen = {row: node for row, node in turn.items() if (row, node) not in out}
        out |= {
            (row, later)
            for row, node in turn.items()
            if (row, node) in out
            for later in nodes.after(row, node)
        }
        if not chosen:
            continue
        index = np.zeros(rows.shape[0], dtype=np.int64)
        for row, node in chosen.items():
            index[row] = node
            path = nodes.path(row, node)
            if shown.get(row, [])[: len(path)] != path:
                shown[row] = nodes.path(row, nodes.leaf(row, node))
                texts.write(row, int(texts.lengths[row]), nodes.ids[row, shown[row]])
        places = torch.from_numpy(index).to(rows.device)
        seen, scores = texts.seen(length), rows[every, places]
        there = torch.tensor(list(chosen), device=rows.device)
        if len(chosen) < len(rows):  # the others' texts are not so long, and what is there is none
            seen = seen[torch.where(torch.isin(every, there), every, there[0])]
        for processor in processors:
            scores = _called(processor, seen, scores, list(chosen))
        rows[there, places[there]] = scores[there].to(rows.dtype)
        out |= _ruled_out(rows, nodes, chosen)
    return rows


def _called(processor: Any, ids: Any, scores: Any, rows: list[int]) -> Any:
    """Return what a processor makes of scores; those of other rows may be anything.

    prefix_allowed_tokens_fn is told the numbers of rows, and may know no other text of theirs.
    """
    if _name(processor) != "PrefixConstrainedLogitsProcessor":
        return processor(ids, scores)
    allowed = processor._prefix_allowed_tokens_fn
    own = type(processor)(lambda i, text: allowed(rows[i], text), 1)
    scores[rows] = own(ids[rows], scores[rows])
    return scores


def _ruled_out(rows: Any, nodes: Nodes, chosen: dict[int, int]) -> set[tuple[int, int]]:
    """Return which nodes that come right after some have a score of -inf there."""
    import torch

    pairs = [(row, node, later) for row, node in chosen.items() for later in nodes.after(row, node)]
    if not pairs:
        return set()
    at = torch.tensor([[r, n, int(nodes.ids[r, later])] for r, n, later in pairs]).to(rows.device)
    never = torch.isneginf(rows[at[:, 0], at[:, 1], at[:, 2]]).tolist()
    return {(row, later) for (row, _, later), no in zip(pairs, never, strict=True) if no}


def _turns(texts: Texts, nodes: Nodes, active: Any) -> Iterator[tuple[int, dict[int, int]]]:
    """Yield each length of text, with a node per row that has one there, until all had a turn."""
    waiting: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in active.tolist():
        for node in range(1 + int(nodes.lengths[row])):
            length = int(texts.lengths[row] + nodes.depths[row, node])
            waiting[length][row].append(node)
    for length in sorted(waiting):
        rows = waiting[length]
        for turn in range(max(map(len, rows.values()))):
            yield length, {row: ids[turn] for row, ids in rows.items() if turn < len(ids)}


def _keeps_state(processor: Any) -> bool:
    # xgrammar's can also read the whole text in each call.
    if getattr(getattr(processor, "call_fn", None), "__name__", "") == "stateless_call":
        return False
    return any(
        (kind.__module__ == HOME and kind.__name__ in STATEFUL)
        or kind.__module__.startswith(GOING_ON)
        for kind in type(processor).__mro__
    )


def _name(processor: Any) -> str:
    kind = type(processor)
    return kind.__name__ if kind.__module__ == HOME else ""
