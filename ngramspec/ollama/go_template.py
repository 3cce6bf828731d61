"""Go's text/template, as far as the chat templates of Ollama need it.

Supported: text with {{ and }}, {{- and -}}, comments; if, else if, with, range (lists, maps,
counts), else, break, continue; define, template, block; variables, fields, parentheses, pipes;
literals; and, or, not, eq, ne, lt, le, gt, ge, len, index, slice, print, printf, println; Ollama's
json, currentDate, yesterdayDate, toTypeScriptType. Not supported: html, js, urlquery, call, complex
numbers, hexadecimal floats, printf's rarer verbs. How values differ from Go's: go_values.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping

from ngramspec.errors import FormatError, InputError
from ngramspec.ollama.go_evaluator import Evaluator
from ngramspec.ollama.go_functions import NAMES, functions
from ngramspec.ollama.go_lexer import TemplateSyntaxError
from ngramspec.ollama.go_limits import Budget
from ngramspec.ollama.go_nodes import Action, Branch, Call, Field, Node, Pipe, Variable
from ngramspec.ollama.go_parser import MAIN, parse
from ngramspec.ollama.go_values import TemplateProblem

MOST_CHARACTERS = 1 << 20


class GoTemplate:
    """A parsed template; it never changes, so that threads may share it.

    text: What it was parsed from.
    templates: Its nodes, by the names of defines and blocks; MAIN is what is outside of them.
    """

    def __init__(self, text: str, templates: Mapping[str, tuple[Node, ...]]) -> None:
        self.text = text
        self.templates = templates

    @classmethod
    def parse(cls, text: str) -> GoTemplate:
        """Parse a template.

        Raises:
            FormatError: Not Go's grammar; names the line, what was expected and what is there.
            InputError: Longer than MOST_CHARACTERS, or nested deeper than MOST_NESTED.

        Cost: linear in the text, some 50 us per action.
        """
        if len(text) > MOST_CHARACTERS:
            most = MOST_CHARACTERS
            raise InputError(f"a template of {len(text)} characters, supported are {most}")
        try:
            return cls(text, parse(text, NAMES))
        except TemplateSyntaxError as error:
            raise FormatError(_located(text, error.position, str(error))) from None
        except RecursionError:
            raise InputError("the template is nested too deep for this place") from None

    def render(
        self, data: object, budget: Budget | None = None, today: datetime.date | None = None
    ) -> str:
        """Write the template.

        Args:
            data: What "$" and the first "." are: a mapping, as a rule.
            budget: What it may use; default: a new Budget().
            today: What currentDate writes; default: the day of the local clock.

        Raises:
            FormatError: The template does not fit the data, such as a field of a number; names the
                line, what was expected and what is there.
            InputError: It goes beyond a limit.

        Cost: one to two us per step; see Limits.
        """
        called = functions(today or datetime.date.today())
        evaluator = Evaluator(self.templates, called, budget or Budget())
        try:
            evaluator.render(MAIN, data)
        except TemplateProblem as problem:
            raise FormatError(_located(self.text, evaluator.position, str(problem))) from None
        except RecursionError:
            raise InputError("the template or its data is nested too deep") from None
        return "".join(evaluator.output)

    def with_main(self, nodes: tuple[Node, ...]) -> GoTemplate:
        """Return the same template with other nodes outside of its defines."""
        return GoTemplate(self.text, {**self.templates, MAIN: nodes})

    @property
    def main(self) -> tuple[Node, ...]:
        """The nodes outside of every define."""
        return self.templates[MAIN]

    def names(self) -> frozenset[str]:
        """Return all fields and variables that are used, in lower case and without dots."""
        return frozenset(
            name.lower() for nodes in self.templates.values() for name in _names(nodes)
        )


def _located(text: str, position: int, reason: str) -> str:
    return f"template, line {text.count(chr(10), 0, position) + 1}: {reason}"


def _names(nodes: tuple[Node, ...]) -> Iterator[str]:
    for node in nodes:
        match node:
            case Action(pipe) | Call(_, Pipe() as pipe):
                yield from _names_of_pipe(pipe)
            case Branch(_, pipe, body, otherwise):
                yield from _names_of_pipe(pipe)
                yield from _names(body)
                yield from _names(otherwise)


def _names_of_pipe(pipe: Pipe) -> Iterator[str]:
    for command in pipe.commands:
        for operand in command.operands:
            match operand:
                case Field(names):
                    yield from names
                case Variable(name, names):
                    yield from (name, *names)
                case Pipe():
                    yield from _names_of_pipe(operand)
