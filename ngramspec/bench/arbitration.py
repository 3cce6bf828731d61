"""The replay of a set with a second source beside our drafter, known by recorded lengths alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ngramspec._native.policy.arbiter import Arbiter, Asked
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.bench.player import Tokens
from ngramspec.bench.subjects import AUTO, parse_spec
from ngramspec.bench.traces import Trace
from ngramspec.bench.walk import right_prefix
from ngramspec.costs import CostTable
from ngramspec.drafters import create_drafter
from ngramspec.errors import InputError

LONGEST = 64  # of our drafts
MOST_TOKENS = 1023
NOTHING = Asked(0, 0, False)


@dataclass(frozen=True)
class OtherSource:
    """A draft source that takes time.

    name: in the records.
    tokens: its longest draft.
    price: what each drafted token takes, in passes of the target over one token.
    start: what each draft takes beside that.
    """

    name: str
    tokens: int
    price: float
    start: float = 0.0

    def cost(self, tokens: int) -> float:
        """Return what a draft takes, in passes over one token."""
        return self.start + self.price * tokens if tokens else 0.0


def parse_other(spec: str) -> OtherSource:
    """Return the source that "NAME:tokens=K,price=P,start=S" describes; start is 0 if not given.

    Raises:
        InputError: It has another form, or a value is out of its bounds.
    """
    name, given = parse_spec(spec)
    unknown = given.keys() - {"tokens", "price", "start"}
    if not name or unknown or not {"tokens", "price"} <= given.keys():
        raise InputError(f"{spec!r}: expected NAME:tokens=K,price=P and perhaps start=S")
    tokens = given["tokens"]
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MOST_TOKENS:
        raise InputError(f"{spec!r}: tokens must be a whole number in 1..{MOST_TOKENS}")
    for key in ("price", "start"):
        value = given.get(key, 0.0)
        if isinstance(value, (bool, str)) or not (math.isfinite(value) and value >= 0):
            raise InputError(f"{spec!r}: {key} must be a number >= 0, in passes of the target")
    return OtherSource(name, tokens, float(given["price"]), float(given.get("start", 0.0)))


@dataclass(frozen=True)
class Arbitration:
    """Modelled speed-ups over plain decoding on a set, for one target.

    ours: our drafter alone.
    other: the other source alone, its drafts all of the best one length.
    other_tokens: that length, 0 = none pays.
    arbiter: both, chosen by the policy.
    perfect: both, chosen at each pass by what they turn out to bring per time; the other source
        drafts exactly its right tokens.
    asked: passes in which the arbiter asked the other source, of `passes`.
    """

    ours: float
    other: float
    other_tokens: int
    arbiter: float
    perfect: float
    asked: int
    passes: int

    def as_json(self) -> dict[str, Any]:
        """Return the figures, rounded."""
        return {key: round(value, 4) for key, value in asdict(self).items()}


def arbitrate(
    trace: Trace,
    source: OtherSource,
    profile: CostTable,
    *,
    advance: Callable[[], object] = lambda: None,
) -> Arbitration:
    """Replay a set with our drafter and a second source.

    A pass at output position i with the source's draft of m tokens emits min(lengths[i], m + 1).

    Args:
        trace: Requests with `other_lengths` of this source.
        source: The second source.
        profile: Costs of the target.
        advance: Called after each request of each of four replays.

    Raises:
        InputError: A request has no lengths of the source.
    """
    lengths = [_lengths(trace, i, source) for i in range(len(trace.requests))]
    single = profile.cost(1)
    costs = [profile.cost(size) / single for size in range(1, LONGEST + source.tokens + 2)]
    walks = [
        _Walk(trace, lengths, source, profile, costs, choice) for choice in (None, "policy", "best")
    ]
    ours, arbiter, perfect = (walk.run(advance) for walk in walks)
    other, tokens = _alone(trace, lengths, source, costs)
    for _ in trace.requests:
        advance()
    return Arbitration(ours, other, tokens, arbiter, perfect, walks[1].asked, walks[1].passes)


def _lengths(trace: Trace, index: int, source: OtherSource) -> Sequence[int]:
    request = trace.requests[index]
    found = request.other_lengths.get(source.name)
    if found is None:
        known = ", ".join(request.other_lengths) or "none"
        raise InputError(
            f"{trace.name}, request {index + 1}: no other_lengths of {source.name!r}, only {known}"
        )
    lengths: list[int] = found.tolist()
    return lengths


def _alone(
    trace: Trace,
    lengths: Sequence[Sequence[int]],
    source: OtherSource,
    costs: Sequence[float],
) -> tuple[float, int]:
    """Return the best speed-up of the source alone with drafts of one length, and that length."""
    best = (1.0, 0)
    for most in range(1, source.tokens + 1):
        emitted, spent = 0, 0.0
        for request, known in zip(trace.requests, lengths, strict=True):
            done, length = 1, len(request.output)
            while done < length:
                tokens = min(most, length - done)
                right = min(known[done] - 1, tokens)
                spent += costs[tokens] + source.cost(tokens)
                emitted += right + 1
                done += right + 1
        best = max(best, (emitted / spent if spent else 1.0, most), key=lambda found: found[0])
    return best


class _Walk:
    """A replay of a set. choice: of the source of each pass; None = always ours.

    asked, passes: how many passes the other source drafted for, and how many there were.
    """

    def __init__(
        self,
        trace: Trace,
        lengths: Sequence[Sequence[int]],
        source: OtherSource,
        profile: CostTable,
        costs: Sequence[float],
        choice: str | None,
    ) -> None:
        self._trace, self._lengths, self._source = trace, lengths, source
        self._costs, self._choice = costs, choice
        self._policy = AutoPolicy(LONGEST, profile)
        self._drafter = create_drafter(AUTO, pool=SuffixPool())
        self._arbiter = Arbiter(self._policy)
        unit = profile.cost(1)
        self._unit = unit
        self._arbiter.price(source.name, source.start * unit, source.price * unit)
        self.asked = self.passes = 0
        self._emitted, self._spent = 0, 0.0

    def run(self, advance: Callable[[], object]) -> float:
        """Return the speed-up over plain decoding."""
        for request, known in zip(self._trace.requests, self._lengths, strict=True):
            self._request(request.prompt, request.output, known)
            advance()
        return self._emitted / self._spent if self._spent else 1.0

    def _request(self, prompt: Tokens, output: Tokens, known: Sequence[int]) -> None:
        drafter, source = self._drafter, self._source
        drafter.begin(0, prompt)
        drafter.accept(0, output[:1], 0)
        self._arbiter.begin(0)
        done, length, streak = 1, len(output), 0
        while done < length:
            room = length - done
            draft = drafter.propose(0, min(room + 1, LONGEST))
            claims = drafter.confidence(0)
            ours = right_prefix(draft[:room], output, done)
            most = min(room, LONGEST)
            chosen = self._policy.choose(0, AUTO, claims, most, streak=streak) if len(draft) else 0
            asked = self._ask(claims, chosen, ours, known[done], room)
            own, right, drafted, theirs = chosen, min(ours, chosen), chosen, 0
            if asked.tokens and (not asked.trial or chosen == 0):
                if asked.after and right == chosen:
                    more = known[done + chosen] - 1 if done + chosen < length else 0
                    theirs = min(more, asked.tokens)
                    right += theirs
                elif not asked.after:
                    own, right = 0, min(known[done] - 1, asked.tokens)
                    theirs = right
                drafted = own + asked.tokens
            elif asked.tokens:
                theirs = min(known[done] - 1, asked.tokens)
            emitted = output[done : done + right + 1]
            spent = self._costs[drafted] + source.cost(asked.tokens)
            self._emitted += right + 1
            self._spent += spent
            self.passes += 1
            self.asked += asked.tokens > 0
            if asked.tokens and (not asked.after or right >= chosen):
                judged = min(asked.tokens, len(emitted) - asked.after)
                self._arbiter.learn(0, source.name, min(theirs, judged), judged)
            drafter.shorten(0, own)
            seen = min(len(draft), len(emitted))
            if seen:
                self._policy.learn(0, AUTO, claims, min(ours, seen), seen)
                streak = streak + len(emitted) if min(ours, seen) == seen else 0
            else:
                streak = 0
            drafter.accept(0, emitted, min(own, right, len(emitted)))
            self._policy.step(right + 1, 1 + drafted)
            self._policy.spend(source.cost(asked.tokens) * self._unit)
            done += right + 1
        drafter.end(0)

    def _ask(self, claims: np.ndarray, chosen: int, ours: int, theirs: int, room: int) -> Asked:
        """Return what to ask of the other source."""
        source, most = self._source, min(self._source.tokens, room)
        if self._choice is None or most <= 0:
            return NOTHING
        if self._choice == "policy":
            return self._arbiter.ask(0, source.name, source.tokens, room, AUTO, claims, chosen)
        free = (min(ours, chosen) + 1) / self._costs[chosen]
        right = min(theirs - 1, most)  # with hindsight no wrong token is drafted
        paid = (right + 1) / (self._costs[right] + source.cost(right))
        return Asked(0, right, False) if right and paid > free else NOTHING
