"""Sandbox: Jinja's sandbox with a budget, because model files bring their own chat templates.

Jinja's sandbox keeps templates away from Python's internals and limits ranges to 100,000. Here,
everything that repeats takes steps of a budget, and everything that makes text takes characters.
Where llama.cpp's own Jinja forgives what Python's does not (members of what is undefined, texts
joined with nothing, appending to lists), this one does so too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import threading
from collections.abc import Callable, Iterator
from string import Formatter
from types import GeneratorType
from typing import Any

from jinja2 import BaseLoader, ChainableUndefined, Environment, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup

from ngramspec.errors import InputError
from ngramspec.text.limits import Budget, RenderLimits

MAX_ARGUMENT = 100_000  # of a function or filter: widths, counts
MAX_INDENT = 100  # characters that a function or filter can put into every line
INDENTING = ("indent", "wordwrap", "tojson", "expandtabs")
CALL_STEPS = 2  # of a call, beside those of its arguments and its result: it takes 5 us
MAX_BITS = 4096  # of an integer that a template computes
MUTATING = ("append", "pop")  # methods of lists that templates may call
NOTHING: dict[str, type] = {  # what methods of something undefined return, when it is empty
    **dict.fromkeys(("capitalize", "join", "lower", "replace", "strip", "title", "upper"), str),
    **dict.fromkeys(("items", "list", "reverse", "sort"), list),
    "length": int,
}
MEMBERS = ("get", "items", "keys", "values")  # methods of objects; other names are keys
STRIPPING = ("strip", "lstrip", "rstrip")
BLANKS = " \t\n\v\f\r"  # what llama.cpp strips; Python strips the blanks of all scripts


SHALLOW = frozenset(  # filters that neither write what containers hold nor compare it
    ("batch", "count", "default", "first", "items", "last", "length", "list", "map", "reject",
     "rejectattr", "reverse", "select", "selectattr", "slice")
)  # fmt: skip
COMPARING = ("==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in",
             "le", "lessthan", "lt", "ne")  # fmt: skip
Container = (list, tuple, dict)
HIDDEN = (Context, EvalContext, Environment)  # what Jinja gives some filters and tests first
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


class Generator(CodeGenerator):
    """Writes code in which rounds of loops and bodies of macros take from the budget."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """Count rounds."""
        self._counted(node)
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        """Count calls."""
        self._counted(node)
        super().visit_Macro(node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:
        """Count calls."""
        self._counted(node)
        super().visit_CallBlock(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Count characters."""
        self.visit(self.call("joined", node.nodes), frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Count what is compared, unless it is with a constant."""
        if len(node.ops) > 1:
            bare = [nodes.Operand(part.op, self._bare(part.expr)) for part in node.ops]
            node = nodes.Compare(self._bare(node.expr), bare)
            node.set_environment(self.environment)
        elif not any(isinstance(part, nodes.Const) for part in (node.expr, node.ops[0].expr)):
            (part,) = node.ops
            compared = self.call("compared", [nodes.Const(part.op), node.expr, part.expr])
            self.visit(compared, frame)
            return
        super().visit_Compare(node, frame)

    def _bare(self, node: nodes.Expr) -> nodes.Expr:
        return self.call("bare", [node])

    def _counted(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> None:
        """Let the body begin by taking a step, and the characters of its literal text."""
        size = sum(len(part.data) for part in node.find_all(nodes.TemplateData))
        spent = nodes.ExprStmt(self.call("spend", [nodes.Const(size)]))
        spent.set_environment(self.environment)
        node.body.insert(0, spent)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        """Call the sandbox's own methods directly, and a template's functions through `call`."""
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Check keys."""
        pairs = [nodes.Pair(self._bare(pair.key), pair.value) for pair in node.items]
        mapping = nodes.Dict(pairs)
        mapping.set_environment(self.environment)
        super().visit_Dict(mapping, frame)

    def call(self, name: str, arguments: list[nodes.Expr]) -> nodes.Expr:
        node = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
        node.set_environment(self.environment)
        return node


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks answers for training, and keeps its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Undefined(ChainableUndefined):
    """What is not there: has no members, and is no text when it is joined with one."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return other if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return other if isinstance(other, str) else super().__radd__(other)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates have it, with a budget. Safe for several threads."""

    code_generator_class = Generator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        self._thread = threading.local()
        super().__init__(
            loader=BaseLoader(),
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self.written,
            undefined=_Undefined,
            extensions=[_Generation, loopcontrols],
        )
        del self.globals["lipsum"]  # writes any number of words
        self.filters["tojson"] = _to_json
        self.filters["default"] = self.filters["d"] = _default
        self.filters["trim"] = _trim
        self.filters["string"] = self.filters["safe"] = self._named  # nothing is escaped
        self.filters["items"] = _items
        self.filters = {name: self._bounded(name, call) for name, call in self.filters.items()}
        tests: dict[str, Any] = {**self.tests}
        self.tests = {name: self._counting(name, test) for name, test in tests.items()}

    @contextlib.contextmanager
    def limited(self, limits: RenderLimits) -> Iterator[None]:
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
        return self._budget.text("".join(map(self._text, values)))

    def written(self, value: Any) -> str:
        """Take the characters of a value that is written; return it as text.

        Nothing is written for None and objects, and the items of lists one after the other.
        """
        if isinstance(value, str):
            return self._budget.text(value)
        if isinstance(value, list | tuple):
            self._walk(value)
            return self._budget.text("".join(_flat(value)))
        return "" if value is None or isinstance(value, dict) else self._budget.text(str(value))

    def compared(self, operator: str, left: Any, right: Any) -> Any:
        """Return whether `left operator right`; containers are counted before."""
        for value in (left, right) if isinstance(left, Container) else ():
            self._walk(value)
        return COMPARISONS[operator](left, right)

    def bare(self, value: Any) -> Any:
        """Return a key or a value of a chain of comparisons, which must not be a container."""
        if isinstance(value, Container):
            raise InputError("the template uses a list or an object as a key or in a chain")
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item; a tuple is no key, as working out its hash may take for ever."""
        return super().getitem(obj, self.bare(argument))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return a member: keys of objects come before Python's methods.

        Quadratic templates read hardly anything but a namespace, which Jinja would ask for its
        class a dozen times. Its values were checked when the template got them.
        """
        if type(obj) is Namespace and not attribute.startswith("_"):
            with contextlib.suppress(AttributeError):
                return getattr(obj, attribute)
        if isinstance(obj, dict) and attribute not in MEMBERS and attribute in obj:
            return obj[attribute]
        if isinstance(obj, Undefined) and attribute in NOTHING:
            return lambda *_: NOTHING[attribute]()
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may use an attribute; lists may grow, step by step."""
        if attr in MUTATING and type(obj) is list:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse what is not safe at once, not when it is used."""
        raise SecurityError(f"access to {attribute!r} of {type(obj).__name__!r} is unsafe")

    def _text(self, value: Any) -> str:
        """Return the text of a value, "" for nothing; containers are counted before."""
        if isinstance(value, Container):
            self._walk(value)
        return "" if value is None else str(value)

    def _named(self, value: Any) -> str:
        return "None" if value is None else self._text(value)

    def _walk(self, value: Any) -> None:
        """Take a step for each part of a container, as often as it occurs.

        A list may hold another one many times over, or itself, so that its text would be endless.
        """
        left = [value]
        while left:
            part = left.pop()
            if isinstance(part, dict):
                self._budget.step(len(part))
                left += (inner for inner in part.values() if isinstance(inner, Container))
                left += (key for key in part if isinstance(key, tuple))
            elif isinstance(part, Container):
                self._budget.step(len(part))
                left += (inner for inner in part if isinstance(inner, Container))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self._budget.step(CALL_STEPS)
        __self._check_arguments(args, kwargs)
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if not isinstance(__obj, Macro):
            __self._walk(args)
        if isinstance(owner, list | tuple) and name not in MUTATING:
            __self._walk(owner)
        elif isinstance(owner, str):
            __self._check_method(owner, name, args)
            if name in STRIPPING and not args:  # Jinja's own arguments are in kwargs
                args = (BLANKS,)
        return __self._took(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, unless the result would be huge."""
        if operator == "+" and isinstance(left, str) != isinstance(right, str):
            return self._took(self._text(left) + self._text(right))
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (abs(right) if operator == "**" else 1)
            if bits + right.bit_length() > MAX_BITS:
                raise InputError(f"the template computes a number of more than {MAX_BITS} bits")
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, int) and hasattr(other, "__len__"):
                    self._budget.size(max(0, one) * len(other))
        elif operator == "+" and isinstance(left, Container) and isinstance(right, Container):
            self._budget.size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            self._walk((right,))
            self._check_widths(left)
            self._check_arguments(right if isinstance(right, tuple) else (right,), {})
        return self._took(super().call_binop(context, operator, left, right))

    @property
    def _budget(self) -> Budget:
        budget: Budget = self._thread.budget
        return budget

    def _took(self, value: Any) -> Any:
        """Take a step, and the characters of a value if it is a text; return it.

        Markup would escape what it is joined with; it becomes a plain text.
        """
        self._budget.step()
        if isinstance(value, str):
            return self._budget.text(str(value) if isinstance(value, Markup) else value)
        return value

    def _bounded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that takes from the budget."""

        @functools.wraps(call)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._check_arguments(args[1:], kwargs)
            values = [part for part in args if not isinstance(part, HIDDEN)]
            self.used_by(name, values)
            if name not in SHALLOW:
                self._walk(values)
            if name in INDENTING:
                self._check_indents(values[1:], kwargs)
            elif name == "join":
                self._check_join(values, kwargs)
            texts = [part for part in values if isinstance(part, str)]
            if texts:
                self._check_method(texts[0], name, texts[1:])
            result = call(*args, **kwargs)
            return self._took(list(result) if isinstance(result, GeneratorType) else result)

        return bounded

    def _counting(self, name: str, test: Callable[..., Any]) -> Callable[..., Any]:
        """Return a test that counts the containers that it compares."""

        @functools.wraps(test)
        def counting(*args: Any) -> Any:
            self.used_by(f"is {name}", [part for part in args if not isinstance(part, HIDDEN)])
            if name in COMPARING and isinstance(args[0], Container):
                self._walk(args)
            return test(*args)

        return counting

    def used_by(self, name: str, values: list[Any]) -> None:
        """Hear which filter or test reads a value; a subclass may want to know."""

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
            self._walk((*args, *kwargs.values()))
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
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    """Return the default for what is undefined or None, as llama.cpp does; Jinja keeps None."""
    missing = not value if boolean else value is None or isinstance(value, Undefined)
    return default_value if missing else value


def _items(value: Any) -> list[tuple[Any, Any]]:
    return [] if value is None or isinstance(value, Undefined) else list(value.items())


def _trim(value: Any, chars: str | None = None) -> str:
    return ("" if value is None else str(value)).strip(BLANKS if chars is None else chars)


def _flat(value: Any) -> Iterator[str]:
    """Yield the texts in a list, at any depth."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, list | tuple):
            left += reversed(part)
        elif part is not None and not isinstance(part, dict):
            yield str(part)


def _digits(text: str) -> Iterator[str]:
    return (char if char.isdigit() else " " for char in text)
