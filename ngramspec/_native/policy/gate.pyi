from typing import final

from typing_extensions import Self

FIRST_PAUSE: int
MAX_PAUSE: int
PROBE: int
START: int

@final
class Gate:
    def __new__(cls, max_draft: int) -> Self: ...
