from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.engine.decode import Rows, Sampler
from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.plan import Plan
from ngramspec._native.engine.slot import Slot
from ngramspec._native.policy.auto import AutoPolicy

def verify(
    rows: Rows,
    first_row: int,
    draft: npt.NDArray[np.int32] | Sequence[int],
    sampler: Sampler,
    out: npt.NDArray[np.int32],
    parents: npt.NDArray[np.int32] | None = None,
) -> int: ...

@final
class Dice:
    def __new__(cls, rates: Sequence[float], seed: int = 0) -> Self: ...

@final
class Verifier:
    def __new__(
        cls,
        plan: Plan,
        rows: Rows,
        policy: AutoPolicy,
        stats: EngineStats,
        valid: npt.NDArray[np.uint8],
        dice: Dice | None = None,
    ) -> Self: ...
    def verify(self) -> list[Slot]: ...
