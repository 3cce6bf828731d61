"""Glob patterns with `**`, matched against the relative path and the base name of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ngramspec.errors import InputError


class Globs:
    """A set of patterns.

    `*` and `?` do not match a slash, `**` does; `[abc]`, `[a-z]` and `[!abc]` are one character. A
    pattern without a slash may match the base name of a file in any folder.

    Raises:
        InputError: A pattern is empty or has a range such as [z-a].
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = [pattern.strip("/") for pattern in patterns]
        if "" in patterns:
            raise InputError("a glob must not be empty")
        joined = "|".join(_translate(pattern) for pattern in patterns)
        try:
            self._regex = re.compile(joined) if joined else None
        except re.error as error:
            raise InputError(f"not a glob: {' '.join(patterns)}: {error}") from None

    def __bool__(self) -> bool:
        return self._regex is not None

    def match(self, relative: str) -> bool:
        """Tell whether a pattern matches a path with slashes, or its last part."""
        if self._regex is None:
            return False
        name = relative.rpartition("/")[2]
        return bool(self._regex.fullmatch(relative) or self._regex.fullmatch(name))


_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.S)
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _translate(pattern: str) -> str:
    return "(?s:" + "".join(_regex_of(token) for token in _TOKEN.findall(pattern)) + ")"


def _regex_of(token: str) -> str:
    if token in _MEANING:
        return _MEANING[token]
    if token.startswith("[") and len(token) > 1:
        negated = token[1] == "!"
        inside = token[2 if negated else 1 : -1]
        inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside)
        return f"(?!/)[{'^' if negated else ''}{inside}]"
    return re.escape(token)
