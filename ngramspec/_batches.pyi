from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngramspec._trees import Trees
from ngramspec.stats import Replay

class Batches(Trees):
    def propose_batch(
        self,
        slots: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: npt.NDArray[np.int32] | Sequence[int] | int,
        out: npt.NDArray[np.int32],
        out_lens: npt.NDArray[np.int32],
    ) -> None: ...
    def follow_batch(
        self,
        slots: npt.NDArray[np.int32],
        token_ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        accepted: npt.NDArray[np.int32],
    ) -> None: ...
    def find_slots(
        self,
        slots: npt.NDArray[np.int32],
        token_ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        found: npt.NDArray[np.int32],
    ) -> None: ...
    def replay(
        self,
        prompt: npt.NDArray[np.int32] | Sequence[int],
        output: npt.NDArray[np.int32] | Sequence[int],
        max_tokens: int = 0,
        slot: int = 0,
    ) -> Replay: ...
