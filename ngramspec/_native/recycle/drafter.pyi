from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.drafter.source import Source
from ngramspec._native.recycle.successors import SuccessorPool

@final
class RecycleSource(Source):
    def __new__(
        cls,
        slots: int,
        pool: SuccessorPool,
        max_draft: int,
        floor: float,
        pairs: bool,
        claims: npt.NDArray[np.uint16],
    ) -> Self: ...
    def considered(
        self, slot: int, tokens: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]: ...
    @property
    def pool(self) -> SuccessorPool: ...
