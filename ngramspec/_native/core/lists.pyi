import numpy as np
import numpy.typing as npt

def lists_of(rows: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> list[list[int]]: ...
