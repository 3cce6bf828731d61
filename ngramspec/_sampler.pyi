from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, disjoint_base

from ngramspec._rows import Rows

@disjoint_base
class Sampler:
    def choose(self, rows: Rows, index: int) -> int: ...
    def accept(self, token: int) -> None: ...
    def accept_prompt(self, token_ids: npt.NDArray[np.int32] | Sequence[int]) -> None: ...

@final
class GreedySampler(Sampler):
    def __new__(cls) -> Self: ...
