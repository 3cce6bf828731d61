"""Patterns as in .gitignore files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence

from pathspec import GitIgnoreSpec

from ngramspec.errors import InputError

GITIGNORE = ".gitignore"


class Patterns:
    """Patterns as in a .gitignore; paths are relative to its folder.

    All of git's syntax works, except classes such as [[:alpha:]].

    Args:
        lines: One pattern each, without comments.

    Raises:
        InputError: A pattern is empty, matches nothing or cannot be read.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        for line in self.lines:
            if not _parsed([line]):
                raise InputError(f"not a pattern as in a .gitignore: {line!r}")
        self._spec = GitIgnoreSpec.from_lines(self.lines)
        self._latest_first = [
            (pattern.regex, pattern.include)
            for pattern in reversed(list(self._spec.patterns))
            if pattern.regex is not None
        ]

    def decide(self, path: str) -> bool | None:
        """Return the decision of the last pattern that matches a file or folder itself.

        Args:
            path: With slashes; that of a folder ends with one.

        Returns:
            bool or None: True to leave it out, False for a pattern that begins with "!", None if no
            pattern matches. As in git, do not ask about the contents of a folder that is left out.
        """
        for regex, left_out in self._latest_first:
            if _matches_itself(regex, path):
                return left_out
        return None

    def select(self, path: str) -> bool:
        """Return whether the patterns match a file or one of its parent folders."""
        return bool(self._spec.match_file(path))


def read_gitignore(path: str | os.PathLike[str]) -> Patterns:
    """Return the patterns of a .gitignore; invalid lines match nothing.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        return Patterns(line for line in file.read().splitlines() if _parsed([line]))


def _parsed(lines: Sequence[str]) -> bool:
    """Return whether lines hold a valid pattern."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of `re`, for [[:alpha:]]
            spec = GitIgnoreSpec.from_lines(lines)
    except (ValueError, re.error):
        return False
    return any(pattern.include is not None for pattern in spec.patterns)


def _matches_itself(regex: re.Pattern[str], path: str) -> bool:
    """Return whether a pattern matches a path, not only one of its parent folders.

    pathspec matches whole paths, and marks the slash after a matched folder as `ps_d`.
    """
    for match in regex.finditer(path):
        if match.groupdict().get("ps_d") is None or match.end("ps_d") == len(path):
            return True
    return False
