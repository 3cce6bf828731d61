"""Templates that llama.cpp has by name, such as llama3 or mistral-v7: no Jinja, roles and texts."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.errors import InputError
from ngramspec.text.templates.capabilities import Capabilities
from ngramspec.text.templates.messages import text_of
from ngramspec.text.tokenizers.llama_library import Library

ONLY_TEXTS = Capabilities(
    supports_tools=False, supports_tool_calls=False, supports_parallel_tool_calls=False
)


def builtin_names(library: Library) -> tuple[str, ...]:
    count = int(library.lib.llama_chat_builtin_templates(None, 0))
    names = (ctypes.c_char_p * count)()
    library.lib.llama_chat_builtin_templates(names, count)
    return tuple((name or b"").decode() for name in names)


class BuiltinTemplate:
    """One of llama.cpp's own templates. Safe for several threads."""

    can = ONLY_TEXTS

    def __init__(self, library: Library, name: str) -> None:
        self._lib, self._name = library.lib, name.encode()

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        continued: bool | str,
    ) -> str:
        """Return a prompt; tools and variables are not written, nor is reasoning.

        Raises:
            InputError: There are no messages, or llama.cpp cannot write them.
        """
        if not continued:
            return self._written(messages, add_generation_prompt)
        *before, last = messages
        return self._written(before, True) + text_of(last.get("content"))

    def _written(self, messages: Sequence[Mapping[str, Any]], starts: bool) -> str:
        if not messages:
            raise InputError("the chat template needs a message")
        pairs = [(_bytes(each.get("role")), _bytes(each.get("content"))) for each in messages]
        chat = (self._lib.llama_chat_message * len(pairs))(*pairs)
        size = 1024 + 2 * sum(len(role) + len(content) for role, content in pairs)
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = int(
                self._lib.llama_chat_apply_template(
                    self._name, chat, len(pairs), starts, buffer, size
                )
            )
            if length < 0:
                raise InputError("llama.cpp cannot write these messages in its chat template")
            if length <= size:
                return buffer.raw[:length].decode("utf-8", "replace")
            size = length


def _bytes(value: Any) -> bytes:
    """Return a text for C, which cannot hold zero bytes."""
    return text_of(value).encode("utf-8", "replace").replace(b"\0", b"")
