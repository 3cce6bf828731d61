from collections.abc import Mapping
from typing import Any, final

from typing_extensions import Self

from ngramspec._native.grammar.constraint import Constraint
from ngramspec._native.grammar.matcher import Tokens

NAMES: tuple[str, ...]

@final
class GuidanceTokens:
    def __new__(
        cls,
        tokens: Tokens,
        library: Any,
        addresses: Mapping[str, int | None],
        tokenize: int = 0,
        vocab: int = 0,
    ) -> Self: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def library(self) -> Any: ...
    def close(self) -> None: ...

@final
class GuidanceMatcher(Constraint):
    def __new__(cls, tokens: GuidanceTokens, lark: str, limits: Mapping[str, int]) -> Self: ...
    @property
    def tokens(self) -> GuidanceTokens: ...
    def copy(self) -> Self: ...
