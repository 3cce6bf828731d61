from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

_Ids = npt.NDArray[np.int32]

@final
class Batch:
    def __new__(cls, capacity: int) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    def clear(self) -> None: ...
    def add(
        self,
        sequence: int,
        position: int,
        token_ids: _Ids | Sequence[int],
        draft: _Ids | Sequence[int] | None = None,
        output: bool = True,
    ) -> int: ...
    def arrays(self) -> tuple[_Ids, _Ids, _Ids, npt.NDArray[np.bool_]]: ...
