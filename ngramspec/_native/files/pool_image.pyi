from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

@final
class PoolImage:
    def __new__(cls, cell_bits: int, check_bits: int, max_occupancy: float) -> Self: ...
    def feed(self, entries: npt.NDArray[np.uint64]) -> None: ...
    def finish(self) -> npt.NDArray[np.uint32]: ...
