from typing import final

from typing_extensions import Self

from ngramspec._native.drafter.source import Source
from ngramspec._native.mod.pool import HashPool

@final
class ModSource(Source):
    def __new__(cls, slots: int, pool: HashPool, n_match: int, n_min: int, n_max: int) -> Self: ...
    @property
    def pool(self) -> HashPool: ...
