"""GrammarError: of what no grammar is made."""

from __future__ import annotations

from ngramspec.errors import InputError


class GrammarError(InputError):
    """A schema, pattern or grammar is not valid, cannot be expressed, or becomes too large.

    Args:
        message: One line for people.
        field: What held it, such as "json_schema"; None = not known here.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
