from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._calibration import Calibrations
from ngramspec._pass_costs import PassCosts

@final
class Chooser:
    def __new__(cls, max_draft: int, costs: PassCosts) -> Self: ...

@final
class Candidates:
    def __new__(
        cls,
        calibrations: Calibrations,
        chains: Sequence[tuple[str, npt.NDArray[np.float32], int]],
    ) -> Self: ...
