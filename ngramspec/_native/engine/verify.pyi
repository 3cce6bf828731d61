from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Rows, Sampler

def verify(
    rows: Rows,
    first_row: int,
    draft: npt.NDArray[np.int32] | Sequence[int],
    sampler: Sampler,
    out: npt.NDArray[np.int32],
    parents: npt.NDArray[np.int32] | None = None,
) -> int: ...
