"""The exceptions of ngramspec; imports nothing of it."""

from __future__ import annotations


class NgramspecError(Exception):
    """Base of every error that ngramspec raises on purpose."""


class InputError(NgramspecError, ValueError):
    """An argument has the wrong value, shape or dtype; the message shows expected and given."""


class StateError(NgramspecError, RuntimeError):
    """A call came at the wrong time, such as propose before begin."""


class CapacityError(NgramspecError, RuntimeError):
    """A limit that the caller set was reached."""


class QuotaError(CapacityError):
    """A client has used up its share; requests of other clients are still accepted."""


class FormatError(NgramspecError, ValueError):
    """A file is of another format, truncated or damaged; the message names the file."""


class FormatVersionError(FormatError):
    """A file is ours, but of a version that this release cannot read."""


class VocabMismatchError(NgramspecError, ValueError):
    """Statistics were built with another tokenizer than the target's."""


class BackendError(NgramspecError, RuntimeError):
    """The target model or its library failed or lacks a needed feature."""


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


class ChatError(InputError):
    """A message, a tool or the choice of one does not have OpenAI's shape, or cannot be used.

    Args:
        message: One line for people.
        field: Its place, such as "tools[0]"; "" only while it is unpickled.
        supported: False where it has the shape, but nothing here can use it.
    """

    def __init__(self, message: str, field: str = "", supported: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.supported = supported
