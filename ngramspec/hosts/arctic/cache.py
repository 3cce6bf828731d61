"""SuffixDecodingCache: what vLLM and TensorRT-LLM use of arctic_inference, with our drafter.

Interface: arctic-inference 0.3.0, arctic_inference.suffix_decoding. It is implemented by a slot per
request and one SuffixPool of requests' texts, instead of suffix trees. docs/engines/vllm.md
lists the differences; `install` (ngramspec.hosts.arctic.install) puts it where engines look for
it.
"""

from __future__ import annotations

from collections.abc import Hashable, KeysView, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.hosts.arctic import ArcticRequest
from ngramspec._native.suffix.drafter import SuffixSource
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.drafting.config import MAX_SUFFIX_DRAFT, SuffixConfig
from ngramspec.drafting.slot_pool import SlotLease, SlotPool
from ngramspec.errors import InputError
from ngramspec.models import confidence_weights

if TYPE_CHECKING:
    from ngramspec._native.suffix.index import SuffixIndex
    from ngramspec.drafting.config import PathLike


TokenIds = npt.NDArray[np.int32] | Sequence[int]


@dataclass
class SuffixDecodingDraft:
    """Tokens that may follow a context.

    token_ids: the tokens, parents before their children.
    parents: for each token the index of its parent, -1 if it directly follows the context.
    probs: the probability that each token and all its ancestors are right, 0..1.
    score: the sum of probs: the expected number of accepted tokens.
    match_len: how many of the context's last 32 tokens match the text that the draft comes from.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    score: float = 0.0
    match_len: int = 0


MOST_REQUESTS = MOST_DEPTH = 0x7FFFFFFF
MAX_HISTORY = 1 << 24
TREE_WIDTH = 8


class SuffixDecodingCache:
    """Drafts for a request from its own text and from the texts of other requests.

    Args:
        max_tree_depth: Last tokens of a context that are used, 1..2**31 - 1; drafts have at most 64
            tokens.
        max_cached_requests: Requests that `cached_requests` lists, the oldest are evicted; -1 = any
            number, 0 = requests share nothing. Their texts are bounded by the pool.
        capacity: Tokens of other requests kept, 4096..29,000,000; 31 bytes each.
        pool: SuffixPool to share with other caches and drafters, instead of one of `capacity`.
        pool_prompts: Draft from other requests' prompts, too, not only from their responses.
        static: Index of a corpus (`build-cache --kind suffix`) to draft from as well, or its path.
            It must be of the target's tokenizer, which is not known here.

    Raises:
        InputError: A value has the wrong type or is out of its bounds. A ValueError.
        FormatError: `static` is not a valid index file.
        OSError: It cannot be read.

    Not locked: one thread at a time, as Arctic's. Several caches may share a pool across threads.
    Source: SuffixDecoding (arXiv 2411.04975) for the idea and the interface.
    """

    def __init__(
        self,
        max_tree_depth: int = 64,
        max_cached_requests: int = -1,
        *,
        capacity: int = SuffixConfig.capacity,
        pool: SuffixPool | None = None,
        pool_prompts: bool = False,
        static: SuffixIndex | PathLike | None = None,
    ) -> None:
        depth = _index("max_tree_depth", max_tree_depth)
        if not 1 <= depth <= MOST_DEPTH:
            raise InputError(f"max_tree_depth must be in 1..{MOST_DEPTH}, got {depth}")
        most = _index("max_cached_requests", max_cached_requests)
        if most > MOST_REQUESTS:
            raise InputError(f"max_cached_requests must be at most {MOST_REQUESTS}, got {most}")
        self._depth, self._most_cached = depth, most
        config = SuffixConfig(
            capacity=capacity, pool=pool, pool_prompts=pool_prompts, static=static,
            share=most != 0,
        )  # fmt: skip
        self._pool = (pool or SuffixPool(capacity)) if config.share else None
        self._index = None
        if static is not None:
            from ngramspec.drafting.statistics import open_index

            self._index = open_index(config)
        self._sources: dict[Drafter, SuffixSource] = {}
        self._slots = SlotPool(lambda slots: self._make(slots, pool_prompts))
        self._strays = SlotPool(lambda slots: self._make(slots, False), 1)
        self._active: dict[Hashable, tuple[SlotLease, ArcticRequest]] = {}
        self._cached: dict[Hashable, None] = {}

    @property
    def max_tree_depth(self) -> int:
        """Return how many last tokens of a context are used."""
        return self._depth

    @property
    def max_cached_requests(self) -> int:
        """Return how many requests `cached_requests` lists at most, negative for any number."""
        return self._most_cached

    @property
    def active_requests(self) -> KeysView[Hashable]:
        """Return a view of the requests that were started and not stopped, oldest first."""
        return self._active.keys()

    @property
    def cached_requests(self) -> KeysView[Hashable]:
        """Return a view of the requests that were started and not evicted, oldest first."""
        return self._cached.keys()

    @property
    def pool(self) -> SuffixPool | None:
        """Return the pool of requests' texts, None if they share nothing."""
        return self._pool

    def start_request(self, req_id: Hashable, prompt_token_ids: TokenIds) -> None:
        """Begin a request.

        Args:
            req_id: Its name; a stopped request's name can be reused.
            prompt_token_ids: int32 array, shape (n,), contiguous, or a sequence of int; n >= 0,
                ids >= 0. Copied.

        Raises:
            ValueError: The request is already active, or the prompt is no such array.
            TypeError: The prompt holds something other than int32 numbers.
            Nothing is changed then.

        Cost: O(n).
        """
        if req_id in self._active:
            raise InputError(f"request {req_id!r} is already active")
        self._active[req_id] = self._begin(self._slots, prompt_token_ids, "prompt_token_ids")
        if self._most_cached != 0:
            self._cached.pop(req_id, None)
            self._cached[req_id] = None
            while 0 < self._most_cached < len(self._cached):
                del self._cached[next(iter(self._cached))]

    def add_active_response(self, req_id: Hashable, token_ids: TokenIds) -> None:
        """Append what the target emitted, accepted draft tokens included.

        Args:
            req_id: An active request.
            token_ids: Type as in `start_request`.

        Raises:
            ValueError: The request is not active, or token_ids is no such array.
            TypeError: token_ids holds something other than int32 numbers.
            Nothing is changed then.

        Cost: O(n).
        """
        self._request(req_id)[1].extend(token_ids)

    def speculate(
        self,
        req_id: Hashable,
        context: TokenIds,
        max_spec_tokens: int | None = None,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        use_tree_spec: bool = False,
    ) -> SuffixDecodingDraft:
        """Draft what may follow a context.

        Args:
            req_id: An active request.
            context: Type as in `start_request`. The newest tokens of the request, or all of them;
                only the last max_tree_depth are used. For any other context, the draft comes from
                other requests only. A context of fewer than 2 tokens has no draft.
            max_spec_tokens: Longest draft, in tokens, at most 64; None = max_tree_depth.
            max_spec_factor: The draft has at most max_spec_factor * match_len
            max_spec_offset: + max_spec_offset tokens.
            min_token_prob: A draft ends where the probability of all of it falls below this.
            use_tree_spec: Draft a tree, at most 8 tokens wide.

        Returns:
            SuffixDecodingDraft: A new one; empty when nothing matches.

        Raises:
            ValueError: The request is not active, or context is no such array.
            TypeError: context holds something other than int32 numbers.

        Cost: O(max_tree_depth) bytes compared, O(drafted tokens); independent of the texts.
        """
        request = self._request(req_id)[1]
        most = self._depth if max_spec_tokens is None else max(0, max_spec_tokens)
        width = TREE_WIDTH if use_tree_spec else 1
        limits = (most, max_spec_factor, max_spec_offset, min_token_prob, width)
        draft = request.speculate(context, *limits)
        if draft is None:
            lease, stray = self._begin(self._strays, context[-self._depth :], "context")
            try:
                draft = stray.speculate(context, *limits)
            finally:
                self._strays.give_back(lease)
        return SuffixDecodingDraft(*draft) if draft else SuffixDecodingDraft()

    def stop_request(self, req_id: Hashable) -> None:
        """End a request; its text in the pool stays.

        Raises:
            ValueError: The request is not active.
        """
        lease, _ = self._request(req_id)
        del self._active[req_id]
        self._slots.give_back(lease)

    def evict_cached_response(self, req_id: Hashable) -> None:
        """Take a request out of `cached_requests`; its text leaves the pool when room is needed.

        Raises:
            ValueError: The request is not cached.
        """
        if req_id not in self._cached:
            raise InputError(f"request {req_id!r} is not cached")
        del self._cached[req_id]

    def _request(self, req_id: Hashable) -> tuple[SlotLease, ArcticRequest]:
        request = self._active.get(req_id)
        if request is None:
            raise InputError(f"request {req_id!r} is not active")
        return request

    def _begin(
        self, slots: SlotPool, token_ids: TokenIds, name: str
    ) -> tuple[SlotLease, ArcticRequest]:
        """Begin a text on a free lease; `name` is its name in errors."""
        lease = slots.take()
        request = ArcticRequest(
            lease.drafter, self._sources[lease.drafter], lease.slot, self._depth
        )
        try:
            request.begin(token_ids, name)
        except BaseException:
            slots.leave(lease)
            raise
        return lease, request

    def _make(self, slots: int, prompts: bool) -> Drafter:
        # The caller bounds each draft, so the source does not.
        weights = confidence_weights()
        source = SuffixSource(
            slots, self._pool, MAX_SUFFIX_DRAFT, 0.0, prompts, weights, self._index
        )
        drafter = Drafter([source], slots, MAX_HISTORY)
        self._sources[drafter] = source
        return drafter


def _index(name: str, value: SupportsIndex) -> int:
    """Return a whole number of any type, such as numpy's, as an int."""
    try:
        return index(value)
    except TypeError:
        raise InputError(f"{name} must be an integer, got {value!r:.80}") from None
