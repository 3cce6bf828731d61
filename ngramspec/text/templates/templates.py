"""Chat templates: conversations to prompts, as llama-server writes them.

Templates are Jinja and come with model files, so they run in a sandbox.
"""

from __future__ import annotations

import datetime
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.errors import InputError
from ngramspec.text.limits import RenderLimits
from ngramspec.text.templates.variables import variables_of

if TYPE_CHECKING:
    from ngramspec.text.templates.builtin import BuiltinTemplate
    from ngramspec.text.templates.capabilities import Capabilities
    from ngramspec.text.templates.families import Family
    from ngramspec.text.templates.reasoning import ThinkTags
    from ngramspec.text.tokenizers.llama_library import Library

MAX_TEMPLATES = 8  # compiled templates that are kept
MAX_TEMPLATE_CHARS = 1 << 20
TRIMS = "You have access to the following functions in JSONSchema format"  # StepFun
_RESERVED = frozenset(("messages", "tools", "bos_token", "eos_token", "add_generation_prompt"))
# Conditions that some templates end with an error where llama-server goes on.
_DROPPED = (
    '{%- if "<|channel|>analysis<|message|>" in message.content or '
    '"<|channel|>final<|message|>" in message.content %}',
    "{%- if (message['content'] is none or message['content'] == '' or "
    "message['content']|length == 0) and (message['tool_calls'] is not defined or "
    "message['tool_calls'] is none or message['tool_calls']|length == 0) %}",
)


class ChatTemplates:
    """Renders conversations with the model's template or another one. Safe for several threads.

    Args:
        bos, eos: Texts of the begin and end token.
        adds_eos: The tokenizer adds it, so prompts go without. The begin token stays: whoever
            tokenizes a prompt sees to it that there is one.
        library: llama.cpp, for the templates that it has by name.
    """

    def __init__(
        self, bos: str, eos: str, *, adds_eos: bool = False, library: Library | None = None
    ) -> None:
        self._bos, self._eos, self._library = bos, eos, library
        self._adds_eos = adds_eos
        self._compiled: OrderedDict[str, _Template | BuiltinTemplate] = OrderedDict()
        self._lock = threading.Lock()

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        continued: bool | str = False,
    ) -> str:
        """Return the prompt.

        Args:
            template: In Jinja, or the name of one of llama.cpp's own.
            continued: The last message is an answer to be continued: "content" or
                "reasoning_content" says which part of it, True leaves that to the message.

        Raises:
            InputError: The template is not Jinja, or it refuses the conversation.
        """
        if taken := _RESERVED & set(variables):
            raise InputError(f"template variables must not be {', '.join(sorted(taken))}")
        if not all(isinstance(message, Mapping) for message in messages):
            raise InputError("messages must be objects with a role and a content")
        compiled = self._template(template)
        return compiled.prompt(
            messages, list(tools or ()), add_generation_prompt, variables, continued
        )

    def capabilities(self, template: str) -> Capabilities:
        """Return what a template can do.

        Raises:
            InputError: It is not Jinja.
        """
        return self._template(template).can

    @functools.cached_property
    def _sandbox(self) -> Any:
        from ngramspec.text.templates.sandbox import Sandbox  # needs jinja2

        return Sandbox()

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        from ngramspec.text.templates.builtin import builtin_names

        return builtin_names(self._library) if self._library else ()

    def _template(self, text: str) -> _Template | BuiltinTemplate:
        with self._lock:
            if text in self._compiled:
                self._compiled.move_to_end(text)
                return self._compiled[text]
        if len(text) > MAX_TEMPLATE_CHARS:
            raise InputError(f"a chat template may have {MAX_TEMPLATE_CHARS} characters at most")
        template: _Template | BuiltinTemplate
        if self._library and "{" not in text and text in self._names:
            from ngramspec.text.templates.builtin import BuiltinTemplate

            template = BuiltinTemplate(self._library, text)
        else:
            template = _Template(self._sandbox, text, self._without_added, self._bos, self._eos)
        with self._lock:
            self._compiled[text] = template
            while len(self._compiled) > MAX_TEMPLATES:
                self._compiled.popitem(last=False)
        return template

    def _without_added(self, prompt: str) -> str:
        """Return a prompt without the end token that the tokenizer adds."""
        return prompt.removesuffix(self._eos) if self._adds_eos and self._eos else prompt


class _Template:
    """A compiled template and what is known of it."""

    def __init__(
        self, sandbox: Any, text: str, finish: Callable[[str], str], bos: str, eos: str
    ) -> None:
        for condition in _DROPPED:
            text = text.replace(condition, "{%- if false %}")
        self.text, self._sandbox, self._finish = text, sandbox, finish
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._compiled = sandbox.from_string(text)
        except Exception as error:
            where = f"in line {error.lineno}: " if hasattr(error, "lineno") else ""
            raise InputError(f"the chat template is not valid: {where}{error}") from error

    @functools.cached_property
    def can(self) -> Capabilities:
        from ngramspec.text.templates.capabilities import capabilities_of

        return capabilities_of(self.text)

    @functools.cached_property
    def family(self) -> Family | None:
        from ngramspec.text.templates.families import family_of

        return family_of(self.text)

    @functools.cached_property
    def tags(self) -> ThinkTags:
        from ngramspec.text.templates.reasoning import think_tags

        return think_tags(self.text, self.can, self._example)

    @property
    def thinks(self) -> bool:
        """Return whether the template can switch reasoning on."""
        if "enable_thinking" not in self.text:
            return True  # nobody reads it
        return self.family.thinks if self.family else bool(self.tags)

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[Any],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        continued: bool | str,
    ) -> str:
        """Return a prompt; arguments as ChatTemplates.render."""
        from ngramspec.text.templates.families import shaped, trimmed
        from ngramspec.text.templates.messages import messages_for

        last = messages[-1] if continued and messages else None
        before = list(messages if last is None else messages[:-1])
        turns = messages_for(before, self.can, keeps_developer="<|channel|>" in self.text)
        if TRIMS in self.text:
            turns = trimmed(turns)
        turns = shaped(self.family, turns)
        every = variables_of(variables, self.thinks)
        starts = add_generation_prompt and not continued
        prompt = self._rendered(turns, tools, starts, every)
        if last is not None:
            return prompt + self._begun(prompt, last, continued, turns, tools, every)
        if self.family:
            return self.family.finished(prompt, starts)
        return prompt

    def _begun(
        self,
        prompt: str,
        message: Mapping[str, Any],
        continued: bool | str,
        messages: list[Any],
        tools: list[Any],
        variables: Mapping[str, Any],
    ) -> str:
        """Return the text of an answer that is continued, with what comes before it."""
        from ngramspec.text.templates.families import GENERATION, Begun, opening
        from ngramspec.text.templates.messages import text_of

        if not any(message.get(name) for name in _PARTS):
            return ""
        content: str | None = text_of(message.get("content"), "\n\n")
        thought = message.get("reasoning_content") or ""
        only_thought = continued is True and thought and not message.get("content")
        if continued == "reasoning_content" or only_thought:
            content = content if self.family and self.family.begun.always else None
        generation = ""
        if self.family is None or GENERATION in self.family.begun.start:
            started = self._rendered(messages, tools, True, variables)
            shared = prompt if started.startswith(prompt) else _shared(prompt, started)
            generation = started.removeprefix(shared)
        if self.family:
            return opening(self.family, prompt, generation, thought, content)
        if not self.tags.open:
            return f"{generation}{content or ''}"
        start = generation.partition(self.tags.open)[0]
        return Begun(start, self.tags.open, self.tags.close).text(thought, content)

    def _rendered(
        self, messages: list[Any], tools: list[Any], starts: bool, variables: Mapping[str, Any]
    ) -> str:
        """Return what the template writes, within the limits for what it is given."""
        values: dict[str, Any] = {
            "messages": messages,
            **({"tools": tools} if tools else {}),
            **({"add_generation_prompt": True} if starts else {}),
            **self._tokens,
            "raise_exception": _refuse,
            "strftime_now": _now,
            **variables,
        }
        with self._sandbox.limited(RenderLimits.for_data(messages, tools, variables)):
            try:
                return self._finish(str(self._compiled.render(values)))
            except RecursionError:
                raise InputError("the chat template refuses: nested too deep") from None
            except Exception as error:  # whatever a template may run into
                reason = str(error) or type(error).__name__
                raise InputError(f"the chat template refuses: {reason}") from error

    def _example(
        self, messages: list[Any], tools: list[Any], starts: bool, thinks: bool
    ) -> str | None:
        from ngramspec.text.templates.messages import copied, with_contents

        turns = [with_contents(message, self.can) for message in messages]
        try:
            return self._rendered(turns, copied(tools), starts, {"enable_thinking": thinks})
        except InputError:
            return None


_PARTS = ("content", "reasoning_content", "tool_calls", "name", "tool_call_id")


def _shared(left: str, right: str) -> str:
    pairs = enumerate(zip(left, right, strict=False))
    return left[: next((n for n, (one, other) in pairs if one != other), len(right))]


def _refuse(message: Any) -> None:
    raise ValueError(message if isinstance(message, str) else "it does not say why")


def _now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)
