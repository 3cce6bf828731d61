"""Requests of vLLM's proposer that knows ids, each with a text and what it asks for."""

from __future__ import annotations

from helpers.vllm_calls import batch_of
from ngramspec.hosts.rows import BatchDrafts
from ngramspec.hosts.vllm.request_options import RequestOptions
from ngramspec.hosts.vllm.suffix import BatchProposer

SAID = list(range(500, 540))


class Requests:
    """Requests of a proposer, each of which says what its text is.

    Args:
        proposer: The proposer.
        texts: By id: the prompt of ten tokens, and what is said after it.
        asks: By id, where a request asks for something.
    """

    def __init__(
        self, proposer: BatchProposer, texts: dict[str, list[int]], asks: dict[str, RequestOptions]
    ) -> None:
        self.proposer, self.texts, self.asks = proposer, texts, asks
        self.lengths = dict.fromkeys(texts, 10)

    def step(self, *ids: str) -> dict[str, list[int]]:
        """Let each say a token more; return their drafts."""
        for name in ids:
            self.lengths[name] += 1
        texts = [self.texts[name][: self.lengths[name]] for name in ids]
        batch = batch_of({"table": [[8, 160]], "ids": list(ids), "texts": texts})
        batch.num_prompt_tokens[:] = 10
        batch._ngramspec_options = {name: self.asks[name] for name in ids if name in self.asks}
        drafts = self.proposer.propose(4, batch, [[text[-1]] for text in texts])
        return dict(zip(ids, drafts, strict=True))

    @property
    def groups(self) -> dict[str, BatchDrafts]:
        return dict(self.proposer.namespaces.groups)


def of(*names: str) -> dict[str, RequestOptions]:
    """Request `a` is of the namespace "a", and so on."""
    return {name: RequestOptions(namespace=name) for name in names}


def texts(*names: str) -> dict[str, list[int]]:
    """The same text for each: a prompt of its own, then SAID."""
    return {name: [*range(20 * i, 20 * i + 10), *SAID] for i, name in enumerate(names)}
