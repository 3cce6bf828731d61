"""Corpus: stands in for the corpus of SGLang's NGRAM worker, with our drafters.

Interface: sglang 0.5.23, sglang.srt.speculative.cpp_ngram.ngram_corpus.NgramCorpus. The worker
passes only the ends of texts; `meet`, which the plugin hooks in before it, gets whole prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.hosts.sglang import tree_rows
from ngramspec.drafting.slot_pool import SlotPool
from ngramspec.engine.sources.pools import Pools
from ngramspec.errors import InputError, StateError
from ngramspec.hosts.sglang.documents import Documents
from ngramspec.hosts.sglang.request import SlotRequest
from ngramspec.hosts.sglang.settings import CorpusSettings, read_settings
from ngramspec.stats import SourceStats

MAX_WIDTH = 64
MAX_TREE = 256  # tokens that tree_rows lays out
log = logging.getLogger("ngramspec")
Rows = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]
_EMPTY = np.empty(0, np.int32)
# Of a text that no drafter takes, or that there is no room for: the other requests go on.
_OF_ONE = (InputError, OverflowError, MemoryError)


class Corpus:
    """Draft trees for the running requests, in SGLang's rows.

    Args:
        max_trie_depth: Tokens at the end of a text that batch_get receives, >= 1.
        min_bfs_breadth: Not used: trees are as wide as pays.
        max_bfs_breadth: Most tokens of the same depth, >= 1.
        draft_token_num: Rows per request, >= 1: the newest token and the draft.
        match_type: Not used; "BFS" and "PROB" are SGLang's rules.
        capacity: Not used; set our pool's in NGRAMSPEC_PARAMS.
        external_sam_budget: Not used: the drafter decides a corpus's share of a tree.
        external_corpus_max_tokens: Most tokens of all external corpora together.
        settings: None = read from the environment.
        vocab_size: Of the target; trees leave out ids >= it, which a file may hold. 0 = `meet` must
            be given it before the first batch_get.

    Raises:
        InputError: A value is out of its bounds, or a setting in the environment is wrong.

    A request whose text no drafter takes, or has room for, gets no drafts. What else fails later is
    logged once, and nothing is drafted from then on: rows hold the newest token and padding, so the
    engine goes on. One thread at a time, except load_external_corpus_named.
    """

    def __init__(
        self,
        max_trie_depth: int = 18,
        min_bfs_breadth: int = 1,
        max_bfs_breadth: int = 8,
        draft_token_num: int = 8,
        match_type: str = "BFS",
        capacity: int = 1000000,
        external_sam_budget: int = 0,
        external_corpus_max_tokens: int = 10000000,
        *,
        settings: CorpusSettings | None = None,
        vocab_size: int = 0,
    ) -> None:
        for name, value in (
            ("max_trie_depth", max_trie_depth),
            ("max_bfs_breadth", max_bfs_breadth),
            ("draft_token_num", draft_token_num),
        ):
            if value < 1:
                raise InputError(f"{name} must be >= 1, got {value}")
        self.draft_token_num = draft_token_num
        self.vocab_size = vocab_size
        self.external_corpus_max_tokens = external_corpus_max_tokens
        self._depth = max_trie_depth
        self._width = min(max_bfs_breadth, MAX_WIDTH)
        self._settings = read_settings() if settings is None else settings
        self._documents = Documents()
        self._index: Any = None  # the index that the slots draft from
        self._broken = False
        self.reset()

    @property
    def remaining_token_budget(self) -> int:
        """Return the tokens that external corpora may still have."""
        return self.external_corpus_max_tokens - self._documents.num_tokens

    def meet(self, requests: Iterable[Any], vocab_size: int = 0) -> None:
        """Read the whole texts of requests that are not known yet.

        Args:
            requests: With rid, origin_input_ids_unpadded and output_ids.
            vocab_size: Of the target, 0 = keep the known one.

        Cost: O(text) for a new request, otherwise O(1).
        """
        if self._broken:
            return
        self.vocab_size = vocab_size or self.vocab_size
        try:
            for request in requests:
                if request.rid not in self._requests:
                    self._begin(request)
        except Exception:
            self._break()

    def batch_get(
        self,
        req_ids: Sequence[str],
        batch_tokens: Sequence[Sequence[int]],
        total_lens: Sequence[int],
    ) -> tuple[Rows, Rows]:
        """Draft a tree for each request.

        Args:
            req_ids: Their names.
            batch_tokens: The ends of their texts, at least one token each.
            total_lens: The lengths of the whole texts.

        Returns:
            (tokens, mask): int64, shapes (b * d,) and (b * d * d,), d = draft_token_num, new.
            Rows are breadth first below the newest token; mask[i, j] = 1 where row j is i or an
            ancestor of it. Padding is 0, below the newest token.

        Cost: O(b * d * d), independent of the texts.
        """
        d = self.draft_token_num
        tokens = np.empty((len(req_ids), d), np.int64)
        mask = np.empty((len(req_ids), d * d), np.int64)
        for i, (name, tail, length) in enumerate(
            zip(req_ids, batch_tokens, total_lens, strict=True)
        ):
            ids, parents = self._tree(name, tail, length)
            tree_rows(ids, parents, tail[-1], tokens[i], mask[i])
        return tokens.reshape(-1), mask.reshape(-1)

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Do nothing: batch_get has taken these tokens already."""

    def synchronize(self) -> None:
        """Do nothing: nothing is pending."""

    def erase_match_state(self, req_ids: Iterable[str]) -> None:
        """End requests; their texts stay in the pool."""
        for name in req_ids:
            drafting = self._requests.pop(name, None)
            if drafting is not None and not self._broken:
                drafting.leave()

    def reset(self) -> None:
        """Forget all requests and their texts; external corpora stay."""
        self._pools = Pools(self._settings.params)
        self._slots = self._new_slots()
        self._requests: dict[str, SlotRequest] = {}

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Load a corpus; requests that begin once it is committed and indexed draft from it.

        Returns:
            int: Its number of tokens.

        Raises:
            InputError: The name is taken, there are no or too many tokens, or the drafter suffix
                is not used or already reads a file. A ValueError.
        """
        if "suffix" not in self._settings.params or self._settings.has_index:
            raise InputError(
                "external corpora need the drafter suffix, without a static file of its own"
            )
        return self._documents.stage(corpus_id, chunks, self.remaining_token_budget)

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        self._documents.commit(corpus_id)

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Forget a corpus; running requests draft from it to their end."""
        self._documents.remove(corpus_id)

    def list_external_corpora(self) -> dict[str, int]:
        return self._documents.sizes()

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by source name, since the corpora last changed."""
        totals: dict[str, SourceStats] = {}
        for drafter in self._slots.drafters:
            for name, one in drafter.stats().items():
                totals[name] = totals[name].plus(one) if name in totals else one
        return totals

    def _tree(self, name: str, tail: Sequence[int], length: int) -> tuple[Ids, Ids]:
        if self._broken:
            return _EMPTY, _EMPTY
        try:
            drafting = self._requests.get(name) or self._new(name)
            if drafting.mute:
                return _EMPTY, _EMPTY
            try:
                drafting.follow(tail, length)
            except _OF_ONE as error:
                self._silence(drafting, name, error)
                return _EMPTY, _EMPTY
            if not self.vocab_size:
                raise StateError("the target's vocabulary size is not known")
            drafted = drafting.propose(min(self.draft_token_num - 1, MAX_TREE), self._width)
            return within_vocabulary(*drafted, self.vocab_size)
        except Exception:
            self._break()
            return _EMPTY, _EMPTY

    def _begin(self, request: Any) -> None:
        drafting = self._new(request.rid)
        try:
            drafting.begin(request.origin_input_ids_unpadded, request.output_ids)
        except _OF_ONE as error:
            self._silence(drafting, request.rid, error)

    def _new(self, name: str) -> SlotRequest:
        index = self._documents.index
        if index is not self._index:
            self._index = index
            self._slots = self._new_slots()
        drafting = self._requests[name] = SlotRequest(self._slots, self._depth)
        return drafting

    def _new_slots(self) -> SlotPool:
        index, pools = self._index, self._pools
        return SlotPool(lambda slots: self._settings.make(pools, slots, index))

    def _silence(self, drafting: SlotRequest, name: str, error: Exception) -> None:
        drafting.mute = True
        log.warning("request %s has no drafts: %s", name, error)

    def _break(self) -> None:
        self._broken = True
        log.exception("ngramspec failed and drafts nothing from now on; SGLang goes on without")


def within_vocabulary(ids: Ids, parents: Ids, vocab_size: int) -> tuple[Ids, Ids]:
    """Return a tree without ids >= vocab_size and their descendants.

    Args:
        ids, parents: Of the tree, parents[i] < i, -1 = the root.
        vocab_size: Of the target, >= 1.
    """
    if not len(ids) or ids.max() < vocab_size:
        return ids, parents
    places = [-1] * (len(ids) + 1)  # new index by old index, -1 = dropped; the last is the root's
    nodes: list[int] = []
    for i, (token, parent) in enumerate(zip(ids.tolist(), parents.tolist(), strict=True)):
        if token < vocab_size and (parent < 0 or places[parent] >= 0):
            places[i] = len(nodes)
            nodes.append(i)
    above = np.array([places[parents[i]] for i in nodes], np.int32)
    return ids[nodes], above
