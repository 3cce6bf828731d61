from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.engine.decode import Sampler
from ngramspec._native.engine.transcript import Pieces

@final
class ReasoningSampler(Sampler):
    def __new__(
        cls,
        inner: Sampler,
        pieces: Pieces,
        open: bytes,
        closes: Iterable[bytes],
        budget: int,
        end_ids: npt.NDArray[np.int32] | Sequence[int],
        begun: bool = False,
    ) -> Self: ...
    @property
    def problem(self) -> str: ...
    @property
    def may_end(self) -> bool: ...
    def accept_prompt(self, token_ids: npt.NDArray[np.int32] | Sequence[int]) -> None: ...
