from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.policy.auto import AutoPolicy

class Mixed(NamedTuple):
    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    kept: int

@final
class Mixer:
    def __new__(cls, policy: AutoPolicy) -> Self: ...
    def path(self, free: Any) -> npt.NDArray[np.int32]: ...
    def mix(
        self,
        source: str,
        confidence: npt.NDArray[np.float32],
        draft: npt.NDArray[np.int32],
        after: bool,
        apart: float,
        free: Any,
        terms: Any,
    ) -> Mixed: ...
