import numpy as np
import numpy.typing as npt

def tree_rows(
    tokens: npt.NDArray[np.int32],
    parents: npt.NDArray[np.int32],
    root: int,
    out_tokens: npt.NDArray[np.int64],
    out_mask: npt.NDArray[np.int64],
) -> None: ...
