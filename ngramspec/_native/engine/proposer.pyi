from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.plan import Plan
from ngramspec._native.engine.slot import Slot
from ngramspec._native.policy.auto import AutoPolicy

@final
class Proposer:
    def __new__(
        cls,
        plan: Plan,
        policy: AutoPolicy,
        valid: npt.NDArray[np.uint8],
        stats: EngineStats,
        most_behind: int = -1,
        max_branches: int = 1,
    ) -> Self: ...
    @property
    def width(self) -> int: ...
    @property
    def bare(self) -> int: ...
    @property
    def decoding(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def priced(self) -> list[Slot]: ...
    def propose(self) -> list[Slot]: ...
    def limit(self, slot: Slot, source: str) -> int: ...
    def batch_tokens(self) -> int: ...
