"""ngram-cache: counts of what followed each short n-gram, in three caches."""

from __future__ import annotations

from .source import Source

Followers = dict[int, int]
MIN_WEIGHTS = 2  # shortest static n-gram that re-weights the followers of others


class NgramCache:
    """n-gram -> follower -> count."""

    def __init__(self, ngram_min: int = 1, ngram_max: int = 4) -> None:
        self.ngram_min = ngram_min
        self.ngram_max = ngram_max
        self.counts: dict[tuple[int, ...], Followers] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def update(self, token_ids: list[int], start: int = 0) -> None:
        for size in range(self.ngram_min, self.ngram_max + 1):
            after = max(start, size)
            ngrams = zip(*(token_ids[after - back :] for back in range(size, 0, -1)), strict=False)
            for ngram, token in zip(ngrams, token_ids[after:], strict=False):
                followers = self.counts.setdefault(ngram, {})
                followers[token] = followers.get(token, 0) + 1

    def followers(self, ngram: list[int]) -> Followers:
        return self.counts.get(tuple(ngram), {})


class CacheSource(Source):
    """One slot: the context is counted anew from its history at every proposal."""

    def __init__(
        self,
        n_draft: int = 8,
        ngram_min: int = 1,
        ngram_max: int = 4,
        static: NgramCache | None = None,
        dynamic: NgramCache | None = None,
        lax_min_sample: tuple[int, ...] = (2, 2, 1, 1),
        lax_min_percent: tuple[int, ...] = (66, 50, 50, 50),
        strict_min_sample: tuple[int, ...] = (4, 3, 2, 2),
        strict_min_percent: tuple[int, ...] = (75, 66, 66, 66),
        static_min_sample: int = 2,
        static_min_percent: int = 50,
        static_veto: bool = True,
        dynamic_update: bool = True,
    ) -> None:
        self.n_draft = n_draft
        self.ngram_min = ngram_min
        self.ngram_max = ngram_max
        self.static = static if static is not None else NgramCache()
        self.dynamic = dynamic if dynamic is not None else NgramCache()
        self.lax = (lax_min_sample, lax_min_percent)
        self.strict = (strict_min_sample, strict_min_percent)
        self.static_min_sample = static_min_sample
        self.static_min_percent = static_min_percent
        self.static_veto = static_veto
        self.dynamic_update = dynamic_update and dynamic is not None

    def learn(self, history: list[int], start: int, committed: bool) -> None:
        if committed and self.dynamic_update:
            self.dynamic.update(history, start)

    def propose(self, history: list[int], max_tokens: int) -> list[int]:
        return self.propose_after(history, [], max_tokens)

    def propose_after(self, history: list[int], other: list[int], max_tokens: int) -> list[int]:
        self.ambiguous = False
        text = [*history, *other]
        if len(text) < 2:
            return []
        context = NgramCache(self.ngram_min, self.ngram_max)
        context.update(history)
        extended = list(text)
        while len(extended) - len(text) < min(self.n_draft, max_tokens):
            token = self.one_token(context, extended)
            if token is None:
                break
            extended.append(token)
        return extended[len(text) :]

    def one_token(self, context: NgramCache, extended: list[int]) -> int | None:
        sizes = range(min(4, len(extended)), 0, -1)
        by_size = [self.static.followers(extended[-size:]) for size in sizes]
        long = [counts for size, counts in zip(sizes, by_size, strict=True) if size >= MIN_WEIGHTS]
        weights = next((counts for counts in long if counts), {})
        token = self.from_counts(context, extended, weights, self.lax)
        if token is None:
            token = self.from_counts(self.dynamic, extended, weights, self.strict)
        limits = (self.static_min_sample, self.static_min_percent)
        while token is None and by_size:
            followers = by_size.pop(0)
            token = self.pick(followers, followers, limits, veto=True)
        return token

    def from_counts(
        self,
        cache: NgramCache,
        extended: list[int],
        static: Followers,
        limits: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> int | None:
        for size in range(min(self.ngram_max, len(extended)), self.ngram_min - 1, -1):
            followers = cache.followers(extended[-size:])
            score = {x: f * (100 * static[x] if x in static else 1) for x, f in followers.items()}
            at_size = (limits[0][size - 1], limits[1][size - 1])
            token = self.pick(followers, score, at_size, veto=self.static_veto)
            if token is not None:
                return token
        return None

    def pick(
        self, followers: Followers, score: Followers, limits: tuple[int, int], veto: bool
    ) -> int | None:
        """The follower with the highest score if it is frequent enough."""
        total = sum(followers.values())
        min_sample, min_percent = limits
        if not followers or total < min_sample:
            return None
        passing = [x for x, f in followers.items() if 100 * f >= min_percent * total]
        candidates = list(followers) if veto else passing
        top = max((score[x] for x in candidates), default=0)
        best = [x for x in candidates if score[x] == top]
        if len(best) > 1 and any(x in passing for x in best):
            self.ambiguous = True
        accepted = [x for x in best if x in passing]
        return accepted[0] if accepted else None
