"""The parts of a parsed Go template, as in text/template/parse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Dot:
    """The current value of the template."""


@dataclass(frozen=True, slots=True)
class Nil:
    """The word nil."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number, true or false."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Field:
    """Fields of dot: .Function.Name.

    names: At least one.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable and fields of it: $message.Role.

    name: With its dollar sign; "$" is the data of the template.
    """

    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields of the value of parentheses or of a function: (index .Messages 0).Role."""

    operand: Pipe | Function
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A value, or a function and its arguments.

    operands: At least one.
    position: Offset in the template.
    """

    operands: tuple[Operand, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands; the value of each is the last argument of the next.

    declared: Variables that take the value: at most one, in a range two.
    assigns: "=" instead of ":=".
    """

    declared: tuple[str, ...]
    assigns: bool
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class TextNode:
    """Text between actions, already trimmed; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """Writes the value of a pipe, unless the pipe declares a variable."""

    pipe: Pipe


@dataclass(frozen=True, slots=True)
class Branch:
    """An if, with or range and what it holds.

    otherwise: The nodes after else; an "else if" is one branch in there.
    """

    kind: OneOf["if", "with", "range"]
    pipe: Pipe
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Call:
    """Writes another template of the same text.

    pipe: Its dot; None = nil.
    """

    name: str
    pipe: Pipe | None
    position: int


@dataclass(frozen=True, slots=True)
class Jump:
    """Leaves the innermost range, or continues with its next item."""

    kind: OneOf["break", "continue"]


Operand: TypeAlias = Dot | Nil | Literal | Field | Variable | Function | Chain | Pipe
Node: TypeAlias = TextNode | Action | Branch | Call | Jump
