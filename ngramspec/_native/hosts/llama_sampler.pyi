from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ngramspec._native.engine.decode import Sampler
from ngramspec._native.grammar.constraint import Constraint

@final
class Candidates:
    def __new__(cls, vocab_size: int) -> Self: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class ChainSampler(Sampler):
    def __new__(
        cls,
        calls: Mapping[str, int],
        chain_address: int,
        candidates: Candidates,
        owner: object,
        grammar: Constraint | None = None,
        keep: int = 0,
        lookback: int = 0,
        biased: npt.NDArray[np.int32] | Sequence[int] | None = None,
        greedy: bool = False,
    ) -> Self: ...
    @property
    def problem(self) -> str: ...
    @property
    def may_end(self) -> bool: ...
