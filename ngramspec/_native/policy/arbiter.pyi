from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.policy.auto import AutoPolicy

class Mixed(NamedTuple):
    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    num_free: int

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

class Asked(NamedTuple):
    after: int
    tokens: int
    trial: bool
    beside: bool = False

class FreeDraft(NamedTuple):
    source: str
    confidence: npt.NDArray[np.float32]
    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32] | None = None

class Terms(NamedTuple):
    room: int
    most: int = 1024
    batch_tokens: int = 1
    decoding: int = 1
    branches: int = 1
    shortest: int = 0
    left: int = 1
    sharing: int = 1
    extends: bool = True
    stops: bool = False
    backlog: float = 0.0

@final
class Priced:
    def __new__(cls, name: str) -> Self: ...

@final
class Arbiter:
    def __new__(cls, policy: AutoPolicy) -> Self: ...
    @property
    def policy(self) -> AutoPolicy: ...
    def price(self, source: str, start: float, per_token: float) -> None: ...
    def join(self, source: str, passes: float) -> None: ...
    def time(self, source: str, start: float, per_token: float) -> None: ...
    def note_call(self, source: str, sharing: int) -> None: ...
    def owe(self, slot: int, source: str, seconds: float, tokens: int = 0) -> None: ...
    def begin(self, slot: int) -> None: ...
    def expected(self, slot: int, source: str, tokens: int) -> npt.NDArray[np.float32]: ...
    def ask(self, slot: int, source: str, free: FreeDraft, terms: Terms) -> Asked: ...
    def pays(self, slot: int, source: str, claims: list[float]) -> bool: ...
    def mix(
        self,
        source: str,
        confidence: npt.NDArray[np.float32],
        draft: npt.NDArray[np.int32],
        after: bool,
        free: FreeDraft,
        terms: Terms,
    ) -> Mixed: ...
    def path(self, free: FreeDraft) -> npt.NDArray[np.int32]: ...
    def learn(
        self, slot: int, source: str, num_right: int, num_known: int, apart: bool = False
    ) -> None: ...
