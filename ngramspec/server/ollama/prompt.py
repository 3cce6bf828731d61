"""The prompts of Ollama's routes: its templates, system messages, suffixes and contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.errors import FormatError
from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.prompt import LEVELS, chat_text, parsed_template
from ngramspec.server.errors import bad_request, too_long
from ngramspec.server.model import ServedModel
from ngramspec.server.ollama.bodies import GenerateBody, OllamaBody, OllamaChatBody
from ngramspec.server.request.prompts import (
    check_ids,
    check_text,
    fill_prompt,
    least_tokens,
    missing_tokens,
)
from ngramspec.text.chat.calls import call_format_of
from ngramspec.text.chat.format import PLAIN_ANSWER, ChatFormat, chat_format
from ngramspec.text.chat.reasoning import REASONING_FORMATS
from ngramspec.text.chat.tools import Tools, tools_of
from ngramspec.text.limits import RenderLimits

PLAIN = "{{ .Prompt }}"  # what Ollama uses if a model has no template at all
ROLES = ("system", "user", "assistant", "tool")
NO_TOOLS = Tools()
MAX_TEMPLATE = 1 << 16  # characters of a request's own template; about 50 us per action in it


@dataclass(frozen=True)
class OllamaPrompt:
    """The tokens that the model is to continue.

    format: How its answer is written.
    """

    ids: TokenIds
    format: ChatFormat = PLAIN_ANSWER


def ollama_view(served: ServedModel, template: str | None = None) -> ServedModel:
    """Return the served model as Ollama's routes see it: its Go template takes precedence.

    template: Use this one instead of all others.
    """
    recipe = served.recipe
    if template is not None:
        recipe = replace(recipe, template=template, template_first=True)
        return replace(served, template=None, recipe=recipe)
    go_template = recipe.template or (None if served.chat_template else PLAIN)
    return replace(served, recipe=replace(recipe, template=go_template, template_first=True))


def capabilities(served: ServedModel) -> list[str]:
    view = ollama_view(served)
    if view.go_template is None:
        names = {"tools"} if served.chat_capabilities.get("supports_tools") else set()
        names |= {"thinking"} if _reasons(view.chat_template) else set()
    else:
        names = set(parsed_template(view.go_template).capabilities)
    names |= {"tools", "thinking"} & set(served.recipe.capabilities)
    if not missing_tokens(served):
        names.add("insert")
    return ["completion", *(name for name in ("tools", "insert", "thinking") if name in names)]


def chat_prompt(body: OllamaChatBody, served: ServedModel) -> OllamaPrompt:
    """Return the prompt of a chat; if it is too long, the oldest messages are dropped.

    Raises:
        ApiError, InputError: The prompt cannot be made.
    """
    view = ollama_view(served)
    messages = [_message(message, i) for i, message in enumerate(body.messages or [])]
    tools = tools_of(body.tools)
    think = _think(body, view)
    text, ids = _fitting(messages, body, view, tools, think)
    template = view.template_for(bool(tools))
    format = chat_format(
        template, text, tools, _parses(think, template), follows_schema=bool(body.format)
    )
    return OllamaPrompt(ids, format)


def generate_prompt(body: GenerateBody, incoming: Incoming) -> OllamaPrompt:
    """Return the prompt of POST /api/generate.

    Raises:
        ApiError, InputError: The prompt cannot be made.
    """
    if body.images:
        raise bad_request("this server takes text only, no images", "images")
    if body.raw:
        if body.template or body.system or body.context:
            raise bad_request("raw mode does not support template, system, or context", "raw")
        check_text(body.prompt, incoming, "prompt")
        return OllamaPrompt(incoming.served.model.tokenize_prompt(body.prompt))
    if len(body.template or "") > MAX_TEMPLATE:
        raise bad_request(f"template must have at most {MAX_TEMPLATE} characters", "template")
    view = ollama_view(incoming.served, body.template or None)
    if body.suffix:
        return _insert(body, view, incoming)
    if body.system is not None:
        view = replace(view, system=body.system)
    if body.context is not None:
        view = replace(view, recipe=replace(view.recipe, messages=()))
    think = _think(body, view)
    messages = [{"role": "user", "content": body.prompt}]
    text = _text(messages, view, NO_TOOLS, think)
    format = chat_format(
        view.chat_template, text, parses_reasoning=_parses(think, view.chat_template)
    )
    return OllamaPrompt(_ids(text, body, incoming), format)


def _insert(body: GenerateBody, view: ServedModel, incoming: Incoming) -> OllamaPrompt:
    """Return the prompt for the text between prompt and suffix."""
    template = None if view.go_template is None else parsed_template(view.go_template)
    if template is not None and "insert" in template.capabilities:
        limits = RenderLimits.for_data(body.prompt, body.suffix)
        try:
            text = template.render(prompt=body.prompt, suffix=body.suffix, limits=limits)
        except FormatError as error:
            raise bad_request(str(error), "template") from error
        return OllamaPrompt(_ids(text, body, incoming))
    if missing_tokens(view):
        raise bad_request(f'"{body.model}" does not support insert', "suffix")
    check_text(body.prompt + body.suffix, incoming, "prompt")
    return OllamaPrompt(fill_prompt(view, body.prompt, body.suffix))


def _ids(text: str, body: GenerateBody, incoming: Incoming) -> TokenIds:
    """Return the tokens of a text, after those of the body's context if it has one."""
    check_text(text, incoming, "prompt")
    model = incoming.served.model
    if not body.context:
        return model.tokenize_prompt(text)
    check_ids(body.context, model.vocab_size, "context")
    more = model.tokenize(text, add_special=False, parse_special=True)
    return np.concatenate([np.array(body.context, dtype=np.int32), more])


def _fitting(
    messages: list[dict[str, Any]],
    body: OllamaChatBody,
    view: ServedModel,
    tools: Tools,
    think: Mapping[str, Any],
) -> tuple[str, TokenIds]:
    """Return the longest end of a chat that fits, with the system messages before it.

    A shortened chat leaves room for an answer: a quarter of the context, or num_predict tokens up
    to half of it.

    Raises:
        ApiError: It is too long to tokenize it, and may not or cannot be made shorter.
    """
    size, last = view.engine.context_size, len(messages) - 1

    def written(first: int) -> tuple[str, TokenIds | None, int]:
        """Return a text, its tokens, None if they are certainly too many, and their number."""
        remaining = [one for one in messages[:first] if one["role"] == "system"] + messages[first:]
        text = _text(remaining, view, tools, think)
        if (least := least_tokens(text, view, size)) >= size:
            return text, None, least
        ids = view.model.tokenize_prompt(text)
        return text, ids, int(ids.size)

    def whole(first: int) -> tuple[str, TokenIds]:
        text, ids, count = written(first)
        if ids is None:
            raise too_long(count, size, "messages", at_least=True)
        return text, ids

    if body.truncate is False or not last:
        return whole(0)
    text, ids, count = written(0)
    if ids is not None and count < size:
        return text, ids
    if written(last)[2] >= size:  # what is always kept is too long
        return whole(last)
    limit = body.parameters.get("num_predict")
    asked = int(limit) if isinstance(limit, int | float) and limit > 0 else size // 4
    room = size - min(asked, size // 2)
    low, high = 1, last  # the last message stays whatever its size
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if written(middle)[2] < room else (middle + 1, high)
    return whole(low)


def _text(
    messages: list[dict[str, Any]], view: ServedModel, tools: Tools, think: Mapping[str, Any]
) -> str:
    return chat_text(Conversation(messages=messages, **think), view, tools)


def _think(body: OllamaBody, view: ServedModel) -> dict[str, Any]:
    """Return the members of an OpenAI body that control thinking; by default able models think.

    A model whose template does not mention thinking may still think, but is not told to.
    """
    able = "thinking" in capabilities(view)
    level = able if body.think is None else body.think
    if level == "max":  # Ollama's newest level; no template here knows more than high
        level = "high"
    if isinstance(level, str) and level not in LEVELS:
        raise bad_request(f"think must be true, false, {', '.join(LEVELS)}, got {level!r}")
    if body.think is None and not able:
        return {}
    members: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": bool(level)}}
    return {**members, "reasoning_effort": level} if isinstance(level, str) else members


def _reasons(template: str) -> bool:
    has_marks = any(format.fits(template) for format in REASONING_FORMATS)
    return has_marks or "enable_thinking" in template or call_format_of(template).reasons


def _parses(think: Mapping[str, Any], template: str) -> bool:
    """Return whether reasoning is told apart; where headers tell it, always, as in Ollama."""
    if call_format_of(template).reasons:
        return True
    return bool(think) and bool(think["chat_template_kwargs"]["enable_thinking"])


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    if message.get("images"):
        raise bad_request("this server takes text only, no images", f"messages[{index}].images")
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(f"messages[{index}].role must be one of {', '.join(ROLES)}", "messages")
    chat_message: dict[str, Any] = {"role": role, "content": message.get("content") or ""}
    for ollama, openai in (("thinking", "reasoning_content"), ("tool_name", "name")):
        if message.get(ollama):
            chat_message[openai] = message[ollama]
    for name in ("tool_calls", "tool_call_id"):
        if message.get(name):
            chat_message[name] = message[name]
    return chat_message
