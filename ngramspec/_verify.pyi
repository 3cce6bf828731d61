from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngramspec._rows import Rows
from ngramspec._sampler import Sampler

def verify(
    rows: Rows,
    first_row: int,
    draft: npt.NDArray[np.int32] | Sequence[int],
    sampler: Sampler,
    out: npt.NDArray[np.int32],
) -> int: ...
