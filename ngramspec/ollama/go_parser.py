"""From tokens to the parts of a template, with Go's grammar and checks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal as OneOf

from ngramspec.ollama.go_lexer import TemplateSyntaxError, Token
from ngramspec.ollama.go_nodes import Action, Branch, Call, Jump, Node, Text
from ngramspec.ollama.go_pipes import KEYWORDS, PipeParser, Scope

MAIN = ""  # the name of the text outside of every define


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


class _Parser(PipeParser):
    """A walk over the tokens of a whole template."""

    def __init__(self, text: str, functions: Collection[str]) -> None:
        super().__init__(text, functions)
        self.found: dict[str, tuple[Node, ...]] = {}

    def templates(self) -> dict[str, tuple[Node, ...]]:
        """Parse everything."""
        nodes: list[Node] = []
        while self.peek().kind != "end":
            if self.is_keyword("define"):
                self.define()
            else:
                nodes += self.node("text or an action")
        self.add(MAIN, tuple(nodes))
        return self.found

    def define(self) -> None:
        """Parse a define and what it holds."""
        self.at += 2
        name = str(self.expect("string", "a name in quotes after define").value)
        self.expect("close", "}} after the name of a define")
        outer, self.scope = self.scope, Scope(["$"])
        nodes, _ = self.block(("end",))
        self.scope = outer
        self.add(name, nodes)

    def add(self, name: str, nodes: tuple[Node, ...]) -> None:
        """Keep a template; an empty one gives way."""
        if not _is_empty(nodes) and not _is_empty(self.found.get(name, ())):
            raise self.error(f"expected one template of the name {name!r}, found a second one")
        if name not in self.found or _is_empty(self.found[name]):
            self.found[name] = nodes

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
            return [Text(str(token.value))]
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
        """Parse an if, with or range up to its end."""
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
        """Parse a break or continue."""
        self.expect("close", f"}}}} after {start.value}")
        if not self.scope.ranges:
            raise TemplateSyntaxError(f"expected {start.value} inside a range", start.position)
        return Jump("break" if start.value == "break" else "continue")

    def is_keyword(self, word: str) -> bool:
        """Tell whether the next tokens open an action with this keyword."""
        inside = self.peek(1)
        return self.peek().kind == "open" and inside.kind == "word" and inside.value == word

    def error(self, reason: str) -> TemplateSyntaxError:
        """Return the exception that names the current place."""
        return TemplateSyntaxError(reason, self.peek().position)


def _branch_kind(word: str) -> OneOf["if", "with", "range"]:
    return "if" if word == "if" else "with" if word == "with" else "range"


def _is_empty(nodes: tuple[Node, ...]) -> bool:
    return all(isinstance(node, Text) and not node.text.strip() for node in nodes)
