import numpy as np
import numpy.typing as npt

def leading_flagged(
    token_ids: npt.NDArray[np.int32], flags: npt.NDArray[np.uint8], flag: int
) -> int: ...
