from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.policy.mixtures import Mixed

class Asked(NamedTuple):
    after: int
    tokens: int
    trial: bool
    beside: bool = False

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
        parents: npt.NDArray[np.int32] | None = None,
        branches: int = 1,
        stops: bool = False,
        shortest: int = 0,
        left: int = 1,
    ) -> Asked: ...
    def pays(self, slot: int, source: str, claims: list[float]) -> bool: ...
    def mix(
        self,
        source: str,
        claimed: npt.NDArray[np.float32],
        draft: npt.NDArray[np.int32],
        after: bool,
        free: str,
        confidence: npt.NDArray[np.float32],
        parents: npt.NDArray[np.int32] | None,
        tokens: npt.NDArray[np.int32],
        room: int,
        batch_tokens: int = 1,
        decoding: int = 1,
        branches: int = 1,
    ) -> Mixed: ...
    def path(
        self,
        free: str,
        confidence: npt.NDArray[np.float32],
        parents: npt.NDArray[np.int32],
        chosen: int,
    ) -> npt.NDArray[np.int32]: ...
    def learn(
        self, slot: int, source: str, num_right: int, num_known: int, apart: bool = False
    ) -> None: ...
