from typing import final

from typing_extensions import Self

from ngramspec._native.drafter.source import Source

@final
class SimpleSource(Source):
    def __new__(cls, slots: int, size_n: int, size_m: int, min_hits: int) -> Self: ...

@final
class MapSource(Source):
    def __new__(
        cls, slots: int, size_n: int, size_m: int, min_hits: int, max_values: int, window: int
    ) -> Self: ...
