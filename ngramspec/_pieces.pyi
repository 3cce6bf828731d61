from collections.abc import Iterable, Sequence
from typing import final

from typing_extensions import Self

@final
class Pieces:
    def __new__(cls, pieces: Sequence[bytes], ends: Iterable[int] = ()) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
