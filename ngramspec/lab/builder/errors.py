"""UnfitCorpusError: of what no statistics file is made, however often it is tried."""

from __future__ import annotations

from ngramspec.errors import InputError


class UnfitCorpusError(InputError):
    """The corpus cannot become such a file: nothing is kept to go on with."""
