"""Mistral: [TOOL_CALLS] [{...}, {...}], and [TOOL_CALLS]name[ARGS]{...} of newer models."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection

from ngramspec.server.chat.calls.format import CallReader, Mark
from ngramspec.server.chat.calls.json_call import JsonCallFormat, JsonCallReader

MARK = "[TOOL_CALLS]"
NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")


class Mistral(JsonCallFormat):
    """A mark before one call, or before a list of them."""

    marks = (Mark(MARK, special=True),)
    start, end = f"{MARK}[", "]"
    open, middle, close = '{"name": ', ', "arguments": ', "}"
    between = ", "

    def fits(self, template: str) -> bool:
        """Recognise the model by its mark."""
        return MARK in template

    def begin(self, text: str, names: Collection[str]) -> tuple[int, CallReader] | None:
        """Skip the bracket of a list, or a name that stands before the object."""
        start = text.lstrip()
        if start[:1] == "[":
            start = start[1:].lstrip()
        elif (named := NAMED.match(start)) is not None:
            skipped = len(text) - len(start) + named.end()
            return skipped, JsonCallReader(f'{{"name": "{named[1]}", "arguments": ')
        elif start[:1] != "{" and re.fullmatch(r"[\w.\[\]-]*", start):
            return None  # maybe the beginning of a name
        return (len(text) - len(start), JsonCallReader()) if start else None

    def after(self, text: str) -> tuple[int, bool] | None:
        """Continue after a comma, or end with the list."""
        start = text.lstrip()
        if not start:
            return None
        skipped = len(text) - len(start)
        if start[0] in ",;":
            return skipped + 1, True
        return skipped + (start[0] == "]"), False

    def call_id(self) -> str:
        """Return nine characters: Mistral's templates accept no other ids."""
        return uuid.uuid4().hex[:9]
