"""Renders a parsed template."""

from __future__ import annotations

from collections.abc import Mapping

from ngramspec.text.gotemplate.functions import LAZY, TemplateFunction
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
from ngramspec.text.gotemplate.values import TemplateProblem, field, is_true, items, to_text
from ngramspec.text.limits import Budget

_NOTHING = object()  # there is no value of a previous command
SEARCHED = 32  # variables that are passed over for a step
SORTED = 8  # keys of a map that are put in order for a step
_LONG = 10  # 2**10 characters or items of an argument cost a step


class Evaluator:
    """One rendering.

    output: The text written so far.
    variables: Names and values, innermost last.
    position: Offset in the template where evaluation is, for messages.
    """

    def __init__(
        self,
        templates: Mapping[str, tuple[Node, ...]],
        functions: Mapping[str, TemplateFunction],
        budget: Budget,
    ) -> None:
        self.templates = templates
        self.functions = functions
        self.budget = budget
        self.output: list[str] = []
        self.variables: list[tuple[str, object]] = []
        self.position = 0

    def render(self, name: str, dot: object) -> None:
        """Write a template; it sees its dot and no variables from outside.

        Raises:
            TemplateProblem: The template does not fit the data; `position` is where.
            InputError: It exceeds a limit.
        """
        if name not in self.templates:
            names = ", ".join(map(repr, sorted(filter(None, self.templates)))) or "none"
            raise TemplateProblem(f"expected a defined template ({names}), found {name!r}")
        outer, self.variables = self.variables, [("$", dot)]
        self.write_nodes(self.templates[name], dot)
        self.variables = outer

    def write_nodes(self, nodes: tuple[Node, ...], dot: object) -> str:
        """Write nodes; return "break" or "continue" if one of them ends a range, else ""."""
        self.budget.enter()
        jump = ""
        for node in nodes:
            self.budget.step()
            match node:
                case TextNode(text):
                    self.write(text)
                case Action(pipe):
                    value = self.pipe(pipe, dot)
                    if not pipe.declared and value is not None:
                        self.write(to_text(value))
                case Branch():
                    jump = self.branch(node, dot)
                case Call(name, of, position):
                    inside = self.pipe(of, dot) if of else None
                    self.position = position
                    self.render(name, inside)
                case Jump(kind):
                    jump = kind
            if jump:
                break
        self.budget.leave()
        return jump

    def write(self, text: str) -> None:
        self.output.append(self.budget.text(text))

    def branch(self, node: Branch, dot: object) -> str:
        """Write an if, with or range; return a break or continue for the enclosing range."""
        outside = len(self.variables)
        value = self.pipe(node.pipe, dot)
        if node.kind == "range":
            jump = self.range(node, value, dot)
        elif is_true(value):
            jump = self.write_nodes(node.body, value if node.kind == "with" else dot)
        else:
            jump = self.write_nodes(node.otherwise, dot)
        del self.variables[outside:]
        return jump

    def range(self, node: Branch, value: object, dot: object) -> str:
        """Write a range; as in Go, a continue in its else is for the enclosing range."""
        pipe, outside, entered = node.pipe, len(self.variables), False
        self.position = node.position
        if isinstance(value, int) and len(pipe.declared) > 1:
            raise TemplateProblem("expected one variable to range over a count, found two")
        if isinstance(value, Mapping):
            self.budget.step(len(value) // SORTED)
        for key, item in items(value):
            self.budget.step()
            entered = True
            pair = (item,) if len(pipe.declared) == 1 else (key, item)
            for name, part in zip(pipe.declared, pair, strict=False):
                self.store(name, part, pipe.assigns)
            jump = self.write_nodes(node.body, item)
            del self.variables[outside:]
            if jump == "break":
                break
        jump = "" if entered else self.write_nodes(node.otherwise, dot)
        return "" if jump == "break" else jump

    def pipe(self, pipe: Pipe, dot: object) -> object:
        """Evaluate a pipe and store its value in all variables that it declares."""
        self.budget.enter()
        value: object = _NOTHING
        for command in pipe.commands:
            self.position = command.position
            value = self.command(command, dot, value)
        for name in pipe.declared:
            self.store(name, value, pipe.assigns)
        self.budget.leave()
        return value

    def store(self, name: str, value: object, assigns: bool) -> None:
        """Declare a variable, or change the innermost one of that name."""
        if assigns:
            self.variables[self.place(name)] = (name, value)
        else:
            self.variables.append((name, value))

    def place(self, name: str) -> int:
        for at in range(len(self.variables) - 1, -1, -1):
            if self.variables[at][0] == name:
                self.budget.step((len(self.variables) - at) // SEARCHED)
                return at
        raise TemplateProblem(f"expected a variable that has a value, found {name}")

    def command(self, command: Command, dot: object, final: object) -> object:
        """Evaluate a command; `final` is the value of the previous one."""
        first, *rest = command.operands
        if isinstance(first, Function):
            return self.call(first.name, tuple(rest), dot, final)
        if rest or final is not _NOTHING:
            raise TemplateProblem("expected a function in front of an argument, found a value")
        if isinstance(first, Nil):
            raise TemplateProblem("expected a value, found nil")
        return self.operand(first, dot)

    def operand(self, operand: Operand, dot: object) -> object:
        self.budget.step()
        match operand:
            case Dot():
                return dot
            case Nil():
                return None
            case Literal(value):
                return value
            case Field(names):
                return self.fields(dot, names)
            case Variable(name, names):
                return self.fields(self.variables[self.place(name)][1], names)
            case Function(name):
                return self.call(name, (), dot, _NOTHING)
            case Chain(inner, names):
                return self.fields(self.operand(inner, dot), names)
        return self.pipe(operand, dot)

    def fields(self, value: object, names: tuple[str, ...]) -> object:
        for name in names:
            value = field(value, name)
        return value

    def call(self, name: str, operands: tuple[Operand, ...], dot: object, final: object) -> object:
        """Call a function; the value of the previous command is the last argument."""
        function, position = self.functions[name], self.position
        count = len(operands) + (final is not _NOTHING)
        if count < function.least or (function.most is not None and count > function.most):
            most = "or more" if function.most is None else f"to {function.most}"
            expected = f"{function.least} {most} arguments for {name}"
            raise TemplateProblem(f"expected {expected}, found {count}")
        values = []
        for operand in operands:
            value = self.operand(operand, dot)
            if name in LAZY and is_true(value) == (name == "or"):
                return value
            values.append(value)
        if final is not _NOTHING:
            values.append(final)
        self.position = position
        for value in values:
            if isinstance(value, str | list | tuple):
                self.budget.step(len(value) >> _LONG)
        return function.call(values, self.budget)
