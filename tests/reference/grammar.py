"""A slow grammar: every way to read a text is a stack of its own; the reference for Matcher.

A grammar is a list of rules, the root first. A rule is one of these:
    ("chars", set of characters, negated), ("token", id, negated), ("rule", number),
    ("all", nodes), ("one", nodes), ("repeat", node, least, most or None).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

MOST_STACKS = 30_000  # in all
Node = tuple[Any, ...]
Stack = tuple[Node, ...]  # what comes next is last


class TooManyStacksError(Exception):
    """The grammar has more ways to go on than this can follow."""


def gbnf(rules: Sequence[Node]) -> str:
    """Return the grammar in GBNF."""
    lines = [f"{'root' if i == 0 else f'r{i}'} ::= {_text(rule)}" for i, rule in enumerate(rules)]
    return "\n".join(lines)


def _text(node: Node) -> str:
    kind, value = node[:2]
    if kind == "chars":
        return f"[{'^' if node[2] else ''}{''.join(sorted(value))}]"
    if kind == "token":
        return f"{'!' if node[2] else ''}<[{value}]>"
    if kind == "rule":
        return f"r{value}" if value else "root"
    if kind in ("all", "one"):
        return f"({(' ' if kind == 'all' else ' | ').join(map(_text, value))})"
    most = "" if node[3] is None else node[3]
    return f"({_text(value)}){{{node[2]},{most}}}"


class SlowMatcher:
    """Follows a text, token by token."""

    def __init__(self, rules: Sequence[Node], texts: Sequence[bytes], ends: Sequence[bool]) -> None:
        self.rules, self.texts, self.ends = rules, texts, ends
        self._seen = 0  # stacks, in all closures
        self._ending: set[int] = set()  # rules that can be completed
        for _ in rules:
            self._ending |= {i for i, rule in enumerate(rules) if self._can_end(rule)}
        # With the bytes of a character that has begun.
        self.now = {(stack, b"") for stack in self._heads([(rules[0],)])}

    @property
    def may_end(self) -> bool:
        return ((), b"") in self.now

    def allows(self, token: int) -> bool:
        return self.may_end if self.ends[token] else bool(self._after(token))

    def accept(self, token: int) -> None:
        if not self.ends[token]:
            self.now = self._after(token)

    def _after(self, token: int) -> set[tuple[Stack, bytes]]:
        asked = {
            (after, b"")
            for stack, begun in self.now
            if not begun and stack and stack[-1][0] == "token"
            if (stack[-1][1] == token) != stack[-1][2]
            for after in self._heads([stack[:-1]])
        }
        now = self.now if self.texts[token] and 0 not in self.texts[token] else set()
        for byte in self.texts[token]:
            now = {
                after
                for stack, begun in now
                if stack and stack[-1][0] == "chars"
                for after in self._read(stack, begun + bytes([byte]))
            }
        return now | asked

    def _read(self, stack: Stack, begun: bytes) -> set[tuple[Stack, bytes]]:
        _, chars, negated = stack[-1]
        try:
            char = begun.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                return set()
            # A class of a few characters cannot exclude all that begin with the same bytes.
            fits = negated or any(one.encode().startswith(begun) for one in chars)
            return {(stack, begun)} if fits else set()
        if (char in chars) == negated:
            return set()
        return {(after, b"") for after in self._heads([stack[:-1]])}

    def _can_end(self, node: Node) -> bool:
        kind, value = node[:2]
        if kind == "rule":
            return value in self._ending
        if kind in ("all", "one"):
            return (all if kind == "all" else any)(map(self._can_end, value))
        return kind != "repeat" or node[2] == 0 or self._can_end(value)

    def _heads(self, stacks: Iterable[Stack]) -> set[Stack]:
        """Return the stacks with characters or tokens on top."""
        todo, seen = list(stacks), set()
        while todo:
            stack = todo.pop()
            while stack and stack[-1][0] == "repeat" and stack[-1][3] == 0:
                stack = stack[:-1]  # else a rule that ends with itself would leave more each time
            if stack in seen or not all(map(self._can_end, stack)):
                continue
            seen.add(stack)
            self._seen += 1
            if self._seen > MOST_STACKS:
                raise TooManyStacksError
            kind, value = stack[-1][:2] if stack else ("", None)
            below = stack[:-1]
            if kind == "rule":
                todo.append((*below, self.rules[value]))
            elif kind == "all":
                todo.append((*below, *reversed(value)))
            elif kind == "one":
                todo += [(*below, one) for one in value]
            elif kind == "repeat":
                least, most = stack[-1][2:]
                more = ("repeat", value, max(0, least - 1), None if most is None else most - 1)
                todo.append((*below, value) if most == 1 else (*below, more, value))
                if least == 0:
                    todo.append(below)
        return {stack for stack in seen if not stack or stack[-1][0] in ("chars", "token")}
