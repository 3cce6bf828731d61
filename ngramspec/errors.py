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
