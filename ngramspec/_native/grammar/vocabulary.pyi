from collections.abc import Sequence
from typing import final

from typing_extensions import Self

@final
class Tokens:
    def __new__(cls, texts: Sequence[bytes], ends: Sequence[bool] | bytes) -> Self: ...
    def __len__(self) -> int: ...
