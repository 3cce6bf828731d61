"""Metrics: the engine's counters under the names of other servers, the recorder's, HTTP's."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ngramspec.engine import EngineStats
from ngramspec.server.http.connections import Traffic
from ngramspec.server.metrics.families import MetricFamilies, Monotonic, Rate, Row
from ngramspec.server.recorder import Recorder

if TYPE_CHECKING:
    from ngramspec.engine import Engine, Shadow
    from ngramspec.stats import SourceStats

# Finish reasons: ours to vLLM's.
FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
MAX_POSITIONS = 64  # positions of a draft to report; a prediction may have thousands of tokens
Value = Callable[[EngineStats], float]
Named = tuple[str, str, str]  # a metric's name, its help, and the attribute that it shows
VLLM_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("prompt_tokens_total", "Prompt tokens, those found in the cache included.",
     lambda s: s.num_prompt_tokens + s.num_cached_tokens),
    ("generation_tokens_total", "Emitted tokens.", lambda s: s.num_emitted_tokens),
    ("prefix_cache_queries_total", "Prompt tokens looked up in the cache.",
     lambda s: s.num_prompt_tokens + s.num_cached_tokens),
    ("prefix_cache_hits_total", "Prompt tokens found in the cache.", lambda s: s.num_cached_tokens),
    ("num_preemptions_total", "How often a request had to wait for room in the cache.",
     lambda s: s.num_preempted),
)  # fmt: skip
LLAMACPP_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("prompt_tokens_total", "Prompt tokens read.", lambda s: s.num_prompt_tokens),
    ("prompt_tokens_cached_total", "Prompt tokens found in the cache.",
     lambda s: s.num_cached_tokens),
    ("prompt_seconds_total", "Time of passes that held prompt tokens.",
     lambda s: s.prompt_seconds),
    ("tokens_predicted_total", "Emitted tokens.", lambda s: s.num_emitted_tokens),
    ("tokens_predicted_seconds_total", "Time between tokens, summed over slots.",
     lambda s: s.inter_token_latency.total),
    ("n_decode_total", "Passes.", lambda s: s.num_steps),
)  # fmt: skip
OWN_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("requests_total", "Requests submitted.", lambda s: s.num_requests),
    ("busy_slots_total", "Slots, summed over all passes.", lambda s: s.num_busy_slots),
    ("slot_steps_total", "Of the busy slots, those that emitted.", lambda s: s.num_slot_steps),
    ("rollback_failures_total",
     "Sequences read again because the target could not take tokens back.",
     lambda s: s.num_rollback_failures),
    ("reread_tokens_total", "Tokens of preempted requests that were read again.",
     lambda s: s.num_reread_tokens),
    ("restored_tokens_total", "Tokens of preempted requests that memory brought back.",
     lambda s: s.num_restored_tokens),
    ("context_shifts_total", "Full contexts that lost a part of their tokens.",
     lambda s: s.num_context_shifts),
)  # fmt: skip
SOURCE_COUNTERS: tuple[tuple[str, str, Callable[[SourceStats], int]], ...] = (
    ("source_drafts_total", "Drafts made.", lambda s: s.num_drafts),
    ("source_accepted_drafts_total", "Drafts with an accepted token.",
     lambda s: s.num_accepted_drafts),
    ("source_draft_tokens_total", "Tokens drafted.", lambda s: s.num_draft_tokens),
    ("source_accepted_tokens_total", "Drafted tokens accepted.", lambda s: s.num_accepted_tokens),
)  # fmt: skip
POOL_GAUGES = (
    ("pool_cells", "Cells of the shared pool.", "capacity"),
    ("pool_used_cells", "Cells in use.", "num_used"),
    ("pool_occupancy_ratio", "Share of cells in use.", "occupancy"),
    ("pool_false_hit_ratio", "Expected share of unknown n-grams that find an entry.",
     "false_hit_rate"),
)  # fmt: skip
POOL_COUNTERS = (
    ("pool_replaced_total", "Entries whose follower was replaced.", "num_replaced"),
    ("pool_collisions_total", "Entries overwritten by another n-gram.", "num_collided"),
    ("pool_aged_total", "Entries freed for new ones.", "num_aged"),
)
SUFFIX_GAUGES = (
    ("suffix_pool_tokens", "Tokens in the shared suffix pool.", "num_tokens"),
    ("suffix_pool_capacity_tokens", "Tokens that the shared suffix pool can hold.", "capacity"),
    ("suffix_pool_bytes", "Memory of the shared suffix pool.", "nbytes"),
)
SUFFIX_COUNTERS = (
    ("suffix_pool_known_tokens_total", "Prompt tokens already in the pool.", "num_known"),
    ("suffix_pool_evicted_tokens_total", "Tokens evicted for newer ones.", "num_evicted"),
)
SUCCESSOR_GAUGES = (
    ("successor_pool_contexts", "Keys in the shared pool of recycle.", "num_entries"),
    ("successor_pool_capacity_contexts", "Keys that the shared pool of recycle can hold.",
     "capacity"),
    ("successor_pool_bytes", "Memory of the shared pool of recycle.", "nbytes"),
)  # fmt: skip
SUCCESSOR_COUNTERS = (
    ("successor_pool_observed_contexts_total", "Keys seen in logits, each time.",
     "num_observed"),
    ("successor_pool_evicted_contexts_total", "Keys evicted for newer ones.", "num_evicted"),
)  # fmt: skip
SHADOW_COUNTERS = (
    ("shadow_passes_total", "Passes that there would have been with drafts, one slot's each.",
     "num_passes"),
    ("shadow_drafts_total", "Of these passes, those with a draft.", "num_drafts"),
    ("shadow_draft_tokens_total", "Tokens of these drafts.", "num_draft_tokens"),
    ("shadow_accepted_tokens_total", "Of these, those that were right.", "num_accepted_tokens"),
    ("shadow_failures_total", "Requests whose drafter failed.", "num_failures"),
)  # fmt: skip
SHADOW_GAUGES = (
    ("shadow_speedup", "Times as fast as without drafts, an estimate by what passes cost.",
     "speedup"),
    ("shadow_saved_seconds",
     "Estimate of the time that drafts would have saved, with minus if lost.", "saved_seconds"),
)  # fmt: skip


class EngineCollector(Collector):
    """Reads the engine's counters on request; the engine does no work for it.

    Thread-safety: collect from any thread.
    """

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._vllm = MetricFamilies("vllm", model_name=model_name, engine="0")
        self._llamacpp = MetricFamilies("llamacpp")
        self._own = MetricFamilies("ngramspec")
        self._prompt_rate, self._predicted_rate = Rate(), Rate()
        # A draft under verification counts as wasted, and times are estimates: both may fall.
        self._wasted, self._seconds = Monotonic(), Monotonic()
        self._lock = threading.Lock()  # guards Rate and Monotonic, which keep earlier values

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read the engine."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        with self._lock:
            return [
                *self._of_vllm(stats),
                *self._of_llamacpp(stats),
                *_spec_decode(self._vllm, stats),
                *_spec_decode(self._llamacpp, stats),
                *_of_engine(self._own, self._engine, stats),
                *self._of_sources(self._engine.source_stats()),
                *_of_shadows(self._own, self._engine.shadows()),
                *_of_pool(self._own, self._engine),
                *_of_dynamic_file(self._own, self._engine),
            ]

    def _of_vllm(self, stats: EngineStats) -> Iterator[Metric]:
        make, engine = self._vllm, self._engine
        running = sum(slot.state != "idle" for slot in engine.slots())
        yield make.gauge("num_requests_running", "Requests on a slot.", running)
        yield make.gauge("num_requests_waiting", "Requests in the queue.", engine.queue_length)
        for name, text, value in VLLM_COUNTERS:
            yield make.counter(name, text, value(stats))
        ended = [((word,), stats.finished.get(own, 0)) for own, word in FINISHED.items()]
        text = "Finished requests; abort: cancelled."
        yield make.counters("request_success_total", text, ("finished_reason",), ended)
        histograms = (
            ("time_to_first_token_seconds", "From submitting to the first token.",
             stats.time_to_first_token),
            ("inter_token_latency_seconds", "Between tokens; tokens of one pass share its time.",
             stats.inter_token_latency),
            ("e2e_request_latency_seconds", "From submitting to the end.", stats.request_latency),
            ("request_queue_time_seconds", "From submitting to a slot.", stats.queue_time),
            ("iteration_tokens_total", "Tokens that a pass computed.", stats.batch_tokens),
        )  # fmt: skip
        for name, text, histogram in histograms:
            yield make.histogram(name, text, histogram)

    def _of_llamacpp(self, stats: EngineStats) -> Iterator[Metric]:
        make, engine = self._llamacpp, self._engine
        for name, text, value in LLAMACPP_COUNTERS:
            yield make.counter(name, text, value(stats))
        prompt = self._prompt_rate.read(stats.num_prompt_tokens, stats.prompt_seconds)
        predicted = self._predicted_rate.read(
            stats.num_emitted_tokens, stats.inter_token_latency.total
        )
        running = sum(slot.state != "idle" for slot in engine.slots())
        text = "Prompt tokens per second since the last scrape."
        busy = stats.num_busy_slots / max(stats.num_steps, 1)
        yield make.gauge(
            "n_tokens_max", "Most tokens of prompt and answer in a slot.", stats.longest
        )
        yield make.gauge("n_busy_slots_per_decode", "Slots per pass, since the start.", busy)
        yield make.gauge("prompt_tokens_seconds", text, prompt)
        text = "Emitted tokens per second and slot since the last scrape."
        yield make.gauge("predicted_tokens_seconds", text, predicted)
        yield make.gauge("requests_processing", "Requests on a slot.", running)
        yield make.gauge("requests_deferred", "Requests in the queue.", engine.queue_length)

    def _of_sources(self, sources: Mapping[str, SourceStats]) -> Iterator[Metric]:
        make = self._own
        for name, text, value in SOURCE_COUNTERS:
            rows = [((source.name,), value(source)) for source in sources.values()]
            yield make.counters(name, text, ("source",), rows)
        text = "Drafted tokens not accepted, including tokens cut before verification."
        wasted = [((s.name,), s.num_draft_tokens - s.num_accepted_tokens) for s in sources.values()]
        yield make.counters(
            "source_wasted_tokens_total", text, ("source",), self._wasted.read(wasted)
        )
        seconds = self._engine.seconds_saved()
        saved = [((name,), seconds.get(name, math.nan)) for name in sources]
        text = "Estimate of the time that drafts of a source have saved, with minus if lost."
        yield make.gauges("source_saved_seconds", text, ("source",), saved)
        yield _per_position(make, sources)
        yield from _calls(make, sources, self._seconds)
        failures = {"ngram": 0, **self._engine.source_failures()}
        text = "Calls of a source that raised; the source is then off for the request."
        rows = [((name,), count) for name, count in failures.items()]
        yield make.counters("source_failures_total", text, ("source",), rows)


def _spec_decode(make: MetricFamilies, stats: EngineStats) -> Iterator[Metric]:
    """Yield the counts of verified drafts, which have the same names in vLLM and llama-server."""
    yield make.counter("spec_decode_num_drafts_total", "Drafts verified.", stats.num_drafts)
    text = "Drafted tokens verified."
    yield make.counter("spec_decode_num_draft_tokens_total", text, stats.num_draft_tokens)
    text = "Drafted tokens accepted."
    yield make.counter("spec_decode_num_accepted_tokens_total", text, stats.num_accepted_tokens)
    name, text = "spec_decode_num_accepted_tokens_per_pos_total", "Drafts accepted at a position."
    counts = stats.accepted_per_position[:MAX_POSITIONS]
    rows = [((str(position),), count) for position, count in enumerate(counts)]
    yield make.counters(name, text, ("position",), rows)


def _of_engine(make: MetricFamilies, engine: Engine, stats: EngineStats) -> Iterator[Metric]:
    for name, text, value in OWN_COUNTERS:
        yield make.counter(name, text, value(stats))
    seconds = [
        (("prompt",), stats.prompt_seconds),
        (("decode",), stats.decode_seconds),
        (("draft",), stats.draft_seconds),
        (("verify",), stats.verify_seconds),
    ]
    text = "Time in the engine by phase: passes with prompt tokens, others, drafting, verifying."
    yield make.counters("phase_seconds_total", text, ("phase",), seconds)
    yield make.histogram("draft_length_tokens", "Tokens per verified draft.", stats.draft_lengths)
    yield make.gauge("queue_length", "Requests that wait for a slot.", engine.queue_length)
    text = "Tokens that a pass can hold."
    yield make.gauge("batch_capacity_tokens", text, engine.batch_capacity)
    yield make.gauge("slots", "Slots.", engine.num_slots)
    yield make.gauge("slot_capacity_tokens", "Tokens that a slot can hold.", engine.context_size)
    slots = engine.slots()
    busy = [((str(slot.id),), slot.state != "idle") for slot in slots]
    yield make.gauges("slot_busy", "1 while a request runs on the slot.", ("slot",), busy)
    held = [((str(slot.id),), slot.num_past) for slot in slots]
    yield make.gauges("slot_cached_tokens", "Tokens in the slot's cache.", ("slot",), held)


def _per_position(make: MetricFamilies, sources: Mapping[str, SourceStats]) -> Metric:
    rows = [
        ((source.name, str(position)), count)
        for source in sources.values()
        for position, count in enumerate(source.accepted_per_position[:MAX_POSITIONS])
    ]
    name, text = "source_accepted_tokens_per_pos_total", "Drafts accepted at a position."
    return make.counters(name, text, ("source", "position"), rows)


def _calls(
    make: MetricFamilies, sources: Mapping[str, SourceStats], rising: Monotonic
) -> Iterator[Metric]:
    calls: list[Row] = []
    seconds: list[Row] = []
    for source in sources.values():
        for call in ("begin", "propose", "accept"):
            key = (source.name, call)
            calls.append((key, getattr(source, f"{call}_calls")))
            seconds.append((key, getattr(source, f"{call}_ns") / 1e9))
    labels = ("source", "call")
    yield make.counters("source_calls_total", "Calls.", labels, calls)
    text = "Time in calls; propose and accept: estimated from every 16th call."
    yield make.counters("source_seconds_total", text, labels, rising.read(seconds))


def _of_shadows(make: MetricFamilies, shadows: Sequence[Shadow]) -> Iterator[Metric]:
    """Yield what drafters that are only judged would have brought; nothing where there are none."""
    kinds = ((make.counters, SHADOW_COUNTERS), (make.gauges, SHADOW_GAUGES))
    for family, named in kinds if shadows else ():
        for name, text, key in named:
            rows = [((shadow.name,), getattr(shadow, key)) for shadow in shadows]
            yield family(name, text, ("drafters",), rows)


def _of_pool(make: MetricFamilies, engine: Engine) -> Iterator[Metric]:
    """Yield metrics of the pools: sums over namespaces, and the shared pools."""
    drafters = engine.drafters
    pools, suffix_pools = drafters.pools(), drafters.suffix_pools()
    successor_pools = drafters.successor_pools()
    pool, suffix_pool = pools.pop("", None), suffix_pools.pop("", None)
    successor_pool = successor_pools.pop("", None)
    count = len(pools.keys() | suffix_pools.keys() | successor_pools.keys())
    yield make.gauge("namespace_pools", "Namespaces with pools of their own.", count)
    used = sum(other.num_used for other in pools.values())
    text = "Cells in use in the ngram-mod pools of namespaces."
    yield make.gauge("namespace_pool_used_cells", text, used)
    tokens = sum(other.num_tokens for other in suffix_pools.values())
    text = "Tokens in the suffix pools of namespaces."
    yield make.gauge("namespace_suffix_pool_tokens", text, tokens)
    contexts = sum(other.num_entries for other in successor_pools.values())
    text = "Contexts in the recycle pools of namespaces."
    yield make.gauge("namespace_successor_pool_contexts", text, contexts)
    num_bytes = sum(drafters.nbytes().values())
    yield make.gauge("kept_bytes", "Memory kept for keys, namespaces and sizes.", num_bytes)
    if pool is not None:
        stats = pool.stats()
        for name, text, key in POOL_GAUGES:
            yield make.gauge(name, text, stats[key])
        for name, text, key in POOL_COUNTERS:
            yield make.counter(name, text, stats[key])
    yield from _of_attributes(make, suffix_pool, SUFFIX_GAUGES, SUFFIX_COUNTERS)
    yield from _of_attributes(make, successor_pool, SUCCESSOR_GAUGES, SUCCESSOR_COUNTERS)


def _of_attributes(
    make: MetricFamilies, pool: Any, gauges: Iterable[Named], counters: Iterable[Named]
) -> Iterator[Metric]:
    """Yield metrics that are attributes of a pool; none where there is no pool."""
    if pool is None:
        return
    for name, text, key in gauges:
        yield make.gauge(name, text, getattr(pool, key))
    for name, text, key in counters:
        yield make.counter(name, text, getattr(pool, key))


def _of_dynamic_file(make: MetricFamilies, engine: Engine) -> Iterator[Metric]:
    file = engine.drafters.dynamic_file
    if file is not None:
        text = "Saves of the dynamic cache."
        yield make.counter("dynamic_saves_total", text, file.num_saves)
        text = "Saves that failed; their data is kept and saved with the next try."
        yield make.counter("dynamic_save_failures_total", text, file.num_save_failures)
        failing = bool(file.save_error)
        yield make.gauge("dynamic_save_failing", "1 while the latest save has failed.", failing)


class RecorderCollector(Collector):
    """Reads a recorder's counters on request; collect from any thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._own = MetricFamilies("ngramspec")

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stats, make = self._recorder.stats(), self._own
        yield make.counter("recorded_requests_total", "Requests recorded.", stats.written)
        yield make.counter("recorded_bytes_total", "Bytes of records written.", stats.num_bytes)
        text = "Requests not recorded: too many waited, too long for the file, not writable."
        rows = [((reason,), count) for reason, count in stats.dropped.items()]
        yield make.counters("record_dropped_requests_total", text, ("reason",), rows)
        text = "Decisions on drafts recorded."
        yield make.counter("recorded_decisions_total", text, stats.decisions)
        text = "Decisions on drafts not recorded: too many waited, or not writable."
        yield make.counter("record_dropped_decisions_total", text, stats.dropped_decisions)
        yield make.gauge("record_waiting_requests", "Requests to be written.", stats.waiting)
        text = "1 while the latest request could not be written."
        yield make.gauge("record_failing", text, stats.failing)


class TrafficCollector(Collector):
    """Reads the counts of the HTTP side on request; collect from any thread."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._own = MetricFamilies("ngramspec")

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterable[Metric]:
        traffic, make = self._traffic, self._own
        text = "Requests that got an error, by HTTP status and the error's code."
        errors = traffic.errors.copy().items()  # the event loop may add one meanwhile
        yield make.counters("http_errors_total", text, ("status", "code"), errors)
        text = "Cancelled requests by what ended them."
        cancelled = [((cause,), count) for cause, count in traffic.cancelled.items()]
        yield make.counters("cancelled_requests_total", text, ("reason",), cancelled)
        yield make.gauge("connections", "Open connections.", traffic.num_connections)
        text = "Connections that the server closed by itself."
        dropped = [((why,), count) for why, count in traffic.dropped.items()]
        yield make.counters("dropped_connections_total", text, ("reason",), dropped)
