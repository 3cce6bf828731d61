from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.policy.costs import Calibrations, PassCosts

@final
class TreeValues:
    def __new__(cls, width: int) -> Self: ...

@final
class Chooser:
    def __new__(cls, max_draft: int, costs: PassCosts) -> Self: ...

@final
class OfferList:
    def __new__(
        cls,
        calibrations: Calibrations,
        chains: Sequence[tuple[str, npt.NDArray[np.float32], int]],
        streaks: Sequence[int | None],
    ) -> Self: ...
