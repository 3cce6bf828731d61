"""The pipes of a template: what is between {{ and }}, but for the keywords of blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ngramspec.errors import InputError
from ngramspec.ollama.go_lexer import TemplateSyntaxError, Token, tokens
from ngramspec.ollama.go_nodes import (
    Chain,
    Command,
    Dot,
    Field,
    Function,
    Literal,
    Nil,
    Operand,
    Pipe,
    Variable,
)

MOST_NESTED = 64
KEYWORDS = frozenset(("block", "define", "template", "end"))
KEYWORDS |= {"if", "with", "range", "else", "break", "continue"}

_VALUES = ("string", "number", "variable", "field", "dot", "word", "(")
_MOST_SHOWN = 40


@dataclass
class Scope:
    """What one template may use: a define or block starts anew.

    variables: Those declared so far, innermost last.
    ranges: How many ranges are open.
    """

    variables: list[str]
    ranges: int = 0


class PipeParser:
    """A walk over tokens that reads pipes.

    at: Index of the next token.
    depth: Blocks and parentheses that are open.
    """

    def __init__(self, text: str, functions: Collection[str]) -> None:
        self.tokens = list(tokens(text))
        self.functions = functions
        self.scope = Scope(["$"])
        self.at = 0
        self.depth = 0

    def pipe(self, expected: str, end: str, most: int = 1) -> Pipe:
        """Parse declarations and commands up to a closing token, which is consumed."""
        declared, assigns = self.declarations(most)
        commands: list[Command] = []
        while self.peek().kind != end:
            if self.peek().kind not in _VALUES or self.is_reserved(self.peek()):
                raise self.unexpected(self.peek(), expected if not commands else "a command")
            commands.append(self.command(end))
        if not commands:
            raise self.unexpected(self.peek(), expected)
        self.at += 1
        for command in commands[1:]:
            if isinstance(command.operands[0], Dot | Nil | Literal):
                raise TemplateSyntaxError("expected a function after |", command.position)
        return Pipe(declared, assigns, tuple(commands))

    def declarations(self, most: int) -> tuple[tuple[str, ...], bool]:
        """Parse "$x :=", "$x =" or "$i, $x :=", if it is there."""
        declared: list[str] = []
        while self.peek().kind == "variable" and self.peek(1).kind in (":=", "=", ","):
            name, sign = self.next(), self.next()
            declared.append(str(name.value))
            if sign.kind == "=" and name.value not in self.scope.variables:
                raise self.undefined(name)
            if sign.kind != ",":
                self.scope.variables += declared
                return tuple(declared), sign.kind == "="
            if len(declared) == most or self.peek().kind != "variable":
                raise self.unexpected(self.peek(), "at most two variables, and only in a range")
        if declared:
            raise self.unexpected(self.peek(1), ":= or = after the variables")
        return (), False

    def command(self, end: str) -> Command:
        """Parse operands up to a pipe sign, which is consumed, or the end of the pipe."""
        position = self.peek().position
        operands = [self.operand()]
        while self.peek().kind not in (end, "|"):
            if not self.peek().spaced:
                raise self.unexpected(self.peek(), "a space between arguments")
            operands.append(self.operand())
        self.at += self.peek().kind == "|"
        return Command(tuple(operands), position)

    def operand(self) -> Operand:
        """Parse a value and the fields that follow it."""
        token = self.peek()
        value = self.term()
        names = []
        while self.peek().kind == "field" and not self.peek().spaced:
            names.append(str(self.next().value))
        if not names:
            return value
        match value:
            case Field(first):
                return Field((*first, *names))
            case Variable(name):
                return Variable(name, tuple(names))
            case Pipe() | Function():
                return Chain(value, tuple(names))
        raise self.unexpected(token, "something that has fields")

    def term(self) -> Operand:
        """Parse one value without fields."""
        token = self.next()
        match token.kind:
            case "string" | "number":
                return Literal(token.value)
            case "field":
                return Field((str(token.value),))
            case "dot":
                return Dot()
            case "variable":
                if token.value not in self.scope.variables:
                    raise self.undefined(token)
                return Variable(str(token.value))
            case "(":
                self.enter()
                inside = self.pipe("a value in parentheses", ")")
                self.depth -= 1
                return inside
            case "word" if not self.is_reserved(token):
                return self.word(token)
        raise self.unexpected(token, "a value")

    def word(self, token: Token) -> Operand:
        """Return what a word stands for that is no keyword."""
        match token.value:
            case "true" | "false":
                return Literal(token.value == "true")
            case "nil":
                return Nil()
        if token.value not in self.functions:
            known = ", ".join(sorted(self.functions))
            reason = f"expected a function ({known}), found {token.value}"
            raise TemplateSyntaxError(reason, token.position)
        return Function(str(token.value))

    def enter(self) -> None:
        """Go one level deeper."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise InputError(f"the template is nested deeper than {MOST_NESTED} levels")

    def peek(self, ahead: int = 0) -> Token:
        """Return a token without consuming it."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Return the next token and consume it."""
        token = self.peek()
        self.at += 1
        return token

    @staticmethod
    def is_reserved(token: Token) -> bool:
        """Tell whether a token is a keyword."""
        return token.kind == "word" and token.value in KEYWORDS

    def expect(self, kind: str, expected: str) -> Token:
        """Consume a token of this kind."""
        token = self.next()
        if token.kind != kind:
            raise self.unexpected(token, expected)
        return token

    def undefined(self, token: Token) -> TemplateSyntaxError:
        """Return the exception for a variable that is not there."""
        known = ", ".join(self.scope.variables)
        reason = f"expected a variable ({known}), found {token.value}"
        return TemplateSyntaxError(reason, token.position)

    def unexpected(self, token: Token, expected: str) -> TemplateSyntaxError:
        """Return the exception for a token that does not fit."""
        found = "}}" if token.kind == "close" else str(token.value)[:_MOST_SHOWN]
        return TemplateSyntaxError(f"expected {expected}, found {found}", token.position)
