"""Chat templates: conversations to prompts. Jinja in a sandbox, as model files bring templates."""

from __future__ import annotations

import datetime
import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.errors import InputError
from ngramspec.gotemplate import Limits

MAX_TEMPLATES = 8  # compiled templates that are kept
MAX_TEMPLATE_CHARS = 1 << 20
_RESERVED = frozenset(("messages", "tools", "bos_token", "eos_token", "add_generation_prompt"))
# Variables that llama-cpp-python defines, so templates may read them.
_NOTHING = dict.fromkeys(("functions", "function_call", "tool_choice"))


class ChatTemplates:
    """Renders conversations with the model's template or another one. Safe for several threads.

    Args:
        bos, eos: Texts of the begin and end token.
    """

    def __init__(self, bos: str, eos: str) -> None:
        self._bos, self._eos = bos, eos
        self._compiled: OrderedDict[str, Any] = OrderedDict()
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
        given = [dict(message) for message in messages]
        values: dict[str, Any] = {
            **_NOTHING,
            "messages": given,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": bool(add_generation_prompt),
            "bos_token": self._bos,
            "eos_token": self._eos,
            "raise_exception": _refuse,
            "strftime_now": _now,
            **variables,
        }
        limits = Limits.for_data(messages, tools or (), variables)
        with self._sandbox.limited(limits):
            compiled = self._compile(template)
            try:
                return str(compiled.render(values))
            except RecursionError:
                raise InputError("the chat template refuses: nested too deep") from None
            except Exception as error:  # whatever a template may run into
                reason = str(error) or type(error).__name__
                raise InputError(f"the chat template refuses: {reason}") from error

    @functools.cached_property
    def _sandbox(self) -> Any:
        from ngramspec.adapters.llama_cpp.sandbox import Sandbox  # needs jinja2

        return Sandbox()

    def _compile(self, template: str) -> Any:
        with self._lock:
            if template in self._compiled:
                self._compiled.move_to_end(template)
                return self._compiled[template]
        if len(template) > MAX_TEMPLATE_CHARS:
            raise InputError(f"a chat template may have {MAX_TEMPLATE_CHARS} characters at most")
        try:
            made = self._sandbox.from_string(template)
        except Exception as error:
            raise InputError(f"the chat template is not valid: {error}") from error
        with self._lock:
            self._compiled[template] = made
            while len(self._compiled) > MAX_TEMPLATES:
                self._compiled.popitem(last=False)
        return made


def _refuse(message: str) -> None:
    """Raise the error of a template."""
    raise ValueError(message)


def _now(layout: str) -> str:
    """Return the time, for a template."""
    return datetime.datetime.now().strftime(layout)
