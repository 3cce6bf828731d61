from typing import final

from typing_extensions import Self

from ngramspec._native.cache.ngram_cache import NgramCache
from ngramspec._native.cache.static import StaticCache
from ngramspec._native.drafter.source import Source
from ngramspec.drafting.config import CacheConfig

@final
class CacheSource(Source):
    def __new__(
        cls, slots: int, config: CacheConfig, dynamic: NgramCache | None, static: StaticCache | None
    ) -> Self: ...
    @property
    def dynamic(self) -> NgramCache | None: ...
    @property
    def static(self) -> StaticCache | None: ...
