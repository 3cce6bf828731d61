"""BatchProposer: what the plugin puts behind vLLM's `method="suffix"`; it sees request ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import numpy as np

from ngramspec.adapters.batch_drafts import BatchDrafts
from ngramspec.adapters.vllm.clock import StepClock
from ngramspec.adapters.vllm.counters import SourceCounters, log
from ngramspec.adapters.vllm.proposer import counts_of, make_drafter, make_drafts, policies_of
from ngramspec.adapters.vllm.request_options import DEFAULT, held_options
from ngramspec.adapters.vllm.settings import read_settings
from ngramspec.arrays import TokenIds
from ngramspec.engine.sources.drafters import add_stats
from ngramspec.engine.sources.pools import Pools
from ngramspec.stats import SourceStats


class BatchProposer:
    """Propose drafts from an InputBatch, by request id.

    Args:
        vllm_config: vllm.config.VllmConfig; options as for Proposer.

    Raises:
        As Proposer.

    Not locked: one thread at a time, as vLLM calls it.
    """

    is_ngramspec = True

    def __init__(self, vllm_config: Any) -> None:
        self.settings = read_settings(vllm_config)
        self.num_speculative_tokens = self.settings.max_draft
        self._failed = not self.settings.drafts_here
        self._pools = Pools(self.settings.params)
        self._gone: dict[str, SourceStats] = {}
        self.groups: OrderedDict[str, BatchDrafts] = OrderedDict()  # by namespace, the oldest first
        if self._failed:
            return
        self._group("")
        self._clock = StepClock()
        self._next = (0, False)  # tokens of the next pass, and whether the last had the known rows
        self._decoding: set[str] = set()  # requests of the next pass, where groups do not tell
        self._counters = SourceCounters(self.stats, self.settings.options.log_seconds)

    def propose(
        self,
        num_speculative_tokens: int,
        input_batch: Any,
        sampled_token_ids: list[list[int]],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft what may follow each row of a batch; the call that vLLM makes after each step.

        Args:
            num_speculative_tokens: Longest draft of this step.
            input_batch: vllm.v1.worker.gpu_input_batch.InputBatch. Not kept.
            sampled_token_ids, slot_mappings, returns and cost: as for Proposer.propose.
        """
        num = len(sampled_token_ids)
        if self._failed or not num:
            return [[] for _ in range(num)]
        self._clock.stop()
        try:
            most = min(int(num_speculative_tokens), self.settings.max_draft)
            drafted = self._draft(input_batch, counts_of(sampled_token_ids), most)
        except Exception:  # of any kind: the engine must go on
            self._failed = True
            log.exception("ngramspec failed and drafts nothing from now on")
            return [[] for _ in range(num)]
        self._counters.report()
        self._clock.start(*self._next, policies_of(self.settings, self.groups.values()))
        return drafted

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no model to load."""

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by drafter name, over all namespaces."""
        total = dict(self._gone)
        for group in self.groups.values():
            add_stats(total, group.drafter.stats())
        return total

    def _draft(self, batch: Any, counts: TokenIds, most: int) -> list[list[int]]:
        num = counts.size
        keys = batch.req_ids[:num]
        held = held_options(batch)
        if not held and len(self.groups) == 1:
            first = self.groups[""]
            drafts = self._draft_group(first, batch, counts, most, keys)
            self._next, self._decoding = (first.num_tokens, first.rows.steady), set()
            return drafts
        asks = [held.get(key, DEFAULT) for key in keys]
        limits = np.array(
            [most if one.n_max is None else min(most, one.n_max) for one in asks], np.int32
        )
        wanted = np.array([one.speculate for one in asks], np.bool_)
        names = [one.namespace if self.settings.options.namespaces else "" for one in asks]
        drafted: list[list[int]] = [[] for _ in range(num)]
        present = dict.fromkeys(names)
        for name in present:
            self._group(name)
        self._forget_oldest(present)
        for name in list(self.groups):  # groups without a row may have requests to end
            own = np.array([one == name for one in names], np.bool_) & wanted
            made = self._draft_group(
                self.groups[name], batch, np.where(own, counts, 0), limits, keys
            )
            for row in np.flatnonzero(own).tolist():
                drafted[row] = made[row]
        # One pass verifies the drafts of all, and rows without drafts take part in it.
        tokens = sum(group.num_tokens for group in self.groups.values()) + int((~wanted).sum())
        decoding = {key for key, count in zip(keys, counts.tolist(), strict=True) if count}
        self._next = tokens, len(decoding) == num and decoding == self._decoding
        self._decoding = decoding
        return drafted

    @staticmethod
    def _draft_group(
        group: BatchDrafts, batch: Any, counts: TokenIds, most: TokenIds | int, keys: list[str]
    ) -> list[list[int]]:
        num = counts.size
        lengths, prompts = batch.num_tokens_no_spec[:num], batch.num_prompt_tokens[:num]
        return group.draft(batch.token_ids_cpu, lengths, counts, most, keys, prompts)

    def _group(self, namespace: str) -> BatchDrafts:
        """Return the BatchDrafts of a namespace; make them if new."""
        group = self.groups.get(namespace)
        if group is None:
            params = {name: dict(own) for name, own in self.settings.params.items()}
            self._pools.join(params, namespace)
            group = make_drafts(self.settings, make_drafter(self.settings, params))
            self.groups[namespace] = group
        self.groups.move_to_end(namespace)
        return group

    def _forget_oldest(self, present: Collection[str]) -> None:
        """Drop the oldest namespaces beyond the limit, but none that has a row now."""
        too_many = len(self.groups) - 1 - self.settings.options.namespaces
        old = [name for name in self.groups if name and name not in present]
        for name in old[: max(0, too_many)]:
            add_stats(self._gone, self.groups.pop(name).drafter.stats())
        if too_many > 0:
            self._pools.forget(self.groups)


def suffix_proposer(base: type) -> type:
    """Return the class to put in place of vLLM's SuffixDecodingProposer `base`."""
    said = "BatchProposer that passes vLLM's isinstance checks for its own proposer."
    return type("NgramspecProposer", (BatchProposer, base), {"__doc__": said})
