from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from ngramspec._trees import Trees
from ngramspec.stats import Replay

@final
class Drafter(Trees):
    def begin(self, slot: int, token_ids: npt.NDArray[np.int32] | Sequence[int]) -> None: ...
    def propose(self, slot: int, max_tokens: int) -> npt.NDArray[np.int32]: ...
    def confidence(self, slot: int) -> npt.NDArray[np.float32]: ...
    def shorten(self, slot: int, length: int) -> None: ...
    def accept(
        self, slot: int, token_ids: npt.NDArray[np.int32] | Sequence[int], num_accepted: int
    ) -> None: ...
    def follow(
        self, slot: int, token_ids: npt.NDArray[np.int32] | Sequence[int], vocab_size: int = 0
    ) -> int: ...
    def truncate(self, slot: int, length: int) -> None: ...
    def end(self, slot: int) -> None: ...
    def propose_batch(
        self,
        slots: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: npt.NDArray[np.int32] | Sequence[int] | int,
        out: npt.NDArray[np.int32],
        out_lens: npt.NDArray[np.int32],
    ) -> None: ...
    def replay(
        self,
        prompt: npt.NDArray[np.int32] | Sequence[int],
        output: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: int = 0,
        slot: int = 0,
    ) -> Replay: ...
