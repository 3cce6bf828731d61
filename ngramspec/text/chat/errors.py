"""ChatError: of messages and tools that are not valid."""

from __future__ import annotations

from ngramspec.errors import InputError


class ChatError(InputError):
    """A message, a tool or the choice of one does not have OpenAI's shape, or cannot be used.

    Args:
        message: One line for people.
        field: Its place, such as "tools[0]".
        supported: False where it has the shape, but nothing here can use it.
    """

    def __init__(self, message: str, field: str, supported: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.supported = supported
