import numpy as np
import numpy.typing as npt

def entries_of_records(records: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.uint64]: ...
