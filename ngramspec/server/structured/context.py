"""Context: what the parts of one schema share: the grammar, and whether all must be enforced."""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec.server.errors import ApiError, bad_request
from ngramspec.server.structured.gbnf import Rules


@dataclass(frozen=True)
class Context:
    """Where a schema's rules go.

    rules: The grammar.
    strict: Refuse what the grammar cannot enforce, instead of leaving it out.
    """

    rules: Rules
    strict: bool = False

    def cannot(self, keyword: str, reason: str = "cannot be enforced") -> None:
        """Leave a keyword out.

        Raises:
            ApiError: The request is strict.
        """
        if self.strict:
            raise bad_request(f"{keyword} {reason}; leave it out, or ask without strict")


class NothingError(ApiError):
    """No value fits a schema. An alternative like this is left out."""

    def __init__(self, reason: str) -> None:
        super().__init__(400, reason)
