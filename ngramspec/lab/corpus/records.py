"""The texts of a record: a line of a jsonl file or a row of a parquet file.

Recognised without options, in this order: `text`, `content` or `code`; a conversation in
`messages`, `conversations` or `conversation`; the parts of an instruction record such as `prompt`
and `completion`. Each message and each part is a document of its own, since a chat template puts
other tokens between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

TEXT_FIELDS = ("text", "content", "code")
CHAT_FIELDS = ("messages", "conversations", "conversation")
PART_FIELDS = (
    *("system", "instruction", "input", "prompt", "question"),
    *("completion", "response", "output", "answer"),
)
KNOWN_FIELDS = (*TEXT_FIELDS, *CHAT_FIELDS, *PART_FIELDS)
_ROLE_KEYS = ("role", "from")
_CONTENT_KEYS = ("content", "value", "text")
_ASSISTANTS = ("gpt", "chatgpt", "model", "bot", "ai")
_ROLES = {"human": "user"} | dict.fromkeys(_ASSISTANTS, "assistant")


class RecordError(ValueError):
    """A record has no text; the message says why."""


def texts_of(record: Any, field: str | None, roles: Collection[str]) -> list[str]:
    """Return the texts of a record, empty ones left out.

    Args:
        record: A parsed line or row.
        field: The only field to look at, with dots into nested objects; None = the known ones.
        roles: Messages of a conversation to take; () = all. `human` counts as `user`; `gpt`,
            `chatgpt`, `model`, `bot` and `ai` count as `assistant`, in any case.

    Raises:
        RecordError: There is no such field, or nothing in it is text.
    """
    if field is not None:
        value = _lookup(record, field)
        return _values(value, roles, f"field {field!r}")
    if isinstance(record, str):
        return [record] if record else []
    if isinstance(record, list):
        return _values(record, roles, "the line")
    if not isinstance(record, Mapping):
        raise RecordError(f"expected an object, found {type(record).__name__}")
    for name in TEXT_FIELDS:
        if isinstance(record.get(name), str):
            return [record[name]] if record[name] else []
    for name in CHAT_FIELDS:
        if isinstance(record.get(name), list):
            return _values(record[name], roles, f"field {name!r}")
    parts = [record[name] for name in PART_FIELDS if isinstance(record.get(name), str)]
    if not parts:
        raise RecordError(f"no field with text among {', '.join(map(str, record)) or 'none'}")
    return [part for part in parts if part]


def _lookup(record: Any, field: str) -> Any:
    if isinstance(record, Mapping) and field in record:
        return record[field]
    value = record
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise RecordError(f"no field {field!r}")
        value = value[name]
    return value


def _values(value: Any, roles: Collection[str], what: str) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, list):
        raise RecordError(f"{what} is {type(value).__name__}, not text")
    texts: list[str] = []
    for item in value:
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, Mapping) and any(key in item for key in _CONTENT_KEYS):
            if not roles or role_of(item) in map(str.lower, roles):
                texts += _contents(item)
        else:
            raise RecordError(f"{what} holds neither texts nor messages")
    return [text for text in texts if text]


def role_of(message: Mapping[str, Any]) -> str:
    """Return the role of a message in OpenAI's words, "" if it has none."""
    role = next((message[key] for key in _ROLE_KEYS if isinstance(message.get(key), str)), "")
    return _ROLES.get(role.lower(), role.lower())


def _contents(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a message; images and tool calls have none."""
    content = next((message[key] for key in _CONTENT_KEYS if message.get(key) is not None), None)
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        for part in content:
            if isinstance(part, str):
                yield part
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield part["text"]
