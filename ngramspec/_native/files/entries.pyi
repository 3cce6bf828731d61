from collections.abc import Sequence
from typing import Protocol, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.cache.static import StaticCache

class _Source(Protocol):
    def read(self) -> npt.NDArray[np.uint64]: ...

@final
class EntryMerger:
    def __new__(cls, sources: Sequence[_Source], min_count: int = 1) -> Self: ...
    def read(self, max_entries: int = 65536) -> npt.NDArray[np.uint64]: ...

def entries_beyond(
    entries: npt.NDArray[np.uint64], base: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]: ...

@final
class EntryReader:
    def __new__(
        cls, cache: StaticCache, size: int, keep: npt.NDArray[np.uint8] | None = None
    ) -> Self: ...
    def read(self, max_entries: int = 65536) -> npt.NDArray[np.uint64]: ...
    def check_index(self, index: npt.NDArray[np.uint32]) -> None: ...

def tokens_of(entries: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.int32]: ...
