"""Sandbox: Jinja's sandbox with a budget, because model files bring their own chat templates.

Jinja's sandbox keeps templates away from Python's internals and limits ranges to 100,000. Here,
everything that repeats takes steps of a budget, and everything that makes text takes characters.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator
from string import Formatter
from typing import Any

from jinja2 import BaseLoader, Environment, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ngramspec.errors import InputError
from ngramspec.gotemplate import Budget, Limits

MAX_ARGUMENT = 100_000  # of a function or filter: widths, counts
MAX_INDENT = 100  # characters that a function or filter can put into every line
INDENTING = ("indent", "wordwrap", "tojson", "_to_json", "expandtabs")
MAX_BITS = 4096  # of an integer that a template computes


class _Generator(CodeGenerator):
    """Writes code in which rounds of loops and bodies of macros take from the budget."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._counted(node)
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        self._counted(node)
        super().visit_Macro(node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:
        self._counted(node)
        super().visit_CallBlock(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.visit(self._call("joined", node.nodes), frame)

    def _counted(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> None:
        """Let the body begin by taking a step, and the characters of its literal text."""
        size = sum(len(part.data) for part in node.find_all(nodes.TemplateData))
        spend = self._call("spend", [nodes.Const(size)])
        node.body.insert(0, nodes.ExprStmt(spend).set_environment(self.environment))

    def _call(self, name: str, arguments: list[nodes.Expr]) -> nodes.Node:
        called = nodes.EnvironmentAttribute(name)
        return nodes.Call(called, arguments, [], None, None).set_environment(self.environment)


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks answers for training, and keeps its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates have it, with a budget. Safe for several threads."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        self._thread = threading.local()
        super().__init__(
            loader=BaseLoader(),
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self.written,
            extensions=[_Generation, loopcontrols],
        )
        del self.globals["lipsum"]  # writes any number of words
        self.filters["tojson"] = _to_json
        self.filters = {name: self._bounded(call) for name, call in self.filters.items()}

    @contextlib.contextmanager
    def limited(self, limits: Limits) -> Iterator[None]:
        """Limit the templates that are rendered in the block, in this thread.

        A template that exceeds the limits raises InputError.
        """
        self._thread.budget = Budget(limits)
        try:
            yield
        finally:
            del self._thread.budget

    def spend(self, size: int) -> str:
        """Count a step and characters against the limits; return ""."""
        self._budget.step()
        self._budget.size(size)
        return ""

    def joined(self, *values: Any) -> str:
        """Return the texts of values as one: Jinja's `~`."""
        return self._budget.text("".join(map(str, values)))

    def written(self, value: Any) -> Any:
        """Take the characters of a value that is written; return it as text."""
        return self._budget.text(value if isinstance(value, str) else str(value))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function; every call is a step."""
        __self._check_arguments(args, kwargs)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            __self._check_method(owner, getattr(__obj, "__name__", ""), args)
        return __self._took(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, unless the result would be huge."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (abs(right) if operator == "**" else 1)
            if bits + right.bit_length() > MAX_BITS:
                raise InputError(f"the template computes a number of more than {MAX_BITS} bits")
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, int) and hasattr(other, "__len__"):
                    self._budget.size(max(0, one) * len(other))
        elif operator == "%" and isinstance(left, str):
            self._check_widths(left)
            self._check_arguments(right if isinstance(right, tuple) else (right,), {})
        return self._took(super().call_binop(context, operator, left, right))

    @property
    def _budget(self) -> Budget:
        budget: Budget = self._thread.budget
        return budget

    def _took(self, value: Any) -> Any:
        """Take a step, and the characters of a value if it is a text."""
        self._budget.step()
        return self._budget.text(value) if isinstance(value, str) else value

    def _bounded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that takes from the budget."""

        @functools.wraps(call)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._check_arguments(args[1:], kwargs)
            name = call.__name__.removeprefix("do_").removeprefix("sync_do_")
            hidden = (Context, EvalContext, Environment)  # what Jinja gives some filters first
            values = [part for part in args if not isinstance(part, hidden)]
            if name in INDENTING:
                self._check_indents(values[1:], kwargs)
            elif name == "join":
                self._check_join(values, kwargs)
            texts = [part for part in values if isinstance(part, str)]
            if texts:
                self._check_method(texts[0], name, texts[1:])
            return self._took(call(*args, **kwargs))

        return bounded

    def _check_method(self, text: str, name: str, args: Any) -> None:
        """Take the characters that a method of a text may make."""
        if name == "replace" and len(args) > 1 and isinstance(args[1], str):
            self._budget.size((text.count(str(args[0])) + 1) * len(args[1]))
        elif name == "join" and args and hasattr(args[0], "__len__"):
            self._budget.size(len(text) * len(args[0]))
        elif name in ("format", "format_map"):
            self._check_widths(text)
        elif name in INDENTING:
            self._check_indents(args, {})

    def _check_join(self, values: Any, kwargs: Any) -> None:
        """Take the characters that the filter `join` puts between items."""
        between = values[1] if len(values) > 1 else kwargs.get("d", "")
        if values and hasattr(values[0], "__len__"):
            self._budget.size(len(values[0]) * len(str(between)))

    def _check_indents(self, args: Any, kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            size = len(value) if isinstance(value, str) else value
            if isinstance(size, int) and size > MAX_INDENT:
                raise InputError(f"the template indents by more than {MAX_INDENT} characters")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return Jinja's safe form of str.format, which checks the layout first."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        @functools.wraps(safe)
        def checked(*args: Any, **kwargs: Any) -> str:
            self._check_widths(value.__self__)
            if any("{" in (spec or "") for _, _, spec, _ in Formatter().parse(value.__self__)):
                raise InputError("the template computes the width of a field")
            return safe(*args, **kwargs)

        return checked

    def _check_widths(self, layout: str) -> None:
        if any(len(digits) > 4 for digits in "".join(_digits(layout)).split()):
            raise InputError("the template writes a field that is too wide")

    def _check_arguments(self, args: Any, kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and abs(value) > MAX_ARGUMENT:
                raise InputError(f"the template gives a function a number above {MAX_ARGUMENT}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as chat templates expect it: not escaped for HTML, as Jinja's own is."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _digits(text: str) -> Iterator[str]:
    return (char if char.isdigit() else " " for char in text)
