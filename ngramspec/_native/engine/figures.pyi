from collections.abc import Iterable
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

SECONDS: tuple[float, ...]
COUNTS: tuple[int, ...]

@final
class Histogram:
    def __new__(cls, bounds: Iterable[float]) -> Self: ...
    total: float
    @property
    def bounds(self) -> tuple[float, ...]: ...
    @property
    def buckets(self) -> list[int]: ...
    @property
    def count(self) -> int: ...
    def observe(self, value: float, times: int = 1) -> None: ...
    def cumulative(self) -> list[tuple[str, int]]: ...

@final
class Timings:
    submitted: float
    started: float
    first_token: float
    last_token: float
    finished: float
    num_prompt: int
    num_cached: int
    num_discarded: int
    num_steps: int
    num_prediction_accepted: int
    num_prediction_rejected: int
    saved_seconds: float
    def __init__(self, num_prompt: int = 0) -> None: ...
    @property
    def num_drafts(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def num_accepted_tokens(self) -> int: ...
    def per_draft(self) -> npt.NDArray[np.int32]: ...
    @property
    def prompt_seconds(self) -> float: ...
    @property
    def decode_seconds(self) -> float: ...

@final
class EngineStats:
    num_requests: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_emitted_tokens: int
    num_steps: int
    num_batch_tokens: int
    num_busy_slots: int
    num_slot_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_rollback_failures: int
    num_preempted: int
    num_reread_tokens: int
    num_restored_tokens: int
    longest: int
    num_context_shifts: int
    prompt_seconds: float
    decode_seconds: float
    draft_seconds: float
    verify_seconds: float
    accepted_seconds: float
    drafted_seconds: float
    def __new__(cls) -> Self: ...
    @property
    def finished(self) -> dict[str, int]: ...
    @property
    def time_to_first_token(self) -> Histogram: ...
    @property
    def inter_token_latency(self) -> Histogram: ...
    @property
    def request_latency(self) -> Histogram: ...
    @property
    def queue_time(self) -> Histogram: ...
    @property
    def batch_tokens(self) -> Histogram: ...
    @property
    def draft_lengths(self) -> Histogram: ...
    @property
    def accepted_per_position(self) -> list[int]: ...
    def count_draft(self, drafted: int, accepted: int) -> None: ...
