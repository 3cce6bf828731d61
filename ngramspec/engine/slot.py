"""Slot: a place of the engine that runs one request at a time and remembers the last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.engine.request import NO_TOKENS, TokenIds

if TYPE_CHECKING:
    from ngramspec._sampler import Sampler
    from ngramspec.engine.generation import Generation
    from ngramspec.engine.queue import OnChunk
    from ngramspec.engine.sources import DraftSource


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """What a slot does now, for monitoring."""

    id: int
    state: str  # "idle", "prompt" or "decode"
    request_id: str  # of the running or the last request
    num_prompt: int
    num_tokens: int  # prompt and emitted tokens it holds
    num_past: int  # of these in the key-value cache
    num_emitted: int
    speculative: bool
    num_draft_tokens: int
    num_accepted_tokens: int


class Slot:
    """One sequence of the target and the request that runs on it.

    tokens: int32, shape (context size,); the first `length` are prompt and emitted tokens.
    num_past: Of these the first so many are in the target's cache. While a request decodes this is
        all but the newest; less while a prompt is read or after a checkpoint was restored.
    """

    __slots__ = (
        "decoding",
        "draft",
        "draft_source",
        "first_row",
        "generation",
        "id",
        "length",
        "namespace",
        "num_before",
        "num_past",
        "num_prompt",
        "on_chunk",
        "sampler",
        "saved",
        "sources",
        "tokens",
        "used",
    )

    def __init__(self, slot_id: int, context_size: int) -> None:
        self.id = slot_id
        self.tokens: TokenIds = np.zeros(context_size, dtype=np.int32)
        self.length = 0
        self.num_past = 0
        self.num_before = 0  # num_past before the running step's decode
        self.num_prompt = 0
        self.namespace = ""
        self.used = 0  # order in which slots were given away; the oldest goes first
        self.generation: Generation | None = None
        self.decoding = False  # the prompt is read and the first token was chosen
        self.on_chunk: OnChunk | None = None
        self.sampler: Sampler
        self.sources: tuple[DraftSource, ...] = ()
        self.draft: TokenIds = NO_TOKENS  # to be verified in this step
        self.draft_source: DraftSource | None = None
        self.first_row = -1
        self.saved: Any = None  # the target's state before the draft, where it cannot roll back

    @property
    def num_pending(self) -> int:
        """Return how many tokens the target has not seen."""
        return self.length - self.num_past

    def pending(self, count: int) -> TokenIds:
        """Return a view of the next `count` tokens that the target has not seen."""
        return self.tokens[self.num_past : self.num_past + count]

    def append(self, token_ids: TokenIds) -> None:
        """Add emitted tokens; there is room, as drafts are cut to it."""
        self.decoding = self.decoding or token_ids.size > 0
        self.tokens[self.length : self.length + token_ids.size] = token_ids
        self.length += int(token_ids.size)

    def common_prefix(self, token_ids: TokenIds) -> int:
        """Return how many tokens in the cache begin like token_ids."""
        count = min(self.num_past, int(token_ids.size))
        differs = self.tokens[:count] != token_ids[:count]
        return int(differs.argmax()) if differs.any() else count

    def clear_draft(self) -> None:
        """Forget the draft of the step that ends."""
        self.draft, self.draft_source, self.saved, self.first_row = NO_TOKENS, None, None, -1

    def info(self) -> SlotInfo:
        """Return what it does now."""
        made = self.generation
        state = "idle" if made is None else "decode" if self.decoding else "prompt"
        timings = None if made is None else made.timings
        return SlotInfo(
            self.id,
            state,
            "" if made is None else made.request.id,
            self.num_prompt,
            self.length,
            self.num_past,
            0 if made is None else made.num_tokens,
            bool(self.sources),
            0 if timings is None else timings.num_draft_tokens,
            0 if timings is None else timings.num_accepted_tokens,
        )
