"""Chat logs: OpenAI's messages, ShareGPT's conversations, and prompts with their answers.

Every answer of the assistant in a conversation is a request, with all before it as the prompt. In a
log of requests with their responses, only the response is one.

Prompts are written as ChatML without a begin token. ChatML's two markers are tokens if the
vocabulary has them, otherwise plain text; in a message they are always text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.lab.corpus.records import role_of
from ngramspec.lab.recordings.lines import Bad, BadLineError, Line, RecordedRequest, parse
from ngramspec.text.tokenizers import Tokenizer

CONVERSATIONS = ("messages", "conversations", "conversation")
REQUESTS = ("request", "body", "kwargs")  # members that may hold the messages
ANSWERS = ("response", "output", "completion", "answer", "choices")
PROMPTS = ("prompt", "instruction", "question")
ASSISTANT = "assistant"
START, END = "<|im_start|>", "<|im_end|>"
HEAD_OF_ANSWER = "assistant\n"
Message = tuple[str, str]  # role and content


class ChatMl:
    """ChatML in the token ids of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self._start, self._end = (_marker(tokenizer, text) for text in (START, END))
        self._line_end = tokenizer.encode("\n")
        self.answer_head = np.concatenate([self._start, self._encode(HEAD_OF_ANSWER)])

    def message(self, role: str, content: str) -> TokenIds:
        text = self._encode(f"{role}\n{content}")
        return np.concatenate([self._start, text, self._end, self._line_end])


def _marker(tokenizer: Tokenizer, text: str) -> TokenIds:
    """Return the token whose text this is, or the tokens of the text."""
    size = tokenizer.fingerprint.vocab_size
    # Special tokens are usually the last ones.
    ids = (token for token in reversed(range(size)) if tokenizer.decode([token]) == text)
    special = next(ids, None)
    return tokenizer.encode(text) if special is None else np.array([special], dtype=np.int32)


def looks_like_chat(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, Mapping) and role_of(one) for one in value)
    if not isinstance(value, Mapping):
        return False
    return _conversation(value) is not None or (
        any(isinstance(value.get(name), str) for name in PROMPTS)
        and any(name in value for name in ANSWERS)
    )


def read_chats(
    items: Iterable[tuple[int, Any]], tokenizer: Tokenizer, bad: Bad
) -> Iterator[RecordedRequest]:
    """Yield the requests of conversations.

    Args:
        items: Parsed conversations, each with the number of its line.
        tokenizer: The target's.
        bad: Is told of those without an answer.

    Raises:
        BackendError: The tokenizer refuses a text.
    """
    chat = ChatMl(tokenizer)
    for number, item in items:
        try:
            exchanges = list(_exchanges(item))
            if not exchanges:
                raise BadLineError("no answer of the assistant in it")
        except BadLineError as error:
            bad(number, str(error))
            continue
        parts: list[TokenIds] = []
        for messages, answer in exchanges:
            parts += [chat.message(role, content) for role, content in messages]
            prompt = np.concatenate([*parts, chat.answer_head])
            yield RecordedRequest(prompt, tokenizer.encode(answer))
            parts.append(chat.message(ASSISTANT, answer))


def items_of_lines(lines: Iterable[Line], bad: Bad) -> Iterator[tuple[int, Any]]:
    """Yield the parsed lines with their numbers; what is not JSON goes to `bad`."""
    for line in lines:
        try:
            yield line.number, parse(line)
        except BadLineError as error:
            bad(line.number, str(error))


def items_of_text(text: str, bad: Bad) -> Iterator[tuple[int, Any]]:
    """Yield the items of a JSON array, or the one JSON object that a text is, with line numbers.

    A damaged item ends the reading, as nobody knows where the next one begins.
    """
    decoder, at, line = json.JSONDecoder(), _skip(text, 0, ""), 1
    if text[at : at + 1] == "[":
        at += 1
    done = 0
    while (at := _skip(text, at, ",")) < len(text) and text[at] != "]":
        line += text.count("\n", done, at)
        done = at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            bad(line, f"not JSON, and nothing behind it was read: {error}")
            return
        yield line, value


def _skip(text: str, at: int, also: str) -> int:
    while at < len(text) and (text[at].isspace() or text[at] in also):
        at += 1
    return at


def _exchanges(item: Any) -> Iterator[tuple[list[Message], str]]:
    """Yield the new messages and the answer of each request in a conversation.

    Raises:
        BadLineError: It is none.
    """
    if isinstance(item, list):
        item = {"messages": item}
    if not isinstance(item, Mapping):
        raise BadLineError(f"expected a conversation, found {type(item).__name__}")
    answer = next((text for name in ANSWERS if (text := _answer(item, name))), None)
    if _conversation(item) is None:
        prompts = [item[name] for name in (*PROMPTS, "input") if isinstance(item.get(name), str)]
        if not prompts or answer is None:
            raise BadLineError(f"no conversation in {', '.join(map(str, item)) or 'it'}"[:200])
        yield [("user", "\n\n".join(filter(None, prompts)))], answer
        return
    messages: list[Message] = []
    for role, content in messages_of(item):
        if role == ASSISTANT and messages and content and answer is None:
            yield messages, content
            messages = []
        else:
            messages.append((role, content))
    if answer is not None and messages:
        yield messages, answer


def messages_of(item: Mapping[str, Any]) -> list[Message]:
    """Return the roles and texts of a conversation, none where there is none.

    Raises:
        BadLineError: A message has no role.
    """
    system = item.get("system")
    messages = [("system", system)] if isinstance(system, str) and system else []
    for number, message in enumerate(_conversation(item) or ()):
        if not isinstance(message, Mapping) or not role_of(message):
            raise BadLineError(f"message {number + 1} has no role")
        messages.append((role_of(message), _content(message)))
    return messages


def _conversation(item: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the messages of an item, its own or those of the request in it."""
    for place in (item, *(item[name] for name in REQUESTS if isinstance(item.get(name), Mapping))):
        for name in CONVERSATIONS:
            if isinstance(place.get(name), list):
                messages: list[Any] = place[name]
                return messages
    return None


def _answer(item: Mapping[str, Any], name: str) -> str | None:
    """Return the text of an answer: a text, a message, or an API's response."""
    value = item.get(name)
    if isinstance(value, Mapping):
        if isinstance(value.get("body"), Mapping):
            value = value["body"]
        if isinstance(value.get("choices"), list):
            value = value["choices"]
    if isinstance(value, list):
        value = value[0] if value and isinstance(value[0], Mapping) else None
    if isinstance(value, Mapping):
        message = value.get("message")
        if isinstance(message, Mapping):
            return _content(message) or None
        return _content(value) or None
    return value if isinstance(value, str) and value else None


def _content(message: Mapping[str, Any]) -> str:
    """Return the text of a message: reasoning, content and calls as a model would write them."""
    reasoning = message.get("reasoning_content") or message.get("thinking")
    parts = [f"<think>\n{reasoning}\n</think>\n\n"] if isinstance(reasoning, str) else []
    names = ("content", "value", "text")
    content = next((message[key] for key in names if message.get(key) is not None), None)
    if isinstance(content, str):
        parts.append(content)
    elif isinstance(content, list):
        texts = (one if isinstance(one, str) else _part(one) for one in content)
        parts.append("".join(texts))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        parts.append(_call(call))
    return "".join(parts)


def _part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return ""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    name = json.dumps(function.get("name"))
    return f'\n<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
