import numpy as np
import numpy.typing as npt

def check_records(records: npt.NDArray[np.int32]) -> int: ...
