from typing import final

from typing_extensions import Self

@final
class TreeValues:
    def __new__(cls, width: int) -> Self: ...
