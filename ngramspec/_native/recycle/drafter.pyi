from typing import final

from typing_extensions import Self

from ngramspec._native.drafter.source import Source
from ngramspec._native.recycle.successors import SuccessorPool

@final
class RecycleSource(Source):
    def __new__(
        cls, slots: int, pool: SuccessorPool, max_draft: int, floor: float, pairs: bool
    ) -> Self: ...
    @property
    def pool(self) -> SuccessorPool: ...
