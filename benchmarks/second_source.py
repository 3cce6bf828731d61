"""The replay of a set with a second source beside our drafter, known by its lengths alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.policy.arbiter import Arbiter, Asked, FreeDraft, Mixed, Terms
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.costs import CostTable
from ngramspec.drafting import create_drafter
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.subjects import AUTO
from ngramspec.lab.replay.walk import Tokens, right_prefix

NOTHING = Asked(0, 0, False)
NONE: Tokens = np.empty(0, np.int32)
WRONG = 1 << 30  # a token that no text has


@dataclass(frozen=True)
class OtherSource:
    """A draft source that takes time.

    name: what the policy knows it by.
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
    either: both, but in a pass only one where ours has branches; as `arbiter` without branches.
    untailed: as `arbiter`, but ours drafts nothing behind the other's drafts.
    """

    ours: float
    other: float
    other_tokens: int
    arbiter: float
    perfect: float
    asked: int
    passes: int
    either: float
    untailed: float

    def as_json(self) -> dict[str, Any]:
        """Return the figures, rounded."""
        return {key: round(value, 4) for key, value in asdict(self).items()}


def arbitrate(
    trace: Trace,
    lengths: Sequence[Sequence[int]],
    source: OtherSource,
    profile: CostTable,
    *,
    branches: int = 1,
) -> Arbitration:
    """Replay a set with our drafter and a second source.

    A pass at output position i with the source's draft of m tokens emits min(lengths[i], m + 1).

    Args:
        trace: The requests.
        lengths: For each request, for each output position, how many tokens a pass there would
            emit with the source's longest draft; 1 = nothing accepted.
        source: The second source.
        profile: Costs of the target.
        branches: Most of a draft. Above 1 our drafter drafts trees, a pass may have tokens of both,
            and `perfect` does without branches. Wrong tokens of the source are others than ours,
            from anywhere in the prompt: only how many are right is known.
    """
    single = profile.cost(1)
    costs = [
        profile.cost(size) / single for size in range(1, DEFAULT_MAX_DRAFT + source.tokens + 2)
    ]
    perfect = _Walk(trace, lengths, source, profile, costs).run()
    watched, *trees = (
        _JudgedWalk(choice, branches, trace, lengths, source, profile, costs)
        for choice in ("policy", "untailed", None, *(("either",) if branches > 1 else ()))
    )
    arbiter = watched.run()
    untailed, ours, *rest = (walk.run() for walk in trees)
    other, tokens = _alone(trace, lengths, source, costs)
    counts = watched.asked, watched.passes
    either = rest[0] if rest else arbiter
    return Arbitration(ours, other, tokens, arbiter, perfect, *counts, either, untailed)


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
        for request, row in zip(trace.requests, lengths, strict=True):
            done, length = 1, len(request.output)
            while done < length:
                tokens = min(most, length - done)
                right = min(row[done] - 1, tokens)
                spent += costs[tokens] + source.cost(tokens)
                emitted += right + 1
                done += right + 1
        best = max(best, (emitted / spent if spent else 1.0, most), key=lambda pair: pair[0])
    return best


class _Walk:
    """A replay of a set, with the best source of each pass."""

    def __init__(
        self,
        trace: Trace,
        lengths: Sequence[Sequence[int]],
        source: OtherSource,
        profile: CostTable,
        costs: Sequence[float],
    ) -> None:
        self._trace, self._lengths, self._source = trace, lengths, source
        self._costs = costs
        self._policy = AutoPolicy(DEFAULT_MAX_DRAFT, profile)
        self._drafter = self._make_drafter()
        self._arbiter = Arbiter(self._policy)
        unit = profile.cost(1)
        self._unit = unit
        self._arbiter.price(source.name, source.start * unit, source.price * unit)
        self._emitted, self._spent = 0, 0.0

    def _make_drafter(self) -> Drafter:
        return create_drafter(AUTO, pool=SuffixPool())

    def run(self) -> float:
        """Return the speed-up over plain decoding."""
        for request, lengths in zip(self._trace.requests, self._lengths, strict=True):
            self._request(request.prompt, request.output, lengths)
        return self._emitted / self._spent if self._spent else 1.0

    def _request(self, prompt: Tokens, output: Tokens, lengths: Sequence[int]) -> None:
        drafter, source = self._drafter, self._source
        drafter.begin(0, prompt)
        drafter.accept(0, output[:1], 0)
        self._arbiter.begin(0)
        done, length, streak = 1, len(output), 0
        while done < length:
            room = length - done
            draft = drafter.propose(0, min(room + 1, DEFAULT_MAX_DRAFT))
            claims = drafter.confidence(0)
            ours = right_prefix(draft[:room], output, done)
            most = min(room, DEFAULT_MAX_DRAFT)
            chosen = self._policy.choose(0, AUTO, claims, most, streak=streak) if len(draft) else 0
            asked = self._ask(ours, chosen, lengths[done], room)
            own, right, drafted = chosen, min(ours, chosen), chosen
            if asked:
                own, right, drafted = 0, asked, asked
            emitted = output[done : done + right + 1]
            self._emitted += right + 1
            self._spent += self._costs[drafted] + source.cost(asked)
            drafter.shorten(0, own)
            seen = min(len(draft), len(emitted))
            if seen:
                self._policy.learn(0, AUTO, claims, min(ours, seen), seen)
                streak = streak + len(emitted) if min(ours, seen) == seen else 0
            else:
                streak = 0
            drafter.accept(0, emitted, min(own, right, len(emitted)))
            self._policy.step(right + 1, 1 + drafted)
            self._policy.spend(source.cost(asked) * self._unit)
            done += right + 1
        drafter.end(0)

    def _ask(self, ours: int, chosen: int, theirs: int, room: int) -> int:
        """Return how many tokens to ask of the other source: with hindsight no wrong one."""
        right = min(theirs - 1, self._source.tokens, room)
        alone = (min(ours, chosen) + 1) / self._costs[chosen]
        paid = (right + 1) / (self._costs[right] + self._source.cost(right))
        return right if right > 0 and paid > alone else 0


class _JudgedWalk(_Walk):
    """A replay of a set in which drafts, maybe trees, are judged as the engine does.

    choice: "policy": tokens of both may be sent in a pass; "untailed": ours never behind the
        other's; "either": the source rests where ours has branches; None: always ours.
    asked, passes: how many passes the other source drafted for, and how many there were.
    """

    def __init__(self, choice: str | None, branches: int, *args: Any) -> None:
        self._choice, self._branches = choice, branches
        self.asked = self.passes = 0
        super().__init__(*args)

    def _make_drafter(self) -> Drafter:
        return create_drafter(AUTO, pool=SuffixPool(), policy=self._policy)

    def _request(self, prompt: Tokens, output: Tokens, lengths: Sequence[int]) -> None:
        drafter, name = self._drafter, self._source.name
        drafter.begin(0, prompt)
        drafter.accept(0, output[:1], 0)
        self._arbiter.begin(0)
        done, length = 1, len(output)
        while done < length:
            text = output[done:]
            room = min(len(text), DEFAULT_MAX_DRAFT)
            tokens, parents, _ = drafter.propose_tree(0, room, self._branches, self._branches)
            own, asked = len(tokens), self._wish(tokens, parents, room)
            theirs, own_sent, after = NONE, own, NONE
            if asked.tokens:
                after = self._before(tokens, asked.after)
                there = done + after.size
                agrees = np.array_equal(after, output[done:there]) and there < length
                theirs = self._wrong(prompt, there, asked.tokens)
                right = min(lengths[there] - 1, asked.tokens, length - there) if agrees else 0
                theirs[:right] = output[there : there + right]
                if right < theirs.size and there + right < length:
                    follower = output[there + right]
                    theirs[right] = WRONG if theirs[right] == follower else theirs[right]
                if asked.trial:
                    pass  # judged without being sent
                elif not own:
                    tokens, parents = theirs, np.arange(-1, theirs.size - 1, dtype=np.int32)
                    own_sent = 0
                else:
                    mixed = self._mix(theirs, asked.after > 0, tokens, room)
                    if mixed.tokens.size > mixed.num_free:
                        tokens, parents, own_sent = mixed
            drafter.shorten(0, own_sent)
            tail = NONE
            if own_sent == 0 and len(tokens) == theirs.size > 0 and self._choice != "untailed":
                likely = self._arbiter.expected(0, name, theirs.size)
                tail = drafter.propose_after(0, theirs, room - theirs.size, likely)
                tokens = np.concatenate([theirs, tail])
                parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
            path = _right_path(tokens, parents, text)
            emitted = text[: len(path) + 1]
            own_right = sum(node < own_sent for node in path)
            if tail.size:
                own_right = max(len(path) - theirs.size, 0)
            if asked.tokens and np.array_equal(after, emitted[: after.size]):
                here = emitted[after.size :]
                judged = min(asked.tokens, here.size)
                if judged:
                    apart = asked.beside and own_sent > own_right == 0
                    right = right_prefix(theirs[:judged], here, 0)
                    self._arbiter.learn(0, name, right, judged, apart)
            drafter.accept(0, emitted, min(own_right, len(emitted)))
            spent = self._source.cost(asked.tokens)
            self._emitted += len(path) + 1
            self._spent += self._costs[len(tokens)] + spent
            self.passes += 1
            self.asked += asked.tokens > 0
            # The drafter has told the policy of a pass over its own tokens.
            spent += self._costs[len(tokens)] - self._costs[tail.size or own_sent]
            self._policy.spend(max(spent, 0.0) * self._unit)
            done += len(path) + 1
        drafter.end(0)

    def _wrong(self, prompt: Tokens, place: int, count: int) -> Tokens:
        """Return tokens that a source drafts where it is wrong: from somewhere in the prompt."""
        start = place * 7919 % max(prompt.size, 1)
        return np.resize(prompt[start:], count) if prompt.size else np.full(count, WRONG, np.int32)

    def _wish(self, tokens: Tokens, parents: Tokens, room: int) -> Asked:
        """Return what to ask of the other source."""
        branched = bool((parents != np.arange(-1, len(parents) - 1)).any())
        if self._choice is None or (branched and self._choice == "either"):
            return NOTHING
        terms = self._terms(room)._replace(most=min(self._source.tokens, room))
        return self._arbiter.ask(0, self._source.name, self._free(tokens), terms)

    def _free(self, tokens: Tokens) -> FreeDraft:
        """Return our draft, of which these tokens are sent."""
        links = self._drafter.offered_parents(0) if self._choice != "either" else None
        return FreeDraft("", self._drafter.offered(0), tokens, links)

    def _terms(self, room: int) -> Terms:
        return Terms(room, branches=self._branches if self._choice != "either" else 1)

    def _before(self, tokens: Tokens, after: int) -> Tokens:
        """Return the tokens of our draft that come before the source's."""
        free = self._free(tokens)._replace(parents=self._drafter.offered_parents(0))
        if free.parents is None or not after:
            return tokens[:after]
        return tokens[self._arbiter.path(free)]

    def _mix(self, theirs: Tokens, after: bool, tokens: Tokens, room: int) -> Mixed:
        """Return what is sent of both drafts."""
        name = self._source.name
        likely = self._arbiter.expected(0, name, theirs.size)
        free = self._free(tokens)._replace(parents=self._drafter.offered_parents(0))
        return self._arbiter.mix(name, likely, theirs, after, free, self._terms(room))


def _right_path(tokens: Tokens, parents: Tokens, text: Tokens) -> list[int]:
    """Return the tokens of a tree, by index, that the text begins with."""
    path: list[int] = []
    for token in text.tolist():
        at = path[-1] if path else -1
        nodes = np.flatnonzero((parents == at) & (tokens == token))
        if not nodes.size:
            break
        path.append(int(nodes[0]))
    return path
