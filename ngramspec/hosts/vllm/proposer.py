"""Proposer: the class for vLLM's `method="custom_class"`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.arrays import TokenIds
from ngramspec.drafting import create_drafter
from ngramspec.drafting.config import MAX_CHOSEN
from ngramspec.hosts.rows import BatchDrafts, Rows
from ngramspec.hosts.vllm.counters import SourceCounters, log
from ngramspec.hosts.vllm.settings import ProposerSettings, read_settings


class Proposer:
    """Propose drafts to vLLM's V1 model runner from n-grams and suffixes of the texts.

    Configure: speculative_config={"method": "custom_class", "model":
    "ngramspec.hosts.vllm.Proposer", "num_speculative_tokens": K}; options in
    additional_config={"ngramspec": {...}} or NGRAMSPEC_*, see docs/engines/vllm.md.
    All requests share the pool. vLLM does not pass request ids here, so rows are recognised by
    their content.

    Only the rank whose drafts vLLM uses makes any. With the external launcher every rank schedules
    for itself, so all do; then no draft depends on time, so that equal steps give equal drafts.

    Args:
        vllm_config: vllm.config.VllmConfig.

    Raises:
        InputError, FormatError, VocabMismatchError, OSError: As create_drafter, for the options.

    Not locked: one thread at a time, as vLLM calls it.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.settings = read_settings(vllm_config)
        self._failed = False
        self.drafts: BatchDrafts | None = None
        if not self.settings.drafts_here:
            return
        drafter = make_drafter(self.settings, self.settings.params, make_policy(self.settings))
        self.drafts = make_drafts(self.settings, drafter)
        self._clock = StepClock()
        self._counters = SourceCounters(drafter.stats, self.settings.options.log_seconds)

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: TokenIds,
        token_ids_cpu: TokenIds,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft what may follow each row; the call that vLLM makes after each step.

        Args:
            sampled_token_ids: What the step emitted, by row; empty for a partial prefill.
            num_tokens_no_spec: int32, shape (r,), r >= rows: tokens of each, the step's included.
            token_ids_cpu: int32, shape (r, max_model_len): the texts. Not kept.
            slot_mappings: Not used.

        Returns:
            One list per row of at most num_speculative_tokens ids, empty for no draft. After a
            failure, which is logged once, all stay empty.

        Cost: O(rows + emitted and drafted tokens), plus the length of each new prompt.
        """
        num = len(sampled_token_ids)
        if self.drafts is None or self._failed or not num:
            return [[] for _ in range(num)]
        self._clock.stop()
        try:
            counts = counts_of(sampled_token_ids)
            rows = Rows(token_ids_cpu, num_tokens_no_spec[:num], counts)
            drafted = self.drafts.draft(rows, self.settings.max_draft)
        except Exception:  # of any kind: the engine must go on
            self._failed = True
            log.exception("ngramspec failed and drafts nothing from now on")
            return [[] for _ in range(num)]
        self._counters.report()
        learning = learns_times(self.settings, self.drafts.drafter.policy)
        self._clock.start(self.drafts.num_tokens, self.drafts.rows.steady, learning)
        return drafted

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no model to load."""


def counts_of(sampled_token_ids: list[list[int]]) -> TokenIds:
    return np.fromiter(map(len, sampled_token_ids), np.int32, len(sampled_token_ids))


def learns_times(settings: ProposerSettings, policy: AutoPolicy | None) -> AutoPolicy | None:
    """Return the policy if it may learn how long passes take, else None."""
    return policy if settings.one_drafts else None


def make_policy(settings: ProposerSettings) -> AutoPolicy | None:
    """Return the policy that the options name, new; None for "fixed"."""
    auto = settings.options.policy == "auto"
    return AutoPolicy(min(settings.max_draft, MAX_CHOSEN)) if auto else None


def make_drafter(settings: ProposerSettings, params: Any, policy: AutoPolicy | None) -> Drafter:
    """Return a drafter for all rows of the engine.

    Raises:
        As create_drafter.
    """
    options = settings.options
    return create_drafter(
        options.drafter,
        slots=settings.max_rows,
        max_history=settings.max_history,
        params=params,
        policy=policy,
        threads=options.threads,
    )


def make_drafts(settings: ProposerSettings, drafter: Drafter) -> BatchDrafts:
    return BatchDrafts(drafter, settings.max_draft, settings.max_length, settings.vocab_size)


class StepClock:
    """Measure the time from a step's drafts to the next step's call: the pass and its overhead."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._started = self._stopped = 0.0

    def stop(self) -> None:
        """End a step: its tokens have arrived."""
        self._stopped = time.perf_counter()

    def start(self, num_tokens: int, steady: bool, policy: AutoPolicy | None) -> None:
        """Begin the next step, and let a policy learn from the last.

        Args:
            num_tokens: Tokens that the pass will verify, 0 = not known.
            steady: The last pass had the expected rows: no prompts, no pause.
            policy: The one that learns, None = nobody does.
        """
        if policy is not None and steady and self._num_tokens:
            policy.observe(self._num_tokens, self._stopped - self._started)
        self._num_tokens = num_tokens
        self._started = time.perf_counter()
