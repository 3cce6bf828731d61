"""Costs of passes by batch size, given and learnt: the slow twin of `policy.costs`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ngramspec.costs import CostTable

MOST = 1024


class PassCosts:
    """`now[b]` is the cost of a pass over b tokens; sizes with a weight were observed."""

    def __init__(self, table: CostTable | None = None) -> None:
        self.listed = table.costs[-1][0] if table else 0
        first = table.dense(MOST) if table else [1 + 0.1 * i for i in range(MOST)]
        self.first = [0.0, *first]
        self.prior = list(self.first)  # the shape that sizes follow that were never seen
        self.now = list(self.first)
        self.weight = [0.0] * (MOST + 1)
        self.shown = [0.0] * (MOST + 1)  # ratio to the prior, as those around know it
        self.steep, self.timed, self.age = 1.0, False, 0
        self.pace = 1.0  # what a cost of 1 takes now

    def at(self, tokens: int) -> float:
        """The cost of a batch; beyond the table it goes on as in its second half."""
        if tokens <= MOST:
            return self.now[tokens]
        slope = (self.now[MOST] - self.now[MOST // 2]) / (MOST - MOST // 2)
        return self.now[MOST] + max(slope, 0.0) * (tokens - MOST)

    def seen_often(self, tokens: int) -> bool:
        """Whether sizes like this one, a quarter more or less, were seen twice."""
        near = range(tokens - tokens // 4, min(tokens + tokens // 4, MOST) + 1)
        return sum(self.weight[i] for i in near) >= 2

    def seen(self) -> list[int]:
        """The sizes that were observed and not forgotten."""
        return [i for i in range(1, MOST + 1) if self.weight[i] > 0]

    def observe(self, tokens: int, seconds: float) -> None:
        """A mean over at most 32 observations, each counted as at most 4 times what is known."""
        if not (0 < tokens <= MOST and 0 < seconds < math.inf):
            return
        current = self.now[tokens] if self.timed else seconds
        if self.timed and self.weight[tokens] == 0:
            self.weight[tokens] = 0.25
        self.timed = True
        seconds = min(max(seconds / self.pace, current / 4), current * 4)
        if self.weight[tokens] >= 8:
            change = (seconds / current) ** 0.25
            self.pace *= change
            seconds /= change
        if seconds < current / 2 and self.weight[tokens] < 8:
            self.weight[tokens], self.now[tokens] = 1.0, seconds
        else:
            self.weight[tokens] = min(self.weight[tokens] + 1, 32.0)
            self.now[tokens] = current + (seconds - current) / self.weight[tokens]
        ratio = self.now[tokens] / self.prior[tokens]
        if abs(ratio - self.shown[tokens]) > 0.02 * self.shown[tokens]:
            self.shown[tokens] = ratio
            below = max((i for i in self.seen() if i < tokens), default=0)
            above = min((i for i in self.seen() if i > tokens), default=MOST + 1)
            self.fill(below, tokens)
            self.fill(tokens, above)
            self.fit()
        self.age += 1
        if self.age == 512:
            self.forget()

    def fill(self, a: int, b: int) -> None:
        """Sizes between two seen ones: the prior scaled, plus a line that meets both."""
        low = high = 0.0
        if a > 0 and b <= MOST:
            scale = math.sqrt(self.shown[a] * self.shown[b])
            low = self.prior[a] * (self.shown[a] - scale)
            high = self.prior[b] * (self.shown[b] - scale)
        elif a > 0:
            scale = self.outer([i for i in reversed(self.seen()) if a / 2 <= i <= a][:4])
        else:
            scale = self.outer([i for i in self.seen() if b <= i <= 2 * b][:4])
        for i in range(a + 1, b):
            line = self.prior[i] * scale + low + (high - low) * (i - a) / (b - a)
            self.now[i] = max(line, self.prior[i] * scale / 4)

    def outer(self, sizes: Sequence[int]) -> float:
        """The geometric mean of ratios, by how often each was seen."""
        total = sum(self.weight[i] for i in sizes)
        return math.exp(sum(self.weight[i] * math.log(self.shown[i]) for i in sizes) / total)

    def fit(self) -> None:
        """How much steeper costs rise than those given: a line through (given, seen) costs."""
        sizes = [i for i in self.seen() if i <= 256]
        if not sizes:
            return
        x = [self.first[i] / self.first[1] - 1 for i in sizes]
        y = [self.now[i] / self.now[1] for i in sizes]
        w = [self.weight[i] / cost**2 for i, cost in zip(sizes, y, strict=True)]
        total = sum(w)
        middle = sum(a * b for a, b in zip(w, x, strict=True)) / total
        height = sum(a * b for a, b in zip(w, y, strict=True)) / total
        spread = sum(a * b * b for a, b in zip(w, x, strict=True)) - total * middle**2
        both = sum(a * b * c for a, b, c in zip(w, x, y, strict=True)) - total * middle * height
        slope = (both + 0.02) / (spread + 0.02)
        base = height - slope * middle
        steep = 100.0 if base <= 0 else min(max(slope / base, 0.01), 100.0)
        span = abs(self.first[64] / self.first[1] - 1)
        if abs(steep - self.steep) * span > 0.02 * (1 + self.steep * span):
            self.steep = steep
            for i in range(1, MOST + 1):
                listed = self.first[i] / self.first[1]
                self.prior[i] = max(1 + steep * (listed - 1), 0.01 * listed)
            self.refill()

    def forget(self) -> None:
        """Halve the weights; what was seen too long ago counts as never seen."""
        self.age = 0
        for i in range(1, MOST + 1):
            self.weight[i] /= 2
            if self.weight[i] < 0.25:
                self.weight[i] = self.shown[i] = 0.0
        self.refill()

    def refill(self) -> None:
        """Fill all sizes that were not seen."""
        sizes = self.seen()
        for i in sizes:
            self.shown[i] = self.now[i] / self.prior[i]
        for a, b in zip([0, *sizes], [*sizes, MOST + 1], strict=True):
            if sizes:
                self.fill(a, b)
