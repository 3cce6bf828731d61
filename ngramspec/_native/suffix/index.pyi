from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

@final
class SuffixIndex:
    def __new__(
        cls,
        tokens: npt.NDArray[np.int32],
        lines: npt.NDArray[np.uint32],
        position_bits: int,
        vocab_size: int,
        name: str = "",
        fingerprint: bytes | None = None,
        num_texts: int = 0,
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> bytes | None: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_texts(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
