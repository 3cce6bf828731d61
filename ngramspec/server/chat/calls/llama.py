"""Llama 3: {"name": ..., "parameters": {...}} and nothing else, or behind <|python_tag|>."""

from __future__ import annotations

from collections.abc import Collection

from ngramspec.server.chat.calls.format import CallReader, Mark
from ngramspec.server.chat.calls.json_call import JsonCallFormat, JsonCallReader


class Llama(JsonCallFormat):
    """A bare object at the start of an answer, which must name a known tool."""

    marks = (Mark("<|python_tag|>", first=True, special=True), Mark("{", first=True, inside=True))
    open, middle, close = '{"name": ', ', "parameters": ', "}"
    between = "; "

    def fits(self, template: str) -> bool:
        """Know the model by its name for arguments."""
        return '"parameters"' in template and "<tool_call>" not in template

    def begin(self, text: str, names: Collection[str]) -> tuple[int, CallReader] | None:
        """Read the object; without marks, only a known name tells that it is a call."""
        return 0, JsonCallReader(names=names)

    def after(self, text: str) -> tuple[int, bool] | None:
        """Go on behind a separator, or with another object."""
        start = text.lstrip()
        if not start:
            return None
        skipped = len(text) - len(start)
        if start[0] in ",;":
            return skipped + 1, True
        return skipped, start[0] == "{"
