"""The exceptions of ngramspec: one small tree, importing nothing."""

from __future__ import annotations


class NgramspecError(Exception):
    """Base of every error that ngramspec raises on purpose."""


class InputError(NgramspecError, ValueError):
    """An argument has the wrong value, shape or dtype; the message names both sides."""


class StateError(NgramspecError, RuntimeError):
    """A call came at the wrong time, such as propose before begin."""


class CapacityError(NgramspecError, RuntimeError):
    """A limit that the caller set was reached."""


class QuotaError(CapacityError):
    """One of several clients asks for more than its share; others may go on."""


class FormatError(NgramspecError, ValueError):
    """A file is foreign, truncated or damaged; the message names file and offset."""


class FormatVersionError(FormatError):
    """A file is ours, but of a version that this release cannot read."""


class VocabMismatchError(NgramspecError, ValueError):
    """Statistics were built with another tokenizer than the target's."""


class BackendError(NgramspecError, RuntimeError):
    """The target model or its library failed or lacks something that is needed."""
