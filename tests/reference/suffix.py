"""suffix: candidates from the longest matches vote, and the likeliest choice is drafted."""

from __future__ import annotations

import numpy as np

from .suffix_learn import Learner, Record
from .suffix_model import (
    LEAST,
    OWN,
    POOL,
    STATIC,
    Candidate,
    Choice,
    bucket,
    place_in_draft,
    single,
)
from .suffix_pool import BLOCK, OUTPUT, SIZES, Lines, context_hashes

TIE = 1e-3  # choices this close may be taken in either order


class SuffixSource(Learner):
    """How a draft is made."""

    def propose(self, history: list[int], max_tokens: int) -> list[int]:
        return self.draft(history, None) if self.find(history, max_tokens) else []

    def find(self, history: list[int], max_tokens: int) -> bool:
        """Set what a proposal goes by; False where none is to be made."""
        self.ambiguous = False
        self.limit = min(max_tokens, self.max_draft)
        self.claims = []
        if not history or self.limit <= 0:
            return False
        self.base = len(history)
        self.records = []
        self.candidates = self.match(history, OWN, self.lines)
        if self.pool is not None:
            self.candidates += self.match(history, POOL, self.pool.lines)
        if self.index is not None:
            longest = max((max(one.run, 1) for one in self.candidates), default=-1)
            static = self.match(history, STATIC, self.index.lines)
            self.candidates += [one for one in static if one.run > longest]
        return True

    def adopt(self, history: list[int], draft: list[int]) -> None:
        """Draft as the other side did where this side found a tie."""
        assert self.draft(history, draft) == draft

    def match(self, history: list[int], place: str, lines: Lines) -> list[Candidate]:
        """At most 6 places with the longest contexts, the latest first, and what is expected."""
        candidates: list[Candidate] = []
        hashes = context_hashes(history, len(history))
        for order in reversed(range(len(hashes))):
            for position in lines.find(hashes[order]):
                if len(candidates) == 6 or any(one.position == position for one in candidates):
                    continue
                candidate = self.candidate(history, place, position)
                if candidate is not None and candidate.run >= SIZES[order]:
                    candidates.append(candidate)
        expected = self.expected[place]
        if expected >= 0 and all(one.position != expected for one in candidates):
            candidate = self.candidate(history, place, expected)
            candidates += [candidate] if candidate is not None else []
        return candidates

    def candidate(self, history: list[int], place: str, position: int) -> Candidate | None:
        """What stands there, None for nothing."""
        if place == OWN:
            if position >= len(history):
                return None
            tokens, before, output = history, position, position >= self.prompt_len
        elif place == STATIC:
            tokens, before, output = self.index.tokens, position, False
        else:
            tokens, before = self.pool.tokens, self.pool.before(position)
            block = self.pool.blocks[position // BLOCK] if before >= 0 else None
            if block is None or block.stream == self.writer.stream:
                return None
            output = block.kind == OUTPUT
        span = range(1, min(before, len(history), 32) + 1)
        same = [tokens[position - i] == history[-i] for i in span]
        expected = self.expected[place]
        far = abs(position - expected)
        near = 0 if expected < 0 else 3 if far == 0 else 2 if far <= 24 else 1
        return Candidate(position, place, output, same, near, tokens[position])

    def draft(self, history: list[int], other: list[int] | None) -> list[int]:
        """Draft from the candidates; `other`: decide ties as that draft does."""
        live = [Candidate(**vars(one)) for one in self.candidates]
        draft: list[int] = []
        self.records, self.claims = [], []
        all_right = 1.0
        while live and len(draft) < self.limit:
            record = self.vote(live, [*history, *draft], len(history))
            if record.sure is not None:
                live = self.survivors(live, record.chosen.candidate)
            else:
                self.choose(record, None if other is None else other[len(draft)])
            if self.records:
                self.records[-1].next[draft[-1]] = record
            self.records.append(record)
            draft.append(record.chosen.token)
            self.claims.append(record.chosen.p)
            all_right *= record.chosen.p
            ends = all_right < self.floor
            if abs(all_right - self.floor) < TIE * self.floor:
                self.ambiguous = True
                ends = ends if other is None else len(draft) == len(other)
            if ends:
                break
            live = [one for one in live if self.goes_on(one, history, draft)]
        return draft

    def vote(self, live: list[Candidate], text: list[int], length: int) -> Record:
        """Gather what live candidates say, and judge what has most odds."""
        position = len(text) - length
        choices: dict[int, Choice] = {}
        votes = []
        for one in live:
            run = one.run + position
            key = (
                bucket(run),
                one.alike,
                one.place,
                one.output,
                one.near,
                place_in_draft(position),
            )
            reliable = self.model.reliability(key)
            choice = choices.setdefault(one.token, Choice(one.token))
            choice.odds = single(choice.odds + reliable.odds)
            place = OWN if one.place == OWN else POOL  # the network knows two
            choice.votes[place] += 1
            choice.foreign &= one.place == STATIC
            choice.runs[place] = max(choice.runs[place], run)
            if choice.best is None or reliable.p >= choice.best.p:
                choice.best, choice.candidate = reliable, one
            votes.append((one.token, key))
        ranked = sorted(choices.values(), key=lambda choice: -choice.odds)
        record = Record([], ranked[0], votes if position < 16 else [])
        first = ranked[0]
        if len(ranked) == 1 and position >= 2 and first.longest >= 8:
            hits = self.lately.hits > 0.5
            votes = min(first.num_votes, 4)
            record.sure = (bucket(first.longest), votes, hits, first.foreign)
            first.p = min(self.model.sureness(record.sure).value, 1 - LEAST)
            return record
        least = float(np.float32(0.1) * np.float32(first.odds))
        record.choices = [choice for choice in ranked[:3] if choice.odds > least]
        self.model.judge(ranked, len(record.choices), self.lately, text, length)
        return record

    def choose(self, record: Record, other: int | None) -> None:
        """Take the likeliest choice, or the given one if it is as likely."""
        best = max(record.choices, key=lambda choice: choice.p)  # the first of equals
        close = [choice for choice in record.choices if best.p - choice.p <= TIE]
        self.ambiguous |= len(close) > 1
        record.chosen = best
        if other is not None:
            assert other in [choice.token for choice in close]
            record.chosen = next(choice for choice in close if choice.token == other)

    def survivors(self, live: list[Candidate], best: Candidate | None) -> list[Candidate]:
        """Few go on where all say the same."""
        others = [one for one in live if one is not best][:2]
        return [one for one in live if one in (best, *others)]

    def goes_on(self, one: Candidate, history: list[int], draft: list[int]) -> bool:
        """Did it say the token that was drafted, and has it another? Past the end, the draft's."""
        if one.token != draft[-1]:
            return False
        one.position = self.next(one.place, one.position)
        text = [*history, *draft] if one.place == OWN else self.tokens(one.place)
        if one.position < 0 or (one.place == OWN and one.position >= len(text)):
            return False
        one.token = text[one.position]
        return True
