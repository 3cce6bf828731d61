"""What a statistics file holds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.entries import tokens_of
from ngramspec.files.dates import NANO, date_of
from ngramspec.files.entries import (
    COUNT_MASK,
    FOLLOWER_SHIFT,
    OLDEST_SHIFT,
    Entries,
    EntrySource,
    no_entries,
    starts_of,
)
from ngramspec.files.pool_file import CONFIDENCE_SHIFT
from ngramspec.files.statistics import (
    INDEX_KIND,
    POOL_COUNTERS,
    POOL_KIND,
    SUCCESSORS_KIND,
    Statistics,
)
from ngramspec.files.successor_file import facts_of

Counts = NDArray[np.int64]


def describe(statistics: Statistics, top: int = 10) -> dict[str, Any]:
    """Return what `ngramspec cache inspect --json` prints, without tokenizer and texts.

    Args:
        statistics: The file.
        top: How many of each size's most frequent n-grams to list; 0 = none, without a scan.

    Returns:
        path, kind, sizes and dates, the tokenizer's fingerprint in hexadecimal digits, `about`
        (the provenance), and "pool", "index", "successors" or "sizes", with an entry per size.

    Cost: O(n-grams) with top, O(cells) for a pool.
    """
    facts: dict[str, Any] = {"path": str(statistics.path), "kind": statistics.kind}
    if statistics.container is not None:
        header = statistics.container.header
        facts |= {"version": header.version, "producer": header.producer}
    modified = date_of(statistics.path.stat().st_mtime_ns // NANO)
    facts |= {"file_bytes": statistics.file_bytes, "modified": modified}
    facts["fingerprint"] = statistics.fingerprint.hex() if statistics.fingerprint else None
    facts["vocab_size"] = statistics.vocab_size or None
    if statistics.kind == POOL_KIND:
        facts["pool"] = _pool(statistics)
    elif statistics.kind == INDEX_KIND:
        facts["index"] = _index(statistics)
    elif statistics.kind == SUCCESSORS_KIND:
        facts["successors"] = facts_of(statistics.opened(SUCCESSORS_KIND))
    else:
        num = sum(statistics.cache.num_ngrams(size) for size in statistics.sizes)
        facts["ngram_min"] = min(statistics.sizes, default=0)
        facts["ngram_max"] = max(statistics.sizes, default=0)
        facts["num_ngrams"] = num
        facts["bytes_per_ngram"] = statistics.file_bytes / num if num else None
        facts["sizes"] = [_size(statistics, size, top) for size in statistics.sizes]
    facts["about"] = statistics.about
    return facts


def _size(statistics: Statistics, size: int, top: int) -> dict[str, Any]:
    """Describe one n-gram size; top > 0 scans its entries."""
    sections = statistics.cache.sections(size)
    num_bytes = 4 * sum(map(len, sections or ())) if statistics.container is not None else None
    facts: dict[str, Any] = {"size": size, "num_ngrams": statistics.cache.num_ngrams(size)}
    facts["bytes"] = num_bytes
    if top:
        summary = survey(statistics.sources()[size], size, top)
        facts |= {"num_pairs": summary.num_pairs, "occurrences": summary.occurrences}
        pairs = zip(summary.top.tolist(), summary.counts.tolist(), strict=True)
        facts["top"] = [_ngram(statistics, ngram, count) for ngram, count in pairs]
    return facts


def _ngram(statistics: Statistics, ngram: list[int], count: int) -> dict[str, Any]:
    followers = statistics.cache.followers(ngram)
    best, best_count = next(iter(followers.items()))
    return {
        "token_ids": ngram,
        "count": count,
        "num_followers": len(followers),
        "follower": {"token_id": best, "count": best_count},
    }


def _pool(statistics: Statistics) -> dict[str, Any]:
    shape, cells = statistics.shape, statistics.cells
    used = cells[cells != 0]
    return {
        "n_match": shape.n_match,
        "capacity": shape.capacity,
        "check_bits": shape.check_bits,
        "max_occupancy": shape.max_occupancy,
        "num_used": len(used),
        "occupancy": len(used) / shape.capacity,
        "by_confidence": np.bincount(used >> CONFIDENCE_SHIFT, minlength=4).tolist(),
        "counters": dict(zip(POOL_COUNTERS, statistics.counters.tolist(), strict=False)),
    }


def _index(statistics: Statistics) -> dict[str, Any]:
    container, index = statistics.opened(INDEX_KIND), statistics.index
    return {
        "num_tokens": index.num_tokens,
        "num_texts": index.num_texts,
        "num_positions": container.header.num_ngrams,
        "bytes_per_token": statistics.file_bytes / index.num_tokens if index.num_tokens else None,
        "sections": {name: section.size for name, section in container.sections.items()},
    }


@dataclass
class Survey:
    """What a pass found.

    num_pairs: Pairs of n-gram and follower. occurrences: Sum of all counts.
    top: The most frequent n-grams, token ids; counts: how often each occurred.
    """

    num_ngrams: int = 0
    num_pairs: int = 0
    occurrences: int = 0
    top: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    counts: Counts = field(default_factory=lambda: np.empty(0, np.int64))


def survey(source: EntrySource, size: int, most: int) -> Survey:
    """Read all entries of an n-gram size.

    Args:
        source: The entries, such as Statistics.sources()[size].
        size: Tokens of an n-gram, 1..4.
        most: N-grams to return in `top`; of equally frequent ones the smaller ids come first.

    Cost: O(entries); memory for a chunk of them and `most` n-grams.
    """
    summary = Survey()
    best, counts = no_entries(), np.empty(0, np.int64)
    held = no_entries()  # the last n-gram of a chunk may continue in the next
    while len(entries := source.read()):
        entries = np.concatenate([held, entries])
        starts = starts_of(entries, OLDEST_SHIFT)
        whole, held = entries[: starts[-1]], entries[starts[-1] :]
        best, counts = _add(summary, whole, best, counts, most)
    best, summary.counts = _add(summary, held, best, counts, most)
    summary.top = tokens_of(np.ascontiguousarray(best), size)[:, :size]
    return summary


def _add(
    summary: Survey, entries: Entries, best: Entries, counts: Counts, most: int
) -> tuple[Entries, Counts]:
    """Count whole n-grams; return the most frequent ones so far, one entry each."""
    if not len(entries):
        return best, counts
    starts = starts_of(entries, OLDEST_SHIFT)
    new = np.add.reduceat((entries[:, 1] & COUNT_MASK).astype(np.int64), starts)
    summary.num_ngrams += len(starts)
    summary.num_pairs += len(starts_of(entries, FOLLOWER_SHIFT))  # a large count is several entries
    summary.occurrences += int(new.sum())
    keys = entries[starts]
    if len(counts) == most and most:
        chosen = new >= counts[-1]
        keys, new = keys[chosen], new[chosen]
    best, counts = np.concatenate([best, keys]), np.concatenate([counts, new])
    if len(counts) > most > 0:  # sort only those that can stay
        chosen = counts >= np.partition(counts, len(counts) - most)[len(counts) - most]
        best, counts = best[chosen], counts[chosen]
    order = np.lexsort((best[:, 1], best[:, 0], -counts))[:most]
    return best[order], counts[order]
