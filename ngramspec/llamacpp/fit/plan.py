"""plan: how many layers go to the GPUs and how long a context fits, from what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

ALL = -1
MARGIN = 1 << 30  # bytes left free, or
MARGIN_SHARE = 4  # the 4th part of what is free, if that is less
STEPS = 24  # most contexts that are planned in a search


@dataclass(frozen=True, kw_only=True)
class Space:
    """Free bytes.

    host: Of the host's memory.
    swap: Of its swap space.
    gpus: Of each GPU that may be used.
    shared: The GPUs use the host's memory.
    """

    host: int
    swap: int = 0
    gpus: tuple[int, ...] = ()
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Bytes of a model's weights.

    layers: Of each layer.
    host: What stays in the host's memory: token embeddings, and what a placement keeps there.
    output: Of the output, which goes to the GPU with the first layer that does.
    tied: Of token embeddings that serve as output as well: the GPU then has a copy.
    """

    layers: tuple[int, ...]
    host: int = 0
    output: int = 0
    tied: int = 0

    @property
    def total(self) -> int:
        return self.host + self.output + sum(self.layers)

    def on_gpus(self, layers: int) -> int:
        """Return the bytes of this many layers on GPUs, the output counted as one."""
        count = self.count(layers)
        if not count:
            return 0
        return self.output + self.tied + sum(self.layers[len(self.layers) - count + 1 :])

    def count(self, layers: int) -> int:
        """Return a number of layers between 0 and all, the output counted as one."""
        every = len(self.layers) + 1
        return every if layers < 0 else min(layers, every)

    def share(self, layers: int) -> float:
        """Return the part of the layers, without the output, that GPUs hold."""
        return max(0, self.count(layers) - 1) / max(1, len(self.layers))


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that a context takes, if all layers are where the placement puts them.

    context: Keys, values and states.
    host_compute, gpu_compute: What a decode needs.
    outputs: Rows of logits.
    beside_host, beside_gpus: Another model with its context, which is as long.
    """

    context: int
    host_compute: int = 0
    gpu_compute: int = 0
    outputs: int = 0
    beside_host: int = 0
    beside_gpus: int = 0

    def towards(self, other: Need, share: float) -> Need:
        """Return what lies on the line through two, 0 = this one, 1 = the other."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name))
                 for field in fields(self)}  # fmt: skip
        return Need(**{n: round(mine + share * (its - mine)) for n, (mine, its) in pairs.items()})


@dataclass(frozen=True, kw_only=True)
class FitWish:
    """What was asked for.

    tokens: Of the whole cache, at most.
    fixed: Not fewer either.
    layers: On the GPUs, -1 = all, None = the largest number that fits.
    least: Tokens below which a cache is not cut.
    step: Sizes of caches are multiples of it.
    margins: Bytes to leave free, of each GPU; without GPUs the first is the host's. () = a GiB, or
        a quarter of what is free.
    kept_on_host: The cache stays in the host's memory.
    """

    tokens: int
    fixed: bool = False
    layers: int | None = 0
    least: int = 4096
    step: int = 256
    margins: tuple[int, ...] = ()
    kept_on_host: bool = False


@dataclass(frozen=True, kw_only=True)
class Use:
    """Bytes that a plan takes: of the host's memory that files do not back, of the GPUs."""

    host_weights: int
    host: int  # without the weights
    gpus: int


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """What to do.

    layers: On the GPUs, -1 = all.
    tokens: Of the whole cache.
    use: What that takes.
    host_left, gpus_left: Bytes that it leaves free beyond the margins; below 0 = too few.
    """

    layers: int
    tokens: int
    use: Use
    host_left: int
    gpus_left: int

    @property
    def left(self) -> int:
        return min(self.host_left, self.gpus_left) if self.use.gpus else self.host_left


Measure = Callable[[int], Need]  # what a cache takes, by its number of tokens


def make_plan(space: Space, weights: Weights, measure: Measure, wish: FitWish) -> FitPlan:
    """Return the plan for what was asked and is free.

    All layers go to the GPUs if the shortest context fits beside them, otherwise the largest number
    that does. The context then gets what is left.

    Args:
        space: What is free.
        weights: Of the model.
        measure: Tells what contexts take.
        wish: What was asked for.
    """
    needs: dict[int, Need] = {}

    def at(layers: int, tokens: int) -> FitPlan:
        need = needs.get(tokens)
        if need is None:
            need = needs[tokens] = measure(tokens)
        use = use_of(weights, need, layers, wish.kept_on_host)
        host, gpus = _left(space, use, weights, wish)
        return FitPlan(layers=layers, tokens=tokens, use=use, host_left=host, gpus_left=gpus)

    least = wish.tokens if wish.fixed else min(wish.tokens, wish.least)
    layers = wish.layers
    if layers is None:
        layers = _most_layers(space, weights, lambda layers: at(layers, least))
    if wish.fixed:
        return at(layers, wish.tokens)
    return longest(lambda tokens: at(layers, tokens), least, wish.tokens, wish.step)


def longest(at: Callable[[int], FitPlan], least: int, most: int, step: int) -> FitPlan:
    """Return the plan with the longest context that fits, or with the least if none does.

    Args:
        at: Returns the plan for a number of tokens.
        least: Fewest tokens, taken whether they fit or not.
        most: Most tokens.
        step: Numbers of tokens between are multiples of it.

    Cost: a few plans, as memory grows almost evenly with tokens.
    """
    best = at(most)
    if best.left >= 0 or most <= least:
        return best
    over, best = best, at(least)
    for _ in range(STEPS):
        span = over.tokens - best.tokens
        if best.left < 0 or span <= step:
            break
        guess = best.tokens + span * best.left // max(1, best.left - over.left)
        guess = max(guess // step, best.tokens // step + 1) * step
        if guess >= over.tokens:
            break
        plan = at(guess)
        if plan.left < 0:
            over = plan
            continue
        best = plan
        after = at(plan.tokens + step) if plan.tokens + step < over.tokens else over
        if after.left < 0:
            break
        best = after
    return best


def use_of(weights: Weights, need: Need, layers: int, kept_on_host: bool = False) -> Use:
    """Return what a model takes, by its number of layers on the GPUs."""
    on_gpus = weights.on_gpus(layers)
    used = on_gpus > 0
    context_on_gpus = 0 if kept_on_host else round(need.context * weights.share(layers))
    tied = weights.tied if used else 0
    compute = need.host_compute if used else need.host_compute + need.gpu_compute
    return Use(
        host_weights=weights.total + tied - on_gpus,
        host=need.context - context_on_gpus + compute + need.outputs + need.beside_host,
        gpus=on_gpus + context_on_gpus + (need.gpu_compute if used else 0) + need.beside_gpus,
    )


def lacking(space: Space, use: Use, mapped: bool) -> int:
    """Return how many bytes are missing whatever else gives way, 0 = none.

    mapped: The host's weights are mapped from their file: the system can read them again.
    """
    host = use.host + (0 if mapped else use.host_weights) - space.host - space.swap
    gpus = use.gpus - sum(space.gpus)
    if space.shared:
        host += use.gpus
    return max(0, host, gpus)


def _left(space: Space, use: Use, weights: Weights, wish: FitWish) -> tuple[int, int]:
    """Return how many bytes of the host's memory and of the GPUs' stay free beyond the margins."""
    host = space.host - _margin(space.host, wish.margins if not space.gpus else ())
    host -= use.host + use.host_weights
    gpus = -use.gpus
    for number, free in enumerate(space.gpus):
        gpus += free - _margin(free, wish.margins[number:] or wish.margins[-1:])
    # Layers are not divided, so that each GPU but one may leave room for less than a layer.
    gpus -= max(0, len(space.gpus) - 1) * max(weights.layers, default=0)
    if space.shared:
        host -= use.gpus
        gpus = min(gpus, host)
    return host, gpus


def _most_layers(space: Space, weights: Weights, at: Callable[[int], FitPlan]) -> int:
    """Return the most layers that fit, -1 = all."""
    if not space.gpus:
        return 0
    if at(ALL).gpus_left >= 0:
        return ALL
    counts = range(len(weights.layers), 0, -1)
    return next((count for count in counts if at(count).gpus_left >= 0), 0)


def _margin(free: int, margins: tuple[int, ...]) -> int:
    return margins[0] if margins else min(MARGIN, free // MARGIN_SHARE)
