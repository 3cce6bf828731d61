"""Chat templates: conversations to prompts, by Jinja in a sandbox, as files bring their own."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.errors import InputError

MAX_TEMPLATES = 8  # compiled ones that are kept
MAX_TEMPLATE_CHARS = 1 << 20
_RESERVED = frozenset(("messages", "tools", "bos_token", "eos_token", "add_generation_prompt"))


class ChatTemplates:
    """Renders conversations with the model's template or another one. Safe for several threads.

    Args:
        bos, eos: Texts of the begin and end token.
    """

    def __init__(self, bos: str, eos: str) -> None:
        self._bos, self._eos = bos, eos
        self._compiled: OrderedDict[tuple[str, bool], Any] = OrderedDict()
        self._lock = threading.Lock()

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the prompt.

        Raises:
            InputError: The template is not Jinja, or it refuses the conversation.
        """
        if taken := _RESERVED & set(variables):
            raise InputError(f"template variables must not be {', '.join(sorted(taken))}")
        if not all(isinstance(message, Mapping) for message in messages):
            raise InputError("messages must be objects with a role and a content")
        formatter = self._compile(template, add_generation_prompt)
        given = [dict(message) for message in messages]
        try:
            made = formatter(messages=given, tools=list(tools) if tools else None, **variables)
        except Exception as error:  # whatever a template may run into
            reason = str(error) or type(error).__name__
            raise InputError(f"the chat template refuses: {reason}") from error
        return str(made.prompt)

    def _compile(self, template: str, add_generation_prompt: bool) -> Any:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        key = template, bool(add_generation_prompt)
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        if len(template) > MAX_TEMPLATE_CHARS:
            raise InputError(f"a chat template may have {MAX_TEMPLATE_CHARS} characters at most")
        try:
            made = Jinja2ChatFormatter(
                template, eos_token=self._eos, bos_token=self._bos, add_generation_prompt=key[1]
            )
        except Exception as error:
            raise InputError(f"the chat template is not valid: {error}") from error
        with self._lock:
            self._compiled[key] = made
            while len(self._compiled) > MAX_TEMPLATES:
                self._compiled.popitem(last=False)
        return made
