from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.drafter.source import Source
from ngramspec._native.suffix.index import SuffixIndex
from ngramspec._native.suffix.pool import SuffixPool

@final
class SuffixSource(Source):
    def __new__(
        cls,
        slots: int,
        pool: SuffixPool | None,
        max_draft: int,
        floor: float,
        prompts: bool,
        weights: npt.ArrayLike,
        index: SuffixIndex | None = None,
        room: int = 4096,
    ) -> Self: ...
    @property
    def pool(self) -> SuffixPool | None: ...
    @property
    def index(self) -> SuffixIndex | None: ...
    @property
    def floor(self) -> float: ...
    @floor.setter
    def floor(self, floor: float) -> None: ...
    def match_length(self, slot: int, token: int) -> int: ...
    def considered(
        self, slot: int
    ) -> tuple[
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.bool_],
        npt.NDArray[np.float32],
        npt.NDArray[np.float32],
    ]: ...
