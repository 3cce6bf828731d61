"""Arrays that every layer passes on: token ids, and vectors of texts."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int32]  # shape (n,), each >= 0
Vectors: TypeAlias = npt.NDArray[np.float32]  # shape (d,), or (n, d) for several texts
