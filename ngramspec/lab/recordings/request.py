"""RecordedRequest: a prompt and what was answered, as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ngramspec.arrays import TokenIds


@dataclass(frozen=True)
class RecordedRequest:
    """One recorded request.

    key: a digest of the key that sent it, where there were several; or "".
    apart: whether what is learned from one key is not used for another.
    other_lengths: by name of another draft source, for each output position the tokens that a pass
        there would have emitted with that source's draft: int32, >= 1, 1 = nothing accepted.
    """

    prompt: TokenIds
    output: TokenIds
    key: str = ""
    apart: bool = False
    other_lengths: Mapping[str, TokenIds] = field(default_factory=dict)
