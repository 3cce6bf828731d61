"""Objects: members in the schema's order, then others, with what their names and number must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ngramspec.text.structured import automaton as automata
from ngramspec.text.structured.automaton import Automaton, TooLargeError
from ngramspec.text.structured.context import Context, NothingError
from ngramspec.text.structured.gbnf import MAX_NAME, json_literal, literal
from ngramspec.text.structured.json_merge import Merger
from ngramspec.text.structured.json_string import bounds_of, fits, string_automaton
from ngramspec.text.structured.json_value import listed
from ngramspec.text.structured.regular import ANY_TEXT

COMMA = ' space "," space '
MAX_STATES = 500  # of the members of one object that are counted
_DEPENDENT = "dependentRequired"
_HALF = MAX_NAME // 2
Schema = Mapping[str, Any]
Visit = Callable[[Any, str], str]


def object_text(schema: Schema, context: Context, merger: Merger, name: str, visit: Visit) -> str:
    """Return GBNF for the objects of a schema.

    Args:
        schema: The schema, without allOf, anyOf and $ref.
        context: The grammar.
        merger: Merges schemas that hold for the same member.
        name: Name of the rule.
        visit: Returns a rule for a schema, given a name.

    Raises:
        GrammarError: A keyword is not valid, or cannot be enforced in a strict request.
        NothingError: No object fits.
    """
    return _Object(schema, context, merger, name, visit).text()


@dataclass
class _Object:
    schema: Schema
    context: Context
    merger: Merger
    name: str
    visit: Visit
    members: list[str] = field(default_factory=list)  # rules, in order
    names: list[str] = field(default_factory=list)  # of these members
    required: set[str] = field(default_factory=set)

    def text(self) -> str:
        """Return GBNF for the object."""
        properties = self._properties()
        self.required = set(self.schema.get("required", ()))
        for key, value in properties.items():
            try:
                member = self._member(json_literal(key), value, f"{key[:_HALF]}")
            except NothingError:
                if key in self.required:
                    raise
                continue
            self.members.append(member)
            self.names.append(key)
        extra = self._extra(properties)
        inside = self._inside(extra)
        return f'"{{" space {inside} "}}"' if inside else '"{" space "}"'

    @property
    def _rest(self) -> Any:
        """Return the schema of members without one; beside `properties` there are none."""
        named = "properties" in self.schema or "patternProperties" in self.schema
        return self.schema.get("additionalProperties", not named)

    def _properties(self) -> dict[str, Any]:
        """Return all members with a known name, required ones without a schema included."""
        properties: Schema = self.schema.get("properties", {})
        missing = [key for key in self.schema.get("required", ()) if key not in properties]
        rest = self.schema.get("additionalProperties", True)
        patterns = self.schema.get("patternProperties", {})
        if missing and rest is False and not patterns:
            raise NothingError(f"{missing[0]!r:.80} is required and not one of the properties")
        members = {}
        for key in (*properties, *missing):
            self.context.rules.spend(1 + len(patterns))
            value, has_schema = properties.get(key, True), key in properties
            for pattern, part in patterns.items():
                if self._is_like(key, pattern):
                    value, has_schema = self.merger.both(value, part), True
            members[key] = value if has_schema else rest
            if not self._may_be_named(key):
                members[key] = False
        return members

    def _is_like(self, key: str, pattern: str) -> bool:
        return self._known(lambda: fits(key, {"pattern": pattern}, self.context))

    def _may_be_named(self, key: str) -> bool:
        rule = self.schema.get("propertyNames", True)
        if rule is True or rule is False:
            return rule is True
        self._check_names(rule)
        names = [name for name in rule.get("enum", [rule.get("const", key)]) if name == key]
        return bool(names) and self._known(lambda: listed(key, rule, self.context))

    def _check_names(self, rule: Schema) -> None:
        for word in rule:
            if word not in _NAME_WORDS:
                self.context.cannot(f"{word} in propertyNames")

    def _known(self, check: Callable[[], bool]) -> bool:
        try:
            return check()
        except TooLargeError:
            self.context.cannot("a pattern of names", "would take too large a grammar")
            return True

    def _member(self, key: str, schema: Any, name: str) -> str:
        """Return a rule for a member; key: GBNF for its name, with quotes."""
        value = self.visit(schema, f"{self.name[:_HALF]}-{name}")
        rules = self.context.rules
        return rules.add(f"{self.name[:_HALF]}-{name}-member", f'{key} space ":" space {value}')

    def _extra(self, properties: Mapping[str, Any]) -> str | None:
        """Return a rule for a member with another name, None if there is none."""
        rest, patterns = self._rest, self.schema.get("patternProperties", {})
        if rest is False and not patterns:
            return None
        names = self.schema.get("propertyNames", True)
        if names is False:
            return None
        if not properties and not patterns and names is True:
            return self._one_extra(self.context.rules.primitive("string"), rest)
        try:
            kinds = self._kinds(list(properties), list(patterns), names)
        except TooLargeError:
            self.context.cannot("additionalProperties", "would take too large a grammar here")
            return self._one_extra(self.context.rules.primitive("string"), rest)
        parts = []
        for kind, key in kinds:
            value = True if kind else rest
            for number, part in enumerate(patterns.values()):
                if kind >> number & 1:
                    value = self.merger.both(value, part)
            if (member := self._one_extra(key, value)) is not None:
                parts.append(member)
        if len(parts) < 2:
            return parts[0] if parts else None
        return self.context.rules.add(f"{self.name}-more", " | ".join(parts))

    def _one_extra(self, key: str, schema: Any) -> str | None:
        if schema is False:
            return None
        try:
            return self._member(key, schema, "more")
        except NothingError:
            return None

    def _kinds(self, declared: list[str], patterns: list[str], names: Any) -> list[tuple[int, str]]:
        """Return kinds of names that are not known: the patterns that hold, as bits, and GBNF."""
        spend, rules = self.context.rules.spend, self.context.rules
        parts = [self.context.automaton(self.context.pattern(pattern)) for pattern in patterns]
        parts.append(automata.of_words(declared, spend))
        parts.append(self._names(names))
        whole = automata.product(parts, spend, together=False)
        taken, allowed = 1 << len(patterns), 2 << len(patterns)
        kinds = sorted({m & (taken - 1) for m in whole.ends if m & allowed and not m & taken})
        keys = []
        for kind in kinds:
            own = whole.only(lambda mask, kind=kind: mask == kind | allowed, spend)  # type: ignore[misc]
            quote = literal('"')
            text = automata.gbnf(own, rules, f"{self.name[:_HALF]}-name")
            keys.append((kind, rules.add(f"{self.name}-name", f"{quote} {text} {quote}")))
        return keys

    def _names(self, rule: Any) -> Automaton:
        spend = self.context.rules.spend
        if rule is True:
            return self.context.automaton(ANY_TEXT)
        self._check_names(rule)
        words = rule.get("enum", [rule["const"]] if "const" in rule else None)
        if words is not None:
            good = [w for w in words if isinstance(w, str) and listed(w, rule, self.context)]
            return automata.of_words(good, spend)
        return string_automaton(rule, self.context)

    def _inside(self, extra: str | None) -> str:
        low, high = bounds_of(self.schema, "minProperties", "maxProperties")
        needs = self._needs(extra)
        if low <= len(self.required):
            low = 0
        if high is not None and extra is None and high >= len(self.members):
            high = None
        if not low and high is None and not needs:
            return self._members(extra)
        if extra is not None and low > 1 + len(self.required):
            # a name can come twice, which is then one member
            self.context.cannot("minProperties", "cannot be enforced for names that are free")
        try:
            return _Counted(self, extra, low, high, needs).text()
        except TooLargeError:
            words = [w for w in ("minProperties", "maxProperties", _DEPENDENT) if w in self.schema]
            self.context.cannot(" and ".join(words), "would take too large a grammar")
            return self._members(extra)

    def _needs(self, extra: str | None) -> dict[str, frozenset[str]]:
        """Return the members that each member needs beside it."""
        needs = {key: frozenset(names) for key, names in self.schema.get(_DEPENDENT, {}).items()}
        own = frozenset(self.names)
        if extra is not None and not frozenset(needs).union(*needs.values()) <= own:
            self.context.cannot(_DEPENDENT, "needs its names in properties")
            needs = {key: names & own for key, names in needs.items()}
        return {key: names for key, names in needs.items() if key in own and names}

    def _members(self, extra: str | None) -> str:
        """Return the inside of an object: members in order, each optional member present or not."""
        rules = self.context.rules
        members = list(zip(self.members, (n in self.required for n in self.names), strict=True))
        tail = f"({COMMA}{extra})*" if extra else ""
        first = next((i for i, (_, needed) in enumerate(members) if needed), None)
        if first is not None:
            parts = [f"({member}{COMMA})?" for member, _ in members[:first]]
            parts.append(members[first][0])
            for member, needed in members[first + 1 :]:
                parts.append(f"{COMMA}{member}" if needed else f"({COMMA}{member})?")
            return " ".join([*parts, tail, "space"])
        if not members and not extra:
            return ""
        # Without a required member any can be the first: make a rule for what can follow each.
        rest = rules.add(f"{self.name}-rest", tail)
        starts = [f"{extra} {rest}"] if extra else []
        for member, _ in reversed(members):
            starts.append(f"{member} {rest}")
            rest = rules.add(f"{self.name}-rest", f"({COMMA}{member})? {rest}")
        return f"(({' | '.join(reversed(starts))}) space)?"


_NAME_WORDS = frozenset(
    ("type", "pattern", "minLength", "maxLength", "format", "enum", "const", "title", "description")
)


class _State(NamedTuple):
    """What matters of the members so far.

    number: How many there are, no more than tells apart what can follow.
    needed, banned: Names that must and must not come yet.
    """

    number: int
    needed: frozenset[str]
    banned: frozenset[str]


class _Counted:
    """Members whose number matters, or which need one another: a rule for each way to go on."""

    def __init__(
        self,
        whole: _Object,
        extra: str | None,
        low: int,
        high: int | None,
        needs: Mapping[str, frozenset[str]],
    ) -> None:
        self._whole = whole
        self._rules = whole.context.rules
        self._extra = extra
        self._low = low
        self._high = high
        self._needs = needs

    def text(self) -> str:
        """Return the inside of the object.

        Raises:
            NothingError: No object fits.
            TooLargeError: There are more than MAX_STATES ways to go on.
        """
        names = self._whole.names
        impossible = {n for n, needs in self._needs.items() if not needs <= frozenset(names)}
        start = _State(0, frozenset(self._whole.required), frozenset(impossible))
        layers = [[start]]
        for at in range(len(names)):
            states = dict.fromkeys(to for state in layers[-1] for _, to in self._moves(at, state))
            layers.append(list(states))
            self._rules.spend(len(states))
            if sum(map(len, layers)) > MAX_STATES:
                raise TooLargeError
        rests = {state: self._end(state.number) for state in layers.pop()}
        for at in reversed(range(len(names))):
            rests = {state: self._rule(at, state, rests) for state in layers.pop()}
        if rests[start] is None:
            raise NothingError("no object has as many members as a schema asks for")
        return f"{rests[start]} space"

    def _moves(self, at: int, state: _State) -> list[tuple[bool, _State]]:
        """Return what can follow: whether the next member is there, and the state after it."""
        name, later = self._whole.names[at], frozenset(self._whole.names[at + 1 :])
        needs, moves = self._needs.get(name, frozenset()), []
        if name not in state.banned and (self._high is None or state.number < self._high):
            most = max(self._low, 1) if self._high is None else state.number + 1
            needed = (state.needed - {name}) | (needs & later)
            if not needed & state.banned:
                moves.append((True, _State(min(state.number + 1, most), needed, state.banned)))
        if name not in state.needed:
            users = {user for user, others in self._needs.items() if name in others} & later
            if not users & state.needed:
                banned = (state.banned - {name}) | users
                moves.append((False, state._replace(banned=banned)))
        return moves

    def _rule(self, at: int, state: _State, rests: Mapping[_State, str | None]) -> str | None:
        """Return a rule for the members from one on, None if they cannot be."""
        comma, member = COMMA if state.number else "", self._whole.members[at]
        parts = []
        for there, to in self._moves(at, state):
            if (rest := rests[to]) is not None:
                parts.append(f"{comma}{member} {rest}" if there else rest)
        return self._rules.add(f"{self._whole.name}-rest", " | ".join(parts)) if parts else None

    def _end(self, number: int) -> str | None:
        """Return a rule for the members with other names."""
        least = max(0, self._low - number)
        most = None if self._high is None else self._high - number
        name = f"{self._whole.name}-rest"
        if self._extra is None or most == 0:
            return None if least else self._rules.add(name, '""')
        following = self._rules.add(f"{self._whole.name}-next", f"{COMMA}{self._extra}")
        if number:
            return self._rules.add(name, self._rules.repeated(following, least, most))
        more = None if most is None else most - 1
        text = f"{self._extra} {self._rules.repeated(following, max(0, least - 1), more)}"
        return self._rules.add(name, text if least else f"({text})?")
