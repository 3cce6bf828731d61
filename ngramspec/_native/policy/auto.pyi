from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec.costs import CostTable

FIRST_PAUSE: int
MAX_PAUSE: int
PROBE: int
START: int

@final
class Gate:
    def __new__(cls, max_draft: int) -> Self: ...

@final
class AutoPolicy:
    def __new__(
        cls,
        max_draft: int = 64,
        costs: CostTable | None = None,
        fixed: int | None = None,
        gate: bool = False,
        shadow: bool = False,
    ) -> Self: ...
    @property
    def shadow(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def max_draft(self) -> int: ...
    @property
    def weighs(self) -> bool: ...
    @property
    def rate(self) -> float: ...
    @property
    def timed(self) -> bool: ...
    def begin(self, slot: int) -> None: ...
    def limit(self, slot: int, source: str) -> int: ...
    def choose(
        self,
        slot: int,
        source: str,
        confidence: npt.NDArray[np.float32],
        room: int,
        batch_tokens: int = 1,
        decoding: int = 1,
        streak: int | None = None,
    ) -> int: ...
    def choose_tree(
        self,
        slot: int,
        source: str,
        confidence: npt.NDArray[np.float32],
        parents: npt.NDArray[np.int32],
        room: int,
        batch_tokens: int = 1,
        decoding: int = 1,
        streak: int | None = None,
    ) -> npt.NDArray[np.int32]: ...
    def choose_many(
        self,
        chains: Sequence[tuple[str, npt.NDArray[np.float32], int]],
        capacity: int,
        batch_tokens: int = 0,
        decoding: int = 0,
        streaks: Sequence[int | None] | None = None,
        padded_rows: int = 0,
    ) -> list[int]: ...
    def best(
        self,
        chains: Sequence[tuple[str, npt.NDArray[np.float32], int]],
        batch_tokens: int = 1,
        decoding: int = 1,
        streak: int | None = None,
    ) -> int: ...
    def learn(
        self,
        slot: int,
        source: str,
        confidence: npt.NDArray[np.float32],
        num_right: int,
        num_known: int,
    ) -> None: ...
    def calibrated(
        self, source: str, confidence: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]: ...
    def observe(self, num_tokens: int, seconds: float) -> None: ...
    def observe_branches(self, num_branches: int, seconds: float) -> None: ...
    def step(self, emitted: int, batch_tokens: int, seconds: float = 0.0) -> None: ...
    def cost(self, tokens: int) -> float: ...
    def note(self, emitted: int, batch_tokens: int) -> None: ...
    def spend(self, seconds: float) -> None: ...
    def record(self, slot: int, source: str, drafted: int, accepted: int) -> None: ...
    def costs(self) -> CostTable: ...
