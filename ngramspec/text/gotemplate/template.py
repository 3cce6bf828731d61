"""Template: a parsed template in the language of Go's text/template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ngramspec.errors import FormatError, InputError
from ngramspec.text.gotemplate.evaluator import Evaluator
from ngramspec.text.gotemplate.functions import FUNCTIONS, TemplateFunction
from ngramspec.text.gotemplate.lexer import TemplateSyntaxError
from ngramspec.text.gotemplate.nodes import Action, Branch, Call, Field, Node, Pipe, Variable
from ngramspec.text.gotemplate.parser import MAIN, parse
from ngramspec.text.gotemplate.values import TemplateProblem
from ngramspec.text.limits import Budget

MOST_CHARACTERS = 1 << 20
NONE: Mapping[str, TemplateFunction] = MappingProxyType({})


class Template:
    """A parsed template; it never changes, so that threads may share it.

    text: What it was parsed from.
    templates: Its nodes, by the names of defines and blocks; MAIN is what is outside of them.
    functions: What it may call, by name.
    """

    def __init__(
        self,
        text: str,
        templates: Mapping[str, tuple[Node, ...]],
        functions: Mapping[str, TemplateFunction],
    ) -> None:
        self.text = text
        self.templates = templates
        self.functions = functions

    @classmethod
    def parse(cls, text: str, functions: Mapping[str, TemplateFunction] = NONE) -> Template:
        """Parse a template.

        Args:
            text: The template.
            functions: What it may call in addition to those of text/template, by name.

        Raises:
            FormatError: Not Go's grammar; names the line, what was expected and what was found.
            InputError: Longer than MOST_CHARACTERS, or nested deeper than MOST_NESTED.

        Cost: linear in the text, some 50 us per action.
        """
        if len(text) > MOST_CHARACTERS:
            most = MOST_CHARACTERS
            raise InputError(f"a template of {len(text)} characters, which is more than {most}")
        try:
            functions = {**FUNCTIONS, **functions}
            return cls(text, parse(text, functions), functions)
        except TemplateSyntaxError as error:
            raise FormatError(_located(text, error.position, str(error))) from None
        except RecursionError:
            raise InputError("the template is nested too deep for the stack") from None

    def render(
        self,
        data: object,
        budget: Budget | None = None,
        functions: Mapping[str, TemplateFunction] = NONE,
    ) -> str:
        """Write the template.

        Args:
            data: The value of "$" and the first ".": usually a mapping.
            budget: What it may use; default: a new Budget().
            functions: Replace those of the same names that it was parsed with.

        Raises:
            FormatError: The template does not fit the data, such as a field of a number; names the
                line, what was expected and what was found.
            InputError: It exceeds a limit.

        Cost: one to two us per step; see RenderLimits.
        """
        called = {**self.functions, **functions} if functions else self.functions
        evaluator = Evaluator(self.templates, called, budget or Budget())
        try:
            evaluator.render(MAIN, data)
        except TemplateProblem as problem:
            raise FormatError(_located(self.text, evaluator.position, str(problem))) from None
        except RecursionError:
            raise InputError("the template or its data is nested too deep") from None
        return "".join(evaluator.output)

    def with_main(self, nodes: tuple[Node, ...]) -> Template:
        """Return the same template with other nodes outside its defines."""
        return Template(self.text, {**self.templates, MAIN: nodes}, self.functions)

    @property
    def main(self) -> tuple[Node, ...]:
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
