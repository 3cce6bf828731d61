"""Parse tokens into the nodes of a template, with Go's grammar and checks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal as OneOf

from ngramspec.errors import InputError
from ngramspec.text.gotemplate.lexer import TemplateSyntaxError, Token, tokens
from ngramspec.text.gotemplate.nodes import (
    Action,
    Branch,
    Call,
    Chain,
    Command,
    Dot,
    Field,
    Function,
    Jump,
    Literal,
    Nil,
    Node,
    Operand,
    Pipe,
    TextNode,
    Variable,
)

MAIN = ""  # the name of the text outside of every define
MOST_NESTED = 64
KEYWORDS = frozenset(("block", "define", "template", "end"))
KEYWORDS |= {"if", "with", "range", "else", "break", "continue"}

_VALUES = ("string", "number", "variable", "field", "dot", "word", "(")
_MOST_SHOWN = 40


@dataclass
class Scope:
    """The variables and ranges in scope; a define or block starts a new scope.

    variables: Those declared so far, innermost last.
    ranges: How many ranges are open.
    """

    variables: list[str]
    ranges: int = 0


def parse(text: str, functions: Collection[str]) -> dict[str, tuple[Node, ...]]:
    """Parse a template.

    Args:
        text: The template.
        functions: The names that may be called.

    Returns:
        dict: The nodes by the name of their define or block; those outside under MAIN.

    Raises:
        TemplateSyntaxError: Not Go's grammar, an unknown function or variable.
        InputError: Blocks or parentheses are nested too deep.

    Cost: linear in the text.
    """
    return _Parser(text, functions).templates()


class _Parser:
    """A walk over the tokens of a template.

    parsed: What was parsed so far, as parse returns it.
    at: Index of the next token.
    depth: Blocks and parentheses that are open.
    """

    def __init__(self, text: str, functions: Collection[str]) -> None:
        self.tokens = list(tokens(text))
        self.functions = functions
        self.parsed: dict[str, tuple[Node, ...]] = {}
        self.scope = Scope(["$"])
        self.at = 0
        self.depth = 0

    # -- templates, blocks and actions -------------------------------------------------------------

    def templates(self) -> dict[str, tuple[Node, ...]]:
        nodes: list[Node] = []
        while self.peek().kind != "end":
            if self.is_keyword("define"):
                self.define()
            else:
                nodes += self.node("text or an action")
        self.add(MAIN, tuple(nodes))
        return self.parsed

    def define(self) -> None:
        self.at += 2
        name = str(self.expect("string", "a name in quotes after define").value)
        self.expect("close", "}} after the name of a define")
        outer, self.scope = self.scope, Scope(["$"])
        nodes, _ = self.block(("end",))
        self.scope = outer
        self.add(name, nodes)

    def add(self, name: str, nodes: tuple[Node, ...]) -> None:
        """Keep a template; an empty one may be replaced, or is ignored."""
        if not _is_empty(nodes) and not _is_empty(self.parsed.get(name, ())):
            raise self.error(f"expected one template named {name!r}, found a second one")
        if name not in self.parsed or _is_empty(self.parsed[name]):
            self.parsed[name] = nodes

    def block(self, ends: tuple[str, ...]) -> tuple[tuple[Node, ...], str]:
        """Parse nodes up to a keyword, which is consumed; return them and the keyword."""
        self.enter()
        nodes: list[Node] = []
        while True:
            for keyword in ends:
                if self.is_keyword(keyword):
                    self.at += 2
                    if keyword == "end":
                        self.expect("close", "}} after end")
                    self.depth -= 1
                    return tuple(nodes), keyword
            nodes += self.node(" or ".join(f"{{{{{end}}}}}" for end in ends))

    def node(self, expected: str) -> list[Node]:
        """Parse text or one action; a block gives a call of itself."""
        token = self.next()
        if token.kind == "text":
            return [TextNode(str(token.value))]
        if token.kind != "open":
            raise self.unexpected(token, expected)
        start = self.peek()
        if start.kind != "word" or start.value not in KEYWORDS:
            return [Action(self.pipe("a value", "close"))]
        self.at += 1
        match start.value:
            case "if" | "with" | "range":
                return [self.branch(start)]
            case "template" | "block":
                return [self.call(start)]
            case "break" | "continue":
                return [self.jump(start)]
        raise self.unexpected(start, expected)

    def branch(self, start: Token) -> Branch:
        kind = _branch_kind(str(start.value))
        outside = len(self.scope.variables)
        pipe = self.pipe(f"a value after {kind}", "close", most=2 if kind == "range" else 1)
        self.scope.ranges += kind == "range"
        body, end = self.block(("end", "else"))
        self.scope.ranges -= kind == "range"
        otherwise: tuple[Node, ...] = ()
        if end == "else":
            follows = self.peek()
            if follows.kind == "word" and follows.value == kind != "range":
                self.at += 1
                self.enter()
                otherwise = (self.branch(follows),)
                self.depth -= 1
            else:
                self.expect("close", "}} after else")
                otherwise, _ = self.block(("end",))
        del self.scope.variables[outside:]
        return Branch(kind, pipe, body, otherwise, start.position)

    def call(self, start: Token) -> Call:
        """Parse a template action, or a block with what it holds."""
        name = str(self.expect("string", f"a name in quotes after {start.value}").value)
        if start.value == "template" and self.peek().kind == "close":
            self.at += 1
            return Call(name, None, start.position)
        pipe = self.pipe(f"a value after {start.value} {name!r}", "close")
        if start.value == "block":
            outer, self.scope = self.scope, Scope(["$"])
            nodes, _ = self.block(("end",))
            self.scope = outer
            self.add(name, nodes)
        return Call(name, pipe, start.position)

    def jump(self, start: Token) -> Jump:
        self.expect("close", f"}}}} after {start.value}")
        if not self.scope.ranges:
            raise TemplateSyntaxError(f"expected {start.value} inside a range", start.position)
        return Jump("break" if start.value == "break" else "continue")

    # -- pipes: what is between {{ and }} without keywords -----------------------------------------

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
        """Parse "$x :=", "$x =" or "$i, $x :=", if present."""
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
        match token.value:
            case "true" | "false":
                return Literal(token.value == "true")
            case "nil":
                return Nil()
        if token.value not in self.functions:
            names = ", ".join(sorted(self.functions))
            reason = f"expected a function ({names}), found {token.value}"
            raise TemplateSyntaxError(reason, token.position)
        return Function(str(token.value))

    # -- tokens ------------------------------------------------------------------------------------

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise InputError(f"the template is nested deeper than {MOST_NESTED} levels")

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    @staticmethod
    def is_reserved(token: Token) -> bool:
        return token.kind == "word" and token.value in KEYWORDS

    def expect(self, kind: str, expected: str) -> Token:
        token = self.next()
        if token.kind != kind:
            raise self.unexpected(token, expected)
        return token

    def undefined(self, token: Token) -> TemplateSyntaxError:
        names = ", ".join(self.scope.variables)
        reason = f"expected a variable ({names}), found {token.value}"
        return TemplateSyntaxError(reason, token.position)

    def unexpected(self, token: Token, expected: str) -> TemplateSyntaxError:
        text = "}}" if token.kind == "close" else str(token.value)[:_MOST_SHOWN]
        return TemplateSyntaxError(f"expected {expected}, found {text}", token.position)

    def is_keyword(self, word: str) -> bool:
        inside = self.peek(1)
        return self.peek().kind == "open" and inside.kind == "word" and inside.value == word

    def error(self, reason: str) -> TemplateSyntaxError:
        return TemplateSyntaxError(reason, self.peek().position)


def _branch_kind(word: str) -> OneOf["if", "with", "range"]:
    return "if" if word == "if" else "with" if word == "with" else "range"


def _is_empty(nodes: tuple[Node, ...]) -> bool:
    return all(isinstance(node, TextNode) and not node.text.strip() for node in nodes)
