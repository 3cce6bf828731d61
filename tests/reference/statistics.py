"""Statistics files: what a corpus holds, merged, thinned out and laid out, in plain dicts.

A pair is an n-gram with its follower behind it, as one tuple.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .mod import MAX_CONFIDENCE, ngram_hash

Pair = tuple[int, ...]
Ngram = tuple[int, ...]
Counts = Counter[Pair]
Continuation = tuple[int, int, int]  # cell, check bits, follower
COUNT_MAX = 2**31 - 1
CLASS_BITS = 6  # leading bits of value per byte that tell usefulness classes apart


def count_pairs(documents: Iterable[Sequence[int]], size: int) -> Counts:
    """How often each token followed each n-gram; none crosses the border of a document."""
    counts: Counts = Counter()
    for tokens in documents:
        for i in range(size, len(tokens)):
            counts[tuple(tokens[i - size : i + 1])] += 1
    return counts


def merged(parts: Iterable[Mapping[Pair, int]], min_count: int = 1) -> Counts:
    """The sum of several counts, without what came less than min_count times in all."""
    total: Counts = Counter()
    for part in parts:
        for pair, count in part.items():
            total[pair] = min(COUNT_MAX, total[pair] + count)
    return Counter({pair: count for pair, count in total.items() if count >= min_count})


def beyond(counts: Mapping[Pair, int], older: Mapping[Pair, int]) -> Counts:
    """By how much counts exceed known ones."""
    more = {pair: count - older.get(pair, 0) for pair, count in counts.items()}
    return Counter({pair: count for pair, count in more.items() if count > 0})


def followers_of(counts: Mapping[Pair, int], ngram: Sequence[int]) -> dict[int, int]:
    """What followed an n-gram, the most frequent first, the smaller token first on ties."""
    followers = {pair[-1]: count for pair, count in counts.items() if pair[:-1] == tuple(ngram)}
    return dict(sorted(followers.items(), key=lambda item: (-item[1], item[0])))


def by_ngram(counts: Mapping[Pair, int]) -> dict[Ngram, dict[int, int]]:
    """The followers of every n-gram."""
    grouped: dict[Ngram, dict[int, int]] = {}
    for pair, count in counts.items():
        grouped.setdefault(pair[:-1], {})[pair[-1]] = count
    return grouped


def best_follower(followers: Mapping[int, int]) -> int:
    """The most frequent follower, the smallest token on ties."""
    return min(followers, key=lambda token: (-followers[token], token))


def drafts(followers: Mapping[int, int]) -> bool:
    """Whether an n-gram drafts by itself: 2 occurrences, half of them of one follower."""
    total = min(COUNT_MAX, sum(followers.values()))
    return total >= 2 and 2 * max(followers.values()) >= total


def record_bytes(size: int, followers: Mapping[int, int]) -> int:
    """Bytes of a record, its share of the index and its list, if it has one."""
    words = {1: 3, 2: 3, 3: 4, 4: 5}[size]
    words += 3 + 2 * len(followers) if len(followers) > 1 else 0
    return 4 * words + 2


def usefulness(followers: Mapping[Ngram, Mapping[int, int]], ngram: Ngram) -> int:
    """The class of an n-gram: how often its draft was right per byte, by the leading bits.

    One that does not draft, or drafts what the next shorter one drafts too, counts a 64th.
    """
    own, shorter = followers[ngram], followers.get(ngram[1:], {})
    worth = 64 if drafts(own) else 1
    if shorter and drafts(shorter) and best_follower(shorter) == best_follower(own):
        worth = 1
    score = (max(own.values()) * worth << 20) // record_bytes(len(ngram), own)
    exponent = max(0, score.bit_length() - CLASS_BITS)
    return (exponent << CLASS_BITS - 1) + (score >> exponent)


def most_useful(
    counts: Mapping[Pair, int], order: Sequence[Ngram], max_bytes: float, max_ngrams: float
) -> set[Ngram]:
    """The n-grams that pruning keeps of all sizes together, given in the order of the file.

    Whole classes from the most useful on; of the first one that does not fit, what still does.
    """
    followers = by_ngram(counts)
    classes: dict[int, list[Ngram]] = {}
    for ngram in order:
        classes.setdefault(usefulness(followers, ngram), []).append(ngram)
    chosen: set[Ngram] = set()
    for number in sorted(classes, reverse=True):
        ngrams = classes[number]
        needed = {ngram: record_bytes(len(ngram), followers[ngram]) for ngram in ngrams}
        whole = sum(needed.values()) <= max_bytes and len(ngrams) <= max_ngrams
        for ngram in ngrams:
            if needed[ngram] <= max_bytes and max_ngrams >= 1:
                chosen.add(ngram)
                max_bytes -= needed[ngram]
                max_ngrams -= 1
        if not whole:
            break
    return chosen


def continuations(
    documents: Iterable[Sequence[int]], n_match: int, cell_bits: int, check_bits: int
) -> Counter[Continuation]:
    """What followed each n-gram of n_match tokens, as far as a pool tells n-grams apart."""
    counts: Counter[Continuation] = Counter()
    for tokens in documents:
        for i in range(n_match, len(tokens)):
            hashed = ngram_hash(tuple(tokens[i - n_match : i]))
            cell, check = hashed % (1 << cell_bits), hashed >> (64 - check_bits)
            counts[cell, check, tokens[i]] += 1
    return counts


def pool_cells(
    counts: Mapping[Continuation, int], cell_bits: int, max_occupancy: float
) -> list[int]:
    """The words of a pool: the most frequent continuation of each cell, the rarest left out.

    Ties: the smaller check bits, then the smaller token; of cells, the lower one stays.
    """
    best: dict[int, tuple[int, int, int]] = {}  # cell -> -count, check, token; the least one wins
    for (cell, check, token), count in counts.items():
        entry = (-min(count, COUNT_MAX), check, token)
        best[cell] = min(best.get(cell, entry), entry)
    room = int((1 << cell_bits) * max_occupancy)
    cells = sorted(best, key=lambda cell: (best[cell][0], cell))[:room]
    words = [0] * (1 << cell_bits)
    for cell in cells:
        count, check, token = best[cell]
        confidence = min(-count - 1, MAX_CONFIDENCE)
        words[cell] = confidence << 30 | check << 22 | token + 1
    return words


MASK = 2**64 - 1


def key_of(ngram: Ngram) -> tuple[int, int]:
    """What n-grams are sorted by in a file: the mixed word `a`, the oldest token of a 4-gram."""
    newest = ngram[-3:]
    bits = 21 * len(newest)
    x = sum(token << 21 * i for i, token in enumerate(reversed(newest))) << 64 - bits
    oldest = ngram[0] if len(ngram) == 4 else 0
    if len(ngram) == 4:
        x += (oldest + 1) * 0xA24BAED4963EE407 * 2
    x = x * 0x9E3779B97F4A7C15 & MASK
    x ^= (x >> (bits + 1) // 2) & (MASK << 64 - bits & MASK)
    return x * 0xD6E8FEB86659FD93 & MASK, oldest


def section_words(counts: Mapping[Pair, int], size: int) -> tuple[list[int], list[int], list[int]]:
    """The sections of one n-gram size: records, lists and index, as words."""
    followers = by_ngram(counts)
    order = sorted(followers, key=key_of)
    records: list[int] = []
    lists: list[int] = []
    for ngram in order:
        (a, oldest), own = key_of(ngram), followers[ngram]
        best, many = best_follower(own), len(own) > 1
        if size < 3:
            a |= many << 21 | best
        records += [a & 0xFFFFFFFF, a >> 32]
        records += [oldest] * (size == 4) + [many << 31 | best] * (size > 2)
        records.append(len(lists) if many else own[best])
        if many:
            lists += [len(own), min(COUNT_MAX, sum(own.values())), own[best]]
            for token in sorted(own):
                lists += [token, own[token]]
    k = 0
    while len(order) >> k > 4:
        k += 1
    tops = [key_of(ngram)[0] >> 64 - k for ngram in order]
    return records, lists, [sum(top < i for top in tops) for i in range((1 << k) + 1)]
