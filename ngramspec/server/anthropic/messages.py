"""From Anthropic's system texts and messages of blocks to the messages of a chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ngramspec.server.chat.turns import Turns
from ngramspec.server.errors import bad_request, not_supported

ROLES = ("user", "assistant", "system")
# Claude Code begins its system texts with this line. It changes with every request, so all after
# it would have to be read anew each time.
BILLING = re.compile(r"x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\n]*;)*\s*")
# Blocks that have no text for the model: references to other tools, thinking that only Anthropic
# can read, and what tools of Anthropic's own servers were asked.
WITHOUT_TEXT = frozenset(("tool_reference", "redacted_thinking", "server_tool_use"))


def messages_of(
    messages: Sequence[Mapping[str, Any]],
    system: str | Sequence[Mapping[str, Any]] | None,
    late_system: bool,
) -> list[dict[str, Any]]:
    """Return the messages of a chat.

    Args:
        messages: Messages whose contents are texts or lists of blocks.
        system: A text or a list of texts that comes first.
        late_system: As Turns takes it.

    Raises:
        ApiError: There are no messages, one is not valid, or it holds more than text.
    """
    if not messages:
        raise bad_request("messages must not be empty", "messages")
    turns = Turns(late_system)
    for text in _texts(system or "", "system"):
        billed = BILLING.match(text)
        text = text[billed.end() :] if billed else text
        if text:
            turns.say("system", text)
    for index, message in enumerate(messages):
        _add(turns, message, f"messages[{index}]")
    return turns.messages("messages")


def _add(turns: Turns, message: Mapping[str, Any], field: str) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise bad_request(
            f"{field}.role must be one of {', '.join(ROLES)}, got {role!r:.80}", field
        )
    field = f"{field}.content"
    if role != "assistant":
        _add_given(turns, role, content, field)
        return
    for block, place in _blocks(content, field):
        kind = block.get("type")
        if kind == "thinking":
            turns.reason(_member(block, "thinking", str, place))
        elif kind == "tool_use":
            arguments = _member(block, "input", dict, place)
            name = _member(block, "name", str, place)
            turns.call(_member(block, "id", str, place), name, arguments)
        else:
            text = _text(block, place)
            if text is not None:
                turns.answer(text)


def _add_given(turns: Turns, role: str, content: Any, field: str) -> None:
    """Add what was said by a user or the system, results of tools included, in its order."""
    texts: list[str] = []
    has_result = False
    for block, place in _blocks(content, field):
        if block.get("type") == "tool_result":
            if texts:
                turns.say(role, "\n".join(texts))
            texts, has_result = [], True
            inner = "\n".join(_texts(block.get("content") or "", f"{place}.content"))
            turns.result(_member(block, "tool_use_id", str, place), inner)
        else:
            text = _text(block, place)
            if text is not None:
                texts.append(text)
    if texts or not has_result:
        turns.say(role, "\n".join(texts))


def _blocks(content: Any, field: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield (block, its place) of a content; a text is one block."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, field
        return
    if not isinstance(content, list):
        raise bad_request(f"{field} must be a text or a list of blocks", field)
    for index, block in enumerate(content):
        place = f"{field}[{index}]"
        if not isinstance(block, dict):
            raise bad_request(f"{place} must be an object", place)
        yield block, place


def _texts(content: Any, field: str) -> list[str]:
    texts = (_text(block, place) for block, place in _blocks(content, field))
    return [text for text in texts if text]


def _text(block: Mapping[str, Any], place: str) -> str | None:
    """Return the text of a block, None for a block without any."""
    kind = block.get("type")
    if kind == "text":
        return str(_member(block, "text", str, place))
    if isinstance(kind, str) and (kind in WITHOUT_TEXT or kind.endswith("_tool_result")):
        return None
    source = block.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        title = block.get("title")
        text = _member(source, "data", str, f"{place}.source")
        return f"{title}\n{text}" if isinstance(title, str) else str(text)
    if kind == "search_result":
        inner = _blocks(block.get("content"), f"{place}.content")
        return "\n".join(str(_member(one, "text", str, where)) for one, where in inner)
    what = "image input" if kind == "image" else f"a block of type {kind!r:.80}"
    raise not_supported(f"{place}: {what} is not supported: this server takes text only", place)


def _member(block: Mapping[str, Any], name: str, kind: type, place: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        word = "a text" if kind is str else "an object"
        raise bad_request(f"{place}.{name} must be {word}", f"{place}.{name}")
    return value
