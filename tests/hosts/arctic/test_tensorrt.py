"""The calls of TensorRT-LLM's suffix method (its pull request 9912), in its order, over our cache.

There a manager keeps the cache and a drafter asks it, both once per step for all requests that
decode; requests are numbers, texts lists, and the end of a text is given as context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ngramspec.hosts.arctic.install import install, uninstall

DEPTH, MOST = 24, 6
ANSWER = [*range(20, 60), 3, *range(20, 60), 4, *range(30, 50)]


@dataclass
class Asked:
    """A request as the executor holds it: `text` begins with the prompt."""

    number: int
    text: list[int]
    num_prompt: int
    most_new: int
    draft: list[int] = field(default_factory=list)


class Method:
    """The manager and the drafter."""

    def __init__(self) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache: Any = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=4)
        self.seen: dict[int, int] = {}

    def prepare(self, one: Asked) -> None:
        """Start the request where need be, and append what is new."""
        if one.number not in self.cache.active_requests:
            if one.number in self.cache.cached_requests:
                self.cache.evict_cached_response(one.number)
            self.cache.start_request(one.number, one.text[: one.num_prompt])
            self.seen[one.number] = one.num_prompt
        if len(one.text) > self.seen[one.number]:
            self.cache.add_active_response(one.number, one.text[self.seen[one.number] :])
            self.seen[one.number] = len(one.text)

    def draft(self, one: Asked) -> None:
        """Ask for what may follow; nothing where the last token is next."""
        longest = one.num_prompt + one.most_new
        one.draft = []
        if len(one.text) < longest:
            draft = self.cache.speculate(
                one.number,
                one.text[-DEPTH:],
                max_spec_tokens=min(MOST, longest - len(one.text) - 1),
                max_spec_factor=1.0,
                min_token_prob=0.1,
            )
            one.draft = draft.token_ids if draft else []

    def free(self, one: Asked) -> None:
        """End a request."""
        if one.number in self.cache.active_requests:
            self.cache.stop_request(one.number)
        self.seen.pop(one.number, None)

    def run(self, batch: list[Asked], answer: list[int]) -> int:
        """Decode all to their ends, the answer being the target's choice; return the passes."""
        passes = 0
        while batch:
            for one in batch:
                self.prepare(one)
            for one in batch:
                self.draft(one)
                assert len(one.draft) <= MOST
                assert all(type(token) is int for token in one.draft)
            passes += 1
            for one in batch:
                follows = answer[len(one.text) - one.num_prompt : one.most_new]
                right = 0
                while right < len(one.draft) and one.draft[right] == follows[right]:
                    right += 1
                one.text += follows[: right + 1]
            for one in [one for one in batch if len(one.text) == one.num_prompt + one.most_new]:
                self.free(one)
                batch.remove(one)
        return passes


@pytest.fixture
def method() -> Iterator[Method]:
    install(replace=True)
    yield Method()
    uninstall()


def ask(number: int, prompt: list[int]) -> Asked:
    return Asked(number, [*prompt, ANSWER[0]], len(prompt), len(ANSWER))


def test_a_batch_takes_far_fewer_passes_than_tokens(method: Method) -> None:
    asked = [ask(7, [1, 2]), ask(8, [*ANSWER[:30], 5])]
    first = method.run(list(asked), ANSWER)
    assert [one.text[one.num_prompt :] for one in asked] == [ANSWER, ANSWER]
    assert first < 0.7 * len(ANSWER)
    later = ask(9, [6])
    assert method.run([later], ANSWER) < 0.3 * len(ANSWER)  # from what the others said
    assert later.text[1:] == ANSWER
    assert not method.cache.active_requests


def test_a_number_that_is_used_again_begins_anew(method: Method) -> None:
    method.run([ask(7, [1, 2])], ANSWER)
    assert 7 in method.cache.cached_requests
    other = [*range(70, 90), *range(70, 90)]
    again = Asked(7, [5, other[0]], 1, len(other))
    method.run([again], other)
    assert again.text[1:] == other


def test_there_is_no_draft_before_the_last_token(method: Method) -> None:
    one = Asked(7, [*ANSWER[:40], 3, *ANSWER[:10]], 41, 11)
    method.prepare(one)
    method.draft(one)
    assert one.draft == []
    one.most_new = 13
    method.draft(one)
    assert one.draft == ANSWER[10:12]
