from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

@final
class Pieces:
    def __new__(cls, pieces: Sequence[bytes], ends: Iterable[int] = ()) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...

GOES_ON: int
END_TOKEN: int
STOP_TEXT: int
FULL: int
IMPOSSIBLE: int

@final
class Transcript:
    def __new__(
        cls,
        pieces: Pieces,
        stops: Sequence[bytes] = (),
        max_tokens: int = -1,
        min_indent: int = 0,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def feed(
        self, token_ids: npt.NDArray[np.int32] | Sequence[int], num_accepted: int = 0
    ) -> int: ...
    def take(self, last: bool = False) -> tuple[tuple[str, bool], ...]: ...
    @property
    def text(self) -> str: ...
    @property
    def stop(self) -> int: ...
    def token_ids(self, start: int = 0) -> npt.NDArray[np.int32]: ...
    def accepted(self) -> npt.NDArray[np.bool_]: ...
