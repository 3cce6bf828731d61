import numpy as np
import numpy.typing as npt

from ngramspec._static import StaticCache

def usefulness(
    cache: StaticCache, size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def useful_ngrams(
    cache: StaticCache, size: int, least: int, max_ngrams: int, max_bytes: int
) -> tuple[npt.NDArray[np.uint8], int, int]: ...
