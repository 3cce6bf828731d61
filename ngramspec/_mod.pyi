from typing import final

from typing_extensions import Self

from ngramspec._pool import HashPool
from ngramspec._source import Source

@final
class ModSource(Source):
    def __new__(cls, slots: int, pool: HashPool, n_match: int, n_min: int, n_max: int) -> Self: ...
    @property
    def pool(self) -> HashPool: ...
