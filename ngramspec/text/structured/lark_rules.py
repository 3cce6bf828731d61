"""Rules: a grammar under construction, in Lark as llguidance reads it, and the parts of its rules.

llguidance divides a text into terminals, each as long as it can be. So a text that ends with a mark
is one terminal together with the mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from ngramspec.errors import GrammarError
from ngramspec.text.structured.chains import longest_chain
from ngramspec.text.structured.guidance import (
    MARK,
    MAX_CHAIN,
    MAX_CHARS,
    MAX_LITERALS,
    MAX_RULES,
    GrammarText,
    problem_of,
)

MAX_STEPS = 100_000  # parts of schemas that are visited or copied
ANY = "/(?s:.*)/"  # any text, the empty one too
SOME = "/(?s:.+)/"
BLANK = r"/[ \t\n]*/"
P = TypeVar("P", covariant=True)  # what a part may hold
_TOKEN = re.compile(
    r'(?P<literal>"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/)|%json .*|(?P<name>[A-Za-z][\w-]*)'
    r"|(?P<open>\()|(?P<close>\))"
)


@dataclass(frozen=True)
class Name:
    """A rule."""

    text: str


@dataclass(frozen=True)
class Row(Generic[P]):
    """Parts one after the other."""

    parts: tuple[P, ...]


@dataclass(frozen=True)
class Either(Generic[P]):
    """One of several parts."""

    parts: tuple[P, ...]


@dataclass(frozen=True)
class Times(Generic[P]):
    """A part between `low` and `high` times; None = any number of times."""

    part: P
    low: int
    high: int | None


@dataclass(frozen=True)
class Source:
    """What is Lark already: a regular expression between slashes, or a schema."""

    text: str


# A str is a text as it is.
Part: TypeAlias = "str | Source | Name | Row[Part] | Either[Part] | Times[Part]"
NOTHING = ""  # the empty text


def row(*parts: Part) -> Part:
    """Return parts one after the other; texts beside each other become one."""
    joined: list[Part] = []
    for part in parts:
        for one in part.parts if isinstance(part, Row) else (part,):
            last = joined[-1] if joined else None
            if isinstance(one, str) and isinstance(last, str):
                joined[-1] = last + one
            elif one != NOTHING:
                joined.append(one)
    return joined[0] if len(joined) == 1 else Row(tuple(joined)) if joined else NOTHING


def either(*parts: Part) -> Part:
    different = tuple(dict.fromkeys(parts))
    return different[0] if len(different) == 1 else Either(different)


def optional(part: Part) -> Part:
    return Times(part, 0, 1)


def many(part: Part) -> Part:
    """Return a part any number of times."""
    return Times(part, 0, None)


def regex(pattern: str) -> Source:
    """Return the texts of a regular expression in the syntax of Rust's crate regex."""
    return Source("/" + re.sub(r"(\\.)|/", lambda one: one[1] or r"\/", pattern) + "/")


def literal(text: str) -> str:
    """Return a text as a literal of Lark, which are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def counted(low: int, high: int | None) -> str:
    """Return what Lark has behind a part that comes between `low` and `high` times."""
    usual = {(0, 1): "?", (0, None): "*", (1, None): "+", (1, 1): ""}
    return usual.get((low, high), f"{{{low},{'' if high is None else high}}}")


class Rules:
    """Named rules; equal names get a number.

    All schemas of one grammar share its bounds: rules, characters, literals, and steps of
    conversion.
    """

    def __init__(self) -> None:
        self._parts: dict[Name, Part] = {}
        # By name: how deep its groups are in one another, and the names in it.
        self._links: dict[str, tuple[int, list[str]]] = {}
        self._lines: list[str] = []
        self._terminals: dict[str, str] = {}
        self._texts: dict[tuple[str, str], Name] = {}  # up to a mark
        self._num_rules = self._num_chars = self._num_literals = self._num_steps = 0

    def spend(self, steps: int) -> None:
        """Take some of the steps that the conversion can take.

        Raises:
            GrammarError: None are left.
        """
        self._num_steps += steps
        if self._num_steps > MAX_STEPS:
            raise GrammarError(
                f"the schema has more than {MAX_STEPS} parts, repeated ones included"
            )

    def reserve(self, name: str) -> Name:
        """Return a free name like `name`, for a rule that is set later.

        Raises:
            GrammarError: The grammar has too many rules.
        """
        self._num_rules += 1
        if self._num_rules > MAX_RULES:
            raise GrammarError(f"the grammar would have more than {MAX_RULES} rules")
        return Name(f"{name}-{self._num_rules}")

    def set(self, name: Name, part: Part) -> Name:
        """Set a reserved rule and return its name.

        Raises:
            GrammarError: The grammar has too many characters.
        """
        self._parts[name] = part
        self._line(name.text, _written(part))
        return name

    def add(self, name: str, part: Part) -> Name:
        return self.set(self.reserve(name), part)

    def terminal(self, name: str, source: str) -> str:
        """Add a terminal written in Lark and return its name; equal ones are added once."""
        if source not in self._terminals:
            self._terminals[source] = self.reserve(name).text.upper()
            self._line(self._terminals[source], source)
        return self._terminals[source]

    @property
    def anything(self) -> Part:
        """Return any text, which ends where a terminal beside it does."""
        return Source(self.terminal("any", ANY))

    def until(self, mark: str, before: str = ANY) -> Name:
        """Return any text that ends with the first mark in it; `before`: regex of what is before.

        Raises:
            GrammarError: The grammar becomes too large.
        """
        key = mark, before
        if key not in self._texts:
            name = self._texts[key] = self.reserve("until")
            text = f"{self.terminal('text', before)} {literal(mark)}"
            self._line(name.text, text, "[lazy]")
        return self._texts[key]

    def fenced(self, source: str, end: str, mark: str) -> Part:
        """Return the texts of a terminal in which no mark is, up to and with `end`.

        source: A terminal, written in Lark.
        end: It ends with the mark.
        """
        whole = f"({source} {literal(end)})"
        beyond = f"({self.terminal('any', ANY)} {literal(mark)} {SOME})"
        return Source(self.terminal("text", f"{whole} & {self.terminal('any', ANY)} & ~{beyond}"))

    def begun(self, marks: Collection[str], first: Collection[str], part: Part) -> list[Part]:
        """Return texts that go on with a part from a mark in them on, whatever is before it.

        marks: What the part can begin with.
        first: The same, with nothing but whitespace before it.
        """
        parts = []
        for before, some in ((ANY, marks), (BLANK, first)):
            for mark in some:
                rests = [rest for left, rest in self._after(part, mark) if not left]
                if rests:
                    parts.append(row(self.until(mark, before), either(*rests)))
        return parts

    def _after(self, part: Part, text: str) -> Iterator[tuple[str, Part]]:
        """Yield what is left of the text and the part where they begin alike; one is used up."""
        if not text:
            yield text, part
        elif isinstance(part, str):
            if part.startswith(text):
                yield "", part[len(text) :]
            elif text.startswith(part):
                yield text[len(part) :], NOTHING
        elif isinstance(part, Name) and part in self._parts:
            yield from self._after(self._parts[part], text)
        elif isinstance(part, Either):
            for one in part.parts:
                yield from self._after(one, text)
        elif isinstance(part, Times):
            yield text, NOTHING
            for left, rest in self._after(part.part, text):
                yield left, row(rest, part) if part.high is None else rest
        elif isinstance(part, Row):
            first, others = part.parts[0], row(*part.parts[1:])
            for left, rest in self._after(first, text):
                if left:
                    yield from self._after(others, left)
                else:
                    yield left, row(rest, others)

    def _line(self, name: str, text: str, attributes: str = "") -> None:
        """Add a line, and what its bounds need.

        Raises:
            GrammarError: The grammar has too many characters, or literals.
        """
        self._num_chars += len(name) + len(text)
        if self._num_chars > MAX_CHARS:
            raise GrammarError(f"the grammar would have more than {MAX_CHARS} characters")
        self._lines.append(f"{name}{attributes}: {text}")
        depth, deepest, names = 0, 0, list[str]()
        for match in _TOKEN.finditer(text):
            if match.lastgroup == "name":
                names.append(match.group())
            elif match.lastgroup == "literal":
                self._num_literals += 1
            elif match.lastgroup:
                depth += 1 if match.lastgroup == "open" else -1
                deepest = max(deepest, depth)
        self._links[name] = 1 + deepest, names
        if self._num_literals > MAX_LITERALS:
            raise GrammarError(f"the grammar would have more than {MAX_LITERALS} literals")

    def grammar(self, root: Part, field: str = "") -> GrammarText:
        """Return the grammar with the given part as its root; field: what it was made of.

        Raises:
            GrammarError: llguidance does not take it: it becomes too large.
        """
        self._line("start", _written(root))
        if longest_chain(self._links) > MAX_CHAIN:
            raise GrammarError(
                f"the rules of the grammar lead deeper than {MAX_CHAIN}", field or None
            )
        text = GrammarText("\n".join([f"{MARK} {{}}", *self._lines, ""]))
        text.field = field
        if reason := problem_of(text):
            raise GrammarError(f"the grammar cannot be enforced: {reason}", field or None)
        return text


def _written(part: Part) -> str:
    if isinstance(part, str):
        return literal(part)
    if isinstance(part, Either):
        return " | ".join(map(_written, part.parts))
    if isinstance(part, Row):
        return " ".join(
            _grouped(one) if isinstance(one, Either) else _written(one) for one in part.parts
        )
    if isinstance(part, Times):
        return f"{_grouped(part.part)}{counted(part.low, part.high)}"
    return part.text


def _grouped(part: Part) -> str:
    text = _written(part)
    return text if isinstance(part, (str, Name)) else f"({text})"


def in_order(rules: Rules, parts: Sequence[tuple[Part, bool]], between: Part) -> Part:
    """Return the parts in their order with something between, some of them optional.

    Args:
        rules: The grammar.
        parts: Each with whether it is required.
        between: What stands between two.

    Cost: two rules for each part, nested as deep as the logarithm of their number.
    """
    if not parts:
        return NOTHING
    some = _some_in_order(rules, parts, between)
    return some if any(needed for _, needed in parts) else optional(some)


def _some_in_order(rules: Rules, parts: Sequence[tuple[Part, bool]], between: Part) -> Part:
    """Return what in_order does, with at least one part."""
    if len(parts) == 1:
        return parts[0][0]
    halves = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    one, other = (_some_in_order(rules, half, between) for half in halves)
    free = [not any(needed for _, needed in half) for half in halves]
    alternatives = [row(one, between, other)]
    alternatives += [one] if free[1] else []
    alternatives += [other] if free[0] else []
    return rules.add("members", either(*alternatives))
