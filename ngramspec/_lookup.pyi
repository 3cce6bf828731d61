from typing import final

from typing_extensions import Self

from ngramspec._cache import NgramCache
from ngramspec._source import Source
from ngramspec._static import StaticCache
from ngramspec.drafters.config import CacheConfig

@final
class CacheSource(Source):
    def __new__(
        cls, slots: int, config: CacheConfig, dynamic: NgramCache | None, static: StaticCache | None
    ) -> Self: ...
    @property
    def dynamic(self) -> NgramCache | None: ...
    @property
    def static(self) -> StaticCache | None: ...
