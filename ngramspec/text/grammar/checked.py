"""What is checked of every grammar before it is read."""

from __future__ import annotations

from ngramspec.errors import InputError
from ngramspec.text.structured.guidance import MAX_CHARS


def check_text(text: str) -> None:
    """Check the text of a grammar.

    Raises:
        InputError: It is too large, holds a NUL character or is not valid Unicode.
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the grammar has {len(text)} characters, the most is {MAX_CHARS}")
    if "\0" in text:
        raise InputError("the grammar holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("the grammar is not valid Unicode") from None
