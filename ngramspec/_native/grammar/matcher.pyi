from collections.abc import Sequence
from typing import final

from typing_extensions import Self

from ngramspec._native.grammar.constraint import Constraint
from ngramspec._native.grammar.rules import Rules

@final
class Tokens:
    def __new__(cls, texts: Sequence[bytes], ends: Sequence[bool] | bytes) -> Self: ...
    def __len__(self) -> int: ...

@final
class Matcher(Constraint):
    def __new__(cls, rules: Rules, tokens: Tokens) -> Self: ...
    @property
    def rules(self) -> Rules: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def nbytes(self) -> int: ...
