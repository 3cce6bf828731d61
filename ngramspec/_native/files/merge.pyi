from collections.abc import Sequence
from typing import Protocol, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

class _Source(Protocol):
    def read(self) -> npt.NDArray[np.uint64]: ...

@final
class EntryMerger:
    def __new__(cls, sources: Sequence[_Source], min_count: int = 1) -> Self: ...
    def read(self, max_entries: int = 65536) -> npt.NDArray[np.uint64]: ...

def entries_beyond(
    entries: npt.NDArray[np.uint64], known: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]: ...
