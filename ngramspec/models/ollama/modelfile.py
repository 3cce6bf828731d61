"""Modelfiles: what a model of Ollama is made from, read and written.

Unlike in Ollama, a parameter that is unknown, of a wrong type or out of range is an error that
names the line; names of parameters may be written with - for _, and DRAFT lines add up: they name
drafters and a draft model, such as "ngram-mod,ngram-cache" and "qwen2:0.5b".
"""

from __future__ import annotations

import codecs
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ngramspec.errors import FormatError, InputError
from ngramspec.models.ollama.parameters import Parameter, check_parameter, parse_parameter

MOST_BYTES = 16 << 20
ROLES = ("system", "user", "assistant")

_ENCODINGS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_SINGLE = ("template", "system", "requires", "renderer", "parser")
_SEVERAL = ("LICENSE", "ADAPTER", "DRAFT", "CAPABILITY")
_IGNORED = ("requires", "renderer", "parser")
KEYWORDS = (
    *("FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "MESSAGE", "LICENSE"),
    *("ADAPTER", "DRAFT", "CAPABILITY", "REQUIRES", "RENDERER", "PARSER"),
)

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_FIRST_WORD = re.compile(r"[ \t]*([^ \t]*)(?:[ \t](.*))?")
_WITH_WORD = {"PARAMETER": "a name and a value", "MESSAGE": "a role and a value"}
_MOST_SHOWN = 40


@dataclass(frozen=True)
class ExampleMessage:
    """A MESSAGE line.

    role: system, user or assistant.
    content: What was said.
    """

    role: str
    content: str


@dataclass(frozen=True)
class Modelfile:
    """The contents of a Modelfile.

    base: The first FROM: a path or the name of a model.
    more: Further FROM lines, such as a projector.
    template, system: None: no such line.
    parameters: By name, with their types; stop is a tuple of texts.
    messages: A conversation that precedes every other.
    licenses, adapters: In their order.
    drafts: The values of DRAFT lines: names of drafters, the name or path of a draft model, or
        several of these with commas.
    capabilities: What the model can do besides what is found out, such as "tools".
    requires, renderer, parser: Kept, but without effect here; `notes` says so.
    notes: What a user should know, with line numbers.
    """

    base: str
    more: tuple[str, ...] = ()
    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    messages: tuple[ExampleMessage, ...] = ()
    licenses: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    requires: str | None = None
    renderer: str | None = None
    parser: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name, values in {"FROM": (self.base, *self.more), "DRAFT": self.drafts}.items():
            if "" in values:
                raise InputError(f"{name} must not be empty")
        for name, value in self.parameters.items():
            if check_parameter(name, value) != value or value == ():
                raise InputError(f"{name}: {value!r} is not a value of a Modelfile")
        for message in self.messages:
            if message.role not in ROLES:
                raise InputError(f"role must be one of {', '.join(ROLES)}: {message.role!r}")

    def to_text(self) -> str:
        """Return a text that parse_modelfile reads as this Modelfile, without notes.

        Raises:
            InputError: A value cannot be written, because a line of it ends with quotes that would
                end the value.
        """
        lines = [("FROM", value) for value in (self.base, *self.more)]
        lines += [("ADAPTER", value) for value in self.adapters]
        lines += [("DRAFT", value) for value in self.drafts]
        lines += [("CAPABILITY", value) for value in self.capabilities]
        for name in _SINGLE:
            value = getattr(self, name)
            if value is not None:
                lines.append((name.upper(), value))
        for name, parameter in self.parameters.items():
            values = parameter if isinstance(parameter, tuple) else (_written(parameter),)
            lines += [(f"PARAMETER {name}", value) for value in values]
        lines += [(f"MESSAGE {message.role}", message.content) for message in self.messages]
        lines += [("LICENSE", value) for value in self.licenses]
        return "".join(_line(start, value) for start, value in lines)


def parse_modelfile(text: str) -> Modelfile:
    """Read a Modelfile.

    Of an instruction with one value, such as TEMPLATE, the last line counts, as in Ollama; stop,
    MESSAGE, LICENSE, ADAPTER, DRAFT and CAPABILITY add up.

    Args:
        text: The file's contents.

    Raises:
        InputError: No FROM, an unknown instruction, parameter or role, a parameter of a wrong type,
            an empty FROM or DRAFT, or quotes that do not end; names the line.

    Cost: linear in the text.
    """
    reader = _Reader()
    for instruction in read_instructions(text):
        reader.take(instruction)
    return reader.modelfile()


def read_modelfile(path: str | os.PathLike[str]) -> Modelfile:
    """Read a Modelfile from a file in UTF-8, or in UTF-16 with a byte order mark.

    Raises:
        InputError: As parse_modelfile; the message names the file.
        FormatError: Larger than MOST_BYTES or not text; names the file and the offset.
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(f"{os.fspath(path)}: expected at most {MOST_BYTES} bytes in a Modelfile")
    encoding = next((name for mark, name in _ENCODINGS.items() if data.startswith(mark)), "utf-8")
    try:
        return parse_modelfile(data.decode(encoding))
    except UnicodeDecodeError as error:
        reason = f"expected {encoding}, at offset {error.start}"
        raise FormatError(f"{os.fspath(path)}: {reason}") from None
    except InputError as error:
        raise InputError(f"{os.fspath(path)}: {error}") from None


class _Reader:
    """Collects instructions."""

    def __init__(self) -> None:
        self.bases: list[str] = []
        self.single: dict[str, str] = {}
        self.parameters: dict[str, Parameter] = {}
        self.several: dict[str, list[str]] = {name: [] for name in _SEVERAL}
        self.messages: list[ExampleMessage] = []
        self.notes: list[str] = []

    def take(self, instruction: Instruction) -> None:
        keyword, value = instruction.keyword, instruction.value
        if keyword in ("FROM", "DRAFT") and not value:
            raise instruction.error(f"expected a value after {keyword}")
        if keyword == "FROM":
            self.bases.append(value)
        elif keyword == "PARAMETER":
            self.parameter(instruction)
        elif keyword == "MESSAGE":
            if instruction.word not in ROLES:
                roles = ", ".join(ROLES)
                raise instruction.error(f"expected a role ({roles}), found {instruction.word!r}")
            self.messages.append(ExampleMessage(instruction.word, value))
        elif keyword in self.several:
            self.several[keyword].append(value)
        else:
            self.single[keyword.lower()] = value
        if keyword.lower() in _IGNORED:
            self.notes.append(f"line {instruction.line}: {keyword} {value} has no effect")

    def parameter(self, instruction: Instruction) -> None:
        name = instruction.word.replace("-", "_")
        try:
            value = parse_parameter(name, instruction.value)
        except InputError as error:
            raise instruction.error(str(error)) from None
        before = self.parameters.get(name)
        if isinstance(value, tuple) and isinstance(before, tuple):
            value = (*before, *value)
        self.parameters[name] = value

    def modelfile(self) -> Modelfile:
        if not self.bases:
            raise InputError("Modelfile: expected a FROM line with the path or name of a model")
        return Modelfile(
            base=self.bases[0],
            more=tuple(self.bases[1:]),
            parameters=self.parameters,
            messages=tuple(self.messages),
            licenses=tuple(self.several["LICENSE"]),
            adapters=tuple(self.several["ADAPTER"]),
            drafts=tuple(self.several["DRAFT"]),
            capabilities=tuple(self.several["CAPABILITY"]),
            notes=tuple(self.notes),
            **self.single,
        )


def _written(parameter: int | float | bool) -> str:
    return str(parameter).lower() if isinstance(parameter, bool) else repr(parameter)


def _line(start: str, value: str) -> str:
    written = quoted(value)
    if written is None:
        raise InputError(f"{start}: a line of the value ends with quotes: {value!r:.80}")
    return f"{start} {written}\n"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    line: Where it starts, from 1.
    keyword: In capitals.
    word: The name of a PARAMETER or the role of a MESSAGE; "" for the others.
    value: Without quotes.
    """

    line: int
    keyword: str
    word: str
    value: str

    def error(self, reason: str) -> InputError:
        return _error(self.line, reason)


def read_instructions(text: str) -> Iterator[Instruction]:
    """Split a Modelfile.

    Args:
        text: With any kind of line ends; a byte order mark is left out.

    Yields:
        Instruction: Without comments and empty lines.

    Raises:
        InputError: An unknown keyword, nothing after one, or quotes that do not end; names the
            line.

    Cost: linear in the text.
    """
    lines = _LINE.findall(text.removeprefix("\ufeff"))
    at = 0
    while at < len(lines):
        start, line = at + 1, lines[at][0]
        at += 1
        keyword, rest = _split(line)
        if not keyword or keyword.startswith("#"):
            continue
        keyword = _keyword(keyword, start)
        word = ""
        if keyword in _WITH_WORD and rest is not None:
            word, rest = _split(rest)
        if rest is None or (keyword in _WITH_WORD and not word):
            raise _error(start, f"expected {_WITH_WORD.get(keyword, 'a value')} after {keyword}")
        value, at = _value(lines, at, rest)
        if value is None:
            raise _error(start, f"expected {_opening(rest.strip())} to end the value of {keyword}")
        yield Instruction(start, keyword, word, value)


def _value(lines: list[tuple[str, str]], at: int, rest: str) -> tuple[str | None, int]:
    """Return the value that starts with `rest`, and the index of the line after it.

    Quotes end where a line ends with them. None: they do not end.
    """
    value = rest.strip()
    quote = _opening(value)
    if quote and not (len(value) >= 2 * len(quote) and value.endswith(quote)):
        until = at
        while until < len(lines) and not lines[until][0].rstrip().endswith(quote):
            until += 1
        if until == len(lines):
            return None, until
        pairs = pairwise(lines[at - 1 : until + 1])
        value = rest.lstrip() + "".join(f"{end}{line}" for (_, end), (line, _) in pairs)
        value, at = value.rstrip(), until + 1
    return value[len(quote) : len(value) - len(quote)], at


def quoted(value: str) -> str | None:
    """Return a value, quoted so that read_instructions returns it, or None if impossible.

    It is impossible if quotes at the end of a line inside the value would end it.
    """
    for written in (value, f'"{value}"', f'"""{value}"""'):
        try:
            if list(read_instructions(f"SYSTEM {written}")) == [
                Instruction(1, "SYSTEM", "", value)
            ]:
                return written
        except InputError:
            continue
    return None


def _split(line: str) -> tuple[str, str | None]:
    """Return the first word of a line and the text after the next blank; None: no blank."""
    match = _FIRST_WORD.match(line)
    return (match[1], match[2]) if match else (line, None)


def _opening(value: str) -> str:
    return next((quote for quote in ('"""', '"') if value.startswith(quote)), "")


def _keyword(word: str, line: int) -> str:
    if word.upper() in KEYWORDS:
        return word.upper()
    near = difflib.get_close_matches(word.upper()[:_MOST_SHOWN], KEYWORDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(KEYWORDS)}"
    raise _error(line, f"unknown instruction {word[:_MOST_SHOWN]!r}: {hint}")


def _error(line: int, reason: str) -> InputError:
    return InputError(f"Modelfile, line {line}: {reason}")
