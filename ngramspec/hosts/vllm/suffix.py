"""BatchProposer: what the plugin puts behind vLLM's `method="suffix"`; it sees request ids.

Namespaces: drafters and pools of requests, by the namespace that these ask for.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.drafting.statistics import Saves, open_shared
from ngramspec.engine.sources.drafters import add_stats
from ngramspec.engine.sources.pools import Pools
from ngramspec.hosts.rows import BatchDrafts, Rows
from ngramspec.hosts.vllm.counters import SourceCounters, log
from ngramspec.hosts.vllm.proposer import (
    StepClock,
    counts_of,
    learns_times,
    make_drafter,
    make_drafts,
    make_policy,
)
from ngramspec.hosts.vllm.request_options import DEFAULT, RequestOptions, held_options
from ngramspec.hosts.vllm.settings import ProposerSettings, read_settings
from ngramspec.stats import SourceStats

IDLE_STEPS = 256  # a namespace without requests keeps its drafter for so long
LOG_SECONDS = 60.0
MOST_LOGGED = 16  # failures within LOG_SECONDS; requests choose how many namespaces there are


class BatchProposer:
    """Propose drafts from an InputBatch, by request id.

    Requests of a namespace share its pools. What fails for one namespace ends drafts of its
    requests only, however many namespaces fail.

    Args:
        vllm_config: vllm.config.VllmConfig; options as for Proposer.

    Raises:
        As Proposer; FileNotFoundError: The folder of a file that will be written is missing.

    Not locked: one thread at a time, as vLLM calls it.
    """

    is_ngramspec = True

    def __init__(self, vllm_config: Any) -> None:
        self.settings = read_settings(vllm_config)
        self.num_speculative_tokens = self.settings.max_draft
        self._failed = not self.settings.drafts_here
        if self._failed:
            return
        self.namespaces = Namespaces(self.settings)
        self._clock = StepClock()
        self._next = (0, False)  # tokens of the next pass, and whether the last had the known rows
        self._decoding: set[str] = set()  # requests of the next pass, where groups do not tell
        seconds = self.settings.options.log_seconds
        self._counters = SourceCounters(self.namespaces.stats, seconds)

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
            sampled_token_ids, slot_mappings: as for Proposer.propose.

        Returns:
            As Proposer.propose. After a failure in a namespace, which is logged, its rows stay
            empty until the requests that it had have ended; after any other failure, all rows.

        Cost: O(rows + emitted and drafted tokens), plus for each namespace the rows of others that
        lie between its own, and the length of each new prompt.
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
        self._clock.start(*self._next, learns_times(self.settings, self.namespaces.policy))
        return drafted

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no model to load."""

    def _draft(self, batch: Any, counts: TokenIds, most: int) -> list[list[int]]:
        held = held_options(batch)
        if not held:
            self.namespaces.begin_step(("",), batch.req_id_to_index)
            alone = self.namespaces.default_alone()
            if alone is not None:
                return self._draft_alone(alone, batch, counts, most)
        return self._draft_each(batch, counts, most, held)

    def _draft_alone(
        self, group: BatchDrafts, batch: Any, counts: TokenIds, most: int
    ) -> list[list[int]]:
        """Draft where all rows are of the namespace "" and ask for nothing."""
        num = counts.size
        keys, lengths = batch.req_ids[:num], batch.num_tokens_no_spec[:num]
        prompts = batch.num_prompt_tokens[:num]
        self._next, self._decoding = (0, False), set()
        try:
            rows = Rows(batch.token_ids_cpu, lengths, counts, keys, prompts)
            drafted = group.draft(rows, most)
        except Exception as error:
            self.namespaces.fail("", error, keys)
            return [[] for _ in range(num)]
        self._next = group.num_tokens, group.rows.steady
        return drafted

    def _draft_each(
        self, batch: Any, counts: TokenIds, most: int, held: Mapping[str, RequestOptions]
    ) -> list[list[int]]:
        """Draft for one namespace after the other; one pass verifies the drafts of all."""
        num = counts.size
        keys = batch.req_ids[:num]
        asks = [held.get(key, DEFAULT) for key in keys]
        rows_of = self._rows_of(asks)
        if held:
            self.namespaces.begin_step(rows_of, batch.req_id_to_index)
        followed = self._follow(batch, counts, keys, rows_of)
        decoding = {key for key, count in zip(keys, counts.tolist(), strict=True) if count}
        if any(group.num_rows for group in followed.values()):
            self._note_others(counts, keys, [rows_of.get(name, []) for name in followed])
        limits = np.array(
            [most if one.n_max is None else min(most, one.n_max) for one in asks], np.int32
        )
        drafted: list[list[int]] = [[] for _ in range(num)]
        tokens = len(decoding)  # a row without a draft takes part in the pass, too
        for name, group in followed.items():
            if not group.num_rows:
                continue
            others = len(decoding) - group.num_rows
            rows = rows_of.get(name, [])
            part = _part_of(rows)
            try:
                drafts = group.propose(limits[part], others, tokens - group.num_rows)
            except Exception as error:
                self.namespaces.fail(name, error, [keys[row] for row in rows])
                continue
            tokens += group.num_tokens - group.num_rows
            for row in rows:
                drafted[row] = drafts[row - part.start]
        self._next = tokens, len(decoding) == num and decoding == self._decoding
        self._decoding = decoding
        return drafted

    def _rows_of(self, asks: list[RequestOptions]) -> dict[str, list[int]]:
        """Return the rows that want drafts, by namespace."""
        apart = self.settings.options.namespaces > 0
        rows: dict[str, list[int]] = {}
        for row, one in enumerate(asks):
            if one.speculate:
                rows.setdefault(one.namespace if apart else "", []).append(row)
        return rows

    def _follow(
        self, batch: Any, counts: TokenIds, keys: list[str], rows_of: Mapping[str, list[int]]
    ) -> dict[str, BatchDrafts]:
        """Bring namespaces with rows, or with requests to end, up to date; return these."""
        num = counts.size
        lengths, prompts = batch.num_tokens_no_spec[:num], batch.num_prompt_tokens[:num]
        followed: dict[str, BatchDrafts] = {}
        for name in dict.fromkeys([*rows_of, *self.namespaces.running()]):
            rows = rows_of.get(name, [])
            part = _part_of(rows)
            own = counts[part]
            if len(rows) < own.size:
                own = np.zeros_like(own)
                own[np.array(rows) - part.start] = counts[rows]
            try:
                group = self.namespaces.get(name)
                if group is not None:
                    table = batch.token_ids_cpu[part]
                    group.follow(Rows(table, lengths[part], own, keys[part], prompts[part]))
                    followed[name] = group
            except Exception as error:
                self.namespaces.fail(name, error, [keys[row] for row in rows])
        return followed

    def _note_others(self, counts: TokenIds, keys: list[str], followed: list[list[int]]) -> None:
        """Count for the policy what rows emitted, in the pass that they shared, without drafts."""
        policy = self.namespaces.policy
        without = counts > 0
        for rows in followed:
            without[rows] = False
        others = [row for row in np.flatnonzero(without).tolist() if keys[row] in self._decoding]
        if others and policy is not None:
            policy.note(int(counts[others].sum()), len(others))


def _part_of(rows: list[int]) -> slice:
    """Return the rows of a batch from a namespace's first to its last, which is all it is shown.

    A client can ask for a namespace per row; shown all rows, each would cost as much as the batch.
    """
    return slice(rows[0], rows[-1] + 1) if rows else slice(0, 0)


def suffix_proposer(base: type) -> type:
    doc = "BatchProposer that passes vLLM's isinstance checks for its own proposer."
    return type("NgramspecProposer", (BatchProposer, base), {"__doc__": doc})


class Namespaces:
    """Keep a drafter for each namespace that requests use, and its pools for longer.

    Files are opened once. A drafter goes when its namespace has had no request for IDLE_STEPS
    steps; the pools of as many namespaces as the options say stay, those used last, and a new
    drafter finds them. The namespace "" keeps both. All drafters share the policy.

    Args:
        settings: Of the engine.
        clock: Returns the time in seconds.

    Raises:
        As create_drafter; FileNotFoundError: The folder of a file that will be written is missing.

    Not locked: one thread at a time.
    """

    def __init__(
        self, settings: ProposerSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        saves = Saves()
        weakref.finalize(self, saves.close)
        self._params = open_shared(settings.params, saves)
        self._pools = Pools(self._params)
        self.policy = make_policy(settings)
        self.groups: OrderedDict[str, BatchDrafts] = OrderedDict()  # those used longest ago first
        self._used: OrderedDict[str, int] = OrderedDict()  # step of the last request, but of ""
        self._step = 0
        self._failed: dict[str, tuple[str, ...]] = {}  # namespaces without drafts: their requests
        self._failures = 0  # since LOG_SECONDS before _due
        self._due = clock() + LOG_SECONDS
        self._gone: dict[str, SourceStats] = {}
        self.get("")

    def begin_step(self, names: Collection[str], present: Container[str]) -> None:
        """Note which namespaces have requests in a step, and drop what others no longer keep.

        Args:
            names: The namespaces that have some.
            present: The ids of all requests.

        Cost: O(names) and what is dropped.
        """
        self._step += 1
        for name, requests in list(self._failed.items()):
            if not any(one in present for one in requests):
                del self._failed[name]
        for name in names:
            if name:
                self._used[name] = self._step
                self._used.move_to_end(name)
        self._drop_idle()
        most = max(self._settings.options.namespaces, sum(map(bool, names)))
        if len(self._used) > most:
            while len(self._used) > most:
                name, _ = self._used.popitem(last=False)
                self._drop(name)
            self._pools.forget(self._used)

    def get(self, name: str) -> BatchDrafts | None:
        """Return the drafts of a namespace, made if new; None while it has failed.

        Raises:
            As create_drafter.
        """
        if name in self._failed:
            return None
        group = self.groups.get(name)
        if group is None:
            params = {one: dict(own) for one, own in self._params.items()}
            self._pools.join(params, name)
            drafter = make_drafter(self._settings, params, self.policy)
            group = self.groups[name] = make_drafts(self._settings, drafter)
        self.groups.move_to_end(name)
        return group

    def running(self) -> list[str]:
        return [name for name, group in self.groups.items() if group.rows.num_active]

    def default_alone(self) -> BatchDrafts | None:
        """Return the drafts of "", None if it has failed or others have requests to end."""
        group = self.groups.get("")
        if len(self.groups) > 1 and any(self.running()):
            return None
        return group

    def fail(self, name: str, error: Exception, requests: Iterable[str]) -> None:
        """Log an error, and let its namespace draft nothing until the requests that it has end.

        However often that happens, others go on: any client can make up namespaces, and must not
        end the drafts of all. A namespace fails at most once for each of its requests.

        Args:
            name: The namespace.
            error: What went wrong.
            requests: Their ids.
        """
        self._log(name, error)
        self._failed[name] = tuple(requests)
        self._used.pop(name, None)
        self._drop(name)
        self._pools.forget(self._used)

    def stats(self) -> dict[str, SourceStats]:
        """Return counts by drafter name, over all namespaces, those that went included."""
        total = dict(self._gone)
        for group in self.groups.values():
            add_stats(total, group.drafter.stats())
        return total

    def _log(self, name: str, error: Exception) -> None:
        """Log a failure, unless there have been many lately."""
        now = self._clock()
        if now >= self._due:
            unsaid = self._failures - MOST_LOGGED
            if unsaid > 0:
                log.error("ngramspec failed %d times more, which was not logged", unsaid)
            self._failures, self._due = 0, now + LOG_SECONDS
        self._failures += 1
        if self._failures <= MOST_LOGGED:
            text = (
                "ngramspec failed: no drafts for namespace %r until its requests of now have ended"
            )
            log.error(text, name, exc_info=error)

    def _drop_idle(self) -> None:
        for name in [name for name in self.groups if name]:
            if self._step - self._used[name] < IDLE_STEPS:
                return
            self._drop(name)

    def _drop(self, name: str) -> None:
        group = self.groups.pop(name, None)
        if group is not None:
            add_stats(self._gone, group.drafter.stats())
