import numpy as np
import numpy.typing as npt

from ngramspec._slots import Slots

class Trees(Slots):
    def propose_tree(
        self, slot: int, max_tokens: int, max_width: int = 8
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...
