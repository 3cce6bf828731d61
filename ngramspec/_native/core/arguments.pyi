import numpy as np
import numpy.typing as npt

def leading_flagged(
    token_ids: npt.NDArray[np.int32], flags: npt.NDArray[np.uint8], flag: int
) -> int: ...
def lists_of(rows: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> list[list[int]]: ...
