from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.drafter.source import Source
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.stats import Replay, SourceStats

@final
class Drafter:
    def __new__(
        cls,
        sources: Iterable[Source],
        slots: int = 1,
        max_history: int = 1048576,
        policy: AutoPolicy | None = None,
        threads: int | None = None,
    ) -> Self: ...
    @property
    def slots(self) -> int: ...
    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def policy(self) -> AutoPolicy | None: ...
    @property
    def threads(self) -> int: ...
    @property
    def max_draft(self) -> int: ...
    @property
    def top(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def length(self, slot: int) -> int: ...
    def history(self, slot: int) -> npt.NDArray[np.int32]: ...
    def check(self) -> str: ...
    def stats(self) -> dict[str, SourceStats]: ...
    def reset_stats(self) -> None: ...
    def propose_after(
        self,
        slot: int,
        draft: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: int,
        confidence: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.int32]: ...
    def propose_tree(
        self, slot: int, max_tokens: int, max_width: int = 8, max_branches: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...
    def propose_batch(
        self,
        slots: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: npt.NDArray[np.int32] | Sequence[int] | int,
        out: npt.NDArray[np.int32],
        out_lens: npt.NDArray[np.int32],
        parents: npt.NDArray[np.int32] | None = None,
        max_width: int = 8,
        others: int = 0,
        other_tokens: int = 0,
        padded_rows: int = 0,
    ) -> None: ...
    def follow_batch(
        self,
        slots: npt.NDArray[np.int32],
        token_ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        accepted: npt.NDArray[np.int32],
    ) -> None: ...
    def find_slots(
        self,
        slots: npt.NDArray[np.int32],
        token_ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        matches: npt.NDArray[np.int32],
    ) -> None: ...
    def replay(
        self,
        prompt: npt.NDArray[np.int32] | Sequence[int],
        output: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: int = 0,
        slot: int = 0,
    ) -> Replay: ...
    def begin(self, slot: int, token_ids: npt.NDArray[np.int32] | Sequence[int]) -> None: ...
    def propose(self, slot: int, max_tokens: int) -> npt.NDArray[np.int32]: ...
    def confidence(self, slot: int) -> npt.NDArray[np.float32]: ...
    def offered(self, slot: int) -> npt.NDArray[np.float32]: ...
    def offered_by(self, slot: int) -> str: ...
    def offered_parents(self, slot: int) -> npt.NDArray[np.int32] | None: ...
    def shorten(self, slot: int, length: int) -> None: ...
    def accept(
        self, slot: int, token_ids: npt.NDArray[np.int32] | Sequence[int], num_accepted: int
    ) -> None: ...
    def observe_logits(
        self, slot: int, logits: npt.NDArray[np.float32], first: int | None = None
    ) -> None: ...
    def observe_top(
        self,
        slot: int,
        token_ids: npt.NDArray[np.int32],
        logprobs: npt.NDArray[np.float32],
        first: int | None = None,
    ) -> None: ...
    def follow(
        self, slot: int, token_ids: npt.NDArray[np.int32] | Sequence[int], vocab_size: int = 0
    ) -> int: ...
    def truncate(self, slot: int, length: int) -> None: ...
    def end(self, slot: int) -> None: ...
    def forget(self, slot: int) -> None: ...
