"""Llama 3: {"name": ..., "parameters": {...}} alone, or after <|python_tag|>."""

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
        """Recognise the model by its name for arguments, "parameters"."""
        return '"parameters"' in template and "<tool_call>" not in template

    def begin(self, text: str, names: Collection[str]) -> tuple[int, CallReader] | None:
        """Read the object; it needs no mark, so it is a call only if its name is known."""
        return 0, JsonCallReader(names=names)

    def after(self, text: str) -> tuple[int, bool] | None:
        """Continue after a separator, or with another object."""
        start = text.lstrip()
        if not start:
            return None
        skipped = len(text) - len(start)
        if start[0] in ",;":
            return skipped + 1, True
        return skipped, start[0] == "{"
