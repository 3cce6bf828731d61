"""RecordedRequest: a prompt and what was answered, as token ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True)
class RecordedRequest:
    """One recorded request.

    key: a digest of the key that sent it, where there were several; or "".
    apart: whether what is learned from one key is not used for another.
    """

    prompt: TokenIds
    output: TokenIds
    key: str = ""
    apart: bool = False
