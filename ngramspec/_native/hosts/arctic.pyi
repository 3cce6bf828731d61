from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.suffix.drafter import SuffixSource

@final
class ArcticRequest:
    def __new__(cls, drafter: Drafter, source: SuffixSource, slot: int, depth: int) -> Self: ...
    def begin(
        self, token_ids: npt.NDArray[np.int32] | Sequence[int], name: str = "prompt_token_ids"
    ) -> None: ...
    def extend(self, token_ids: npt.NDArray[np.int32] | Sequence[int]) -> None: ...
    def speculate(
        self,
        context: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: int,
        factor: float,
        offset: float,
        min_probability: float,
        width: int,
    ) -> tuple[list[int], list[int], list[float], float, int] | tuple[()] | None: ...
