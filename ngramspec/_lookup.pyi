from typing import final

from typing_extensions import Self

from ngramspec._cache import NgramCache
from ngramspec._source import Source
from ngramspec.drafters.config import CacheConfig

@final
class CacheSource(Source):
    def __new__(
        cls, slots: int, config: CacheConfig, dynamic: NgramCache | None, static: NgramCache | None
    ) -> Self: ...
    @property
    def dynamic(self) -> NgramCache | None: ...
    @property
    def static(self) -> NgramCache | None: ...
