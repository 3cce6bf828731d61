from collections.abc import Iterator
from typing import Any, final

from typing_extensions import Self

@final
class DecisionTrace:
    def __new__(cls) -> Self: ...
    @property
    def num_dropped(self) -> int: ...
    def drain(self) -> Iterator[dict[str, Any]]: ...
