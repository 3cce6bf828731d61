"""Native and reference behind one face: token lists in, token lists out, errors by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import reference as slow


def int32(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, or the name of the contract's error that it raised."""
    try:
        return call()
    except (ValueError, RuntimeError) as error:
        return type(error).__name__


class NativeDrafter:
    """A native drafter that takes and returns lists."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def begin(self, slot: int, tokens: list[int]) -> None:
        self.core.begin(slot, int32(tokens))

    def propose(self, slot: int, max_tokens: int) -> list[int]:
        draft = self.core.propose(slot, max_tokens)
        assert (draft.dtype, draft.ndim) == (np.int32, 1)
        return draft.tolist()

    def propose_after(self, slot: int, other: list[int], max_tokens: int) -> list[int]:
        return self.core.propose_after(slot, int32(other), max_tokens).tolist()

    def propose_tree(
        self, slot: int, max_tokens: int, max_width: int = 8
    ) -> tuple[list[int], list[int]]:
        tokens, parents, claims = self.core.propose_tree(slot, max_tokens, max_width)
        assert (tokens.dtype, parents.dtype, claims.dtype) == (np.int32, np.int32, np.float32)
        assert tokens.shape == parents.shape == claims.shape == (len(tokens),)
        assert claims.tolist() == self.confidence(slot)
        return tokens.tolist(), parents.tolist()

    def accept(self, slot: int, tokens: list[int], num_accepted: int) -> None:
        self.core.accept(slot, int32(tokens), num_accepted)

    def observe_top(
        self, slot: int, tokens: list[list[int]], logprobs: list[list[float]], first: int | None
    ) -> None:
        shape = (len(tokens), len(tokens[0]) if tokens else 8)
        ids = np.array(tokens, np.int32).reshape(shape)
        self.core.observe_top(slot, ids, np.array(logprobs, np.float32).reshape(shape), first)

    def truncate(self, slot: int, length: int) -> None:
        self.core.truncate(slot, length)

    def end(self, slot: int) -> None:
        self.core.end(slot)

    def forget(self, slot: int) -> None:
        self.core.forget(slot)

    def follow(self, slot: int, tokens: list[int]) -> int:
        return self.core.follow(slot, int32(tokens))

    def history(self, slot: int) -> list[int]:
        return self.core.history(slot).tolist()

    def length(self, slot: int) -> int:
        return self.core.length(slot)

    def replay(
        self, prompt: list[int], output: list[int], max_tokens: int = 0, slot: int = 0
    ) -> Any:
        return self.core.replay(int32(prompt), int32(output), max_tokens=max_tokens, slot=slot)

    def confidence(self, slot: int) -> list[float]:
        claimed = self.core.confidence(slot)
        assert (claimed.dtype, claimed.ndim) == (np.float32, 1)
        return claimed.tolist()

    def shorten(self, slot: int, length: int) -> None:
        self.core.shorten(slot, length)

    def is_ambiguous(self, slot: int) -> bool:
        return False

    def check(self) -> str:
        return self.core.check()


class NativePool:
    """A native pool that takes and returns lists."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def index_of(self, tokens: list[int]) -> int:
        return self.core.index_of(int32(tokens))

    def lookup(self, tokens: list[int]) -> int:
        return self.core.lookup(int32(tokens))

    def insert(self, tokens: list[int], token: int) -> None:
        self.core.insert(int32(tokens), token)

    def entries(self) -> list[int]:
        return self.core.entries().tolist()

    def clear(self) -> None:
        self.core.clear()

    @property
    def num_used(self) -> int:
        return self.core.num_used


class NativeCache:
    """A native n-gram cache that takes and returns lists."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def __len__(self) -> int:
        return len(self.core)

    def update(self, tokens: list[int], start: int = 0) -> None:
        self.core.update(int32(tokens), start=start)

    def followers(self, ngram: list[int]) -> dict[int, int]:
        return self.core.followers(int32(ngram))


class Native:
    """The module under test; imported on first use, so that the reference runs without it."""

    name = "native"

    def drafter(self, spec: str | list[str], slots: int = 1, **params: Any) -> NativeDrafter:
        from ngramspec import create_drafter

        return NativeDrafter(create_drafter(spec, slots=slots, **_unwrapped(params)))

    def pool(self, **params: Any) -> NativePool:
        from ngramspec import HashPool

        return NativePool(HashPool(**params))

    def suffix_pool(self, capacity: int) -> Any:
        from ngramspec import SuffixPool

        return SuffixPool(capacity)

    def successor_pool(self, capacity: int, top: int = 8) -> Any:
        from ngramspec import SuccessorPool

        return SuccessorPool(capacity, top)

    def suffix_index(self, texts: list[list[int]]) -> Any:
        from ngramspec._native.files.suffix_image import SuffixImage
        from ngramspec._native.suffix.index import SuffixIndex

        tokens = int32([token for text in texts for token in [*text, -1]])
        image = SuffixImage(tokens)
        num_lines = image.num_words() // 12 + 1
        lines = image.lines(num_lines, 0, num_lines)
        return SuffixIndex(tokens, lines, image.position_bits, image.largest_token + 1)

    def cache(self, **params: Any) -> NativeCache:
        from ngramspec import NgramCache

        return NativeCache(NgramCache(**params))


class Reference:
    """The slow twin."""

    name = "reference"

    def drafter(
        self, spec: str | list[str], slots: int = 1, **params: Any
    ) -> slow.ReferenceDrafter:
        return slow.reference_drafter(spec, slots, **params)

    def pool(self, **params: Any) -> slow.HashPool:
        return slow.HashPool(**params)

    def suffix_pool(self, capacity: int) -> slow.SuffixPool:
        return slow.SuffixPool(capacity)

    def successor_pool(self, capacity: int, top: int = 8) -> slow.SuccessorPool:
        return slow.SuccessorPool(capacity, top)

    def suffix_index(self, texts: list[list[int]]) -> slow.SuffixIndex:
        return slow.SuffixIndex(texts)

    def cache(self, **params: Any) -> slow.NgramCache:
        return slow.NgramCache(**params)


Backend = Native | Reference


def _unwrapped(params: dict[str, Any]) -> dict[str, Any]:
    wrappers = (NativePool, NativeCache)
    return {key: p.core if isinstance(p, wrappers) else p for key, p in params.items()}
