from typing import final

from typing_extensions import Self

@final
class Calibrations:
    def __new__(cls) -> Self: ...
