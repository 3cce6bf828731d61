from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.policy.auto import AutoPolicy

class Asked(NamedTuple):
    after: int
    tokens: int
    trial: bool

@final
class Priced:
    def __new__(cls, name: str) -> Self: ...

@final
class Arbiter:
    def __new__(cls, policy: AutoPolicy) -> Self: ...
    @property
    def policy(self) -> AutoPolicy: ...
    def price(self, source: str, start: float, per_token: float) -> None: ...
    def begin(self, slot: int) -> None: ...
    def expected(self, slot: int, source: str, tokens: int) -> npt.NDArray[np.float32]: ...
    def ask(
        self,
        slot: int,
        source: str,
        most: int,
        room: int,
        free: str,
        confidence: npt.NDArray[np.float32],
        chosen: int,
        batch_tokens: int = 1,
        decoding: int = 1,
        sharing: int = 1,
        extends: bool = True,
        backlog: float = 0.0,
    ) -> Asked: ...
    def learn(self, slot: int, source: str, num_right: int, num_known: int) -> None: ...
