"""Context: what the parts of one schema share: the grammar, and whether all must be enforced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ngramspec.text.structured.automaton import Automaton, TooLargeError, of_tree
from ngramspec.text.structured.errors import GrammarError
from ngramspec.text.structured.gbnf import Rules
from ngramspec.text.structured.json_pattern import pattern_tree
from ngramspec.text.structured.regular import Chars, Choice, Regular, Repeat, Row


@dataclass(frozen=True)
class Context:
    """Where a schema's rules go.

    rules: The grammar.
    strict: Refuse what the grammar cannot enforce, instead of leaving it out.
    """

    rules: Rules
    strict: bool = False
    _automata: dict[Regular, Automaton | None] = field(default_factory=dict)
    _patterns: dict[Any, Regular] = field(default_factory=dict)

    def automaton(self, tree: Regular) -> Automaton:
        """Return the texts of a tree; it is made once.

        Raises:
            TooLargeError: It would have too many states.
        """
        if tree not in self._automata:
            self._automata[tree] = None
            self._automata[tree] = of_tree(tree, self.rules.spend)
        automaton = self._automata[tree]
        if automaton is None:
            raise TooLargeError
        return automaton

    def pattern(self, pattern: Any) -> Regular:
        """Return the texts that a pattern matches; it is read once. A tree is taken as it is.

        Raises:
            GrammarError: It is not a pattern that a grammar can express.
        """
        if isinstance(pattern, (Chars, Row, Choice, Repeat)):
            return pattern
        if pattern not in self._patterns:
            self._patterns[pattern] = pattern_tree(pattern)
        return self._patterns[pattern]

    def cannot(self, keyword: str, reason: str = "cannot be enforced") -> None:
        """Leave a keyword out.

        Raises:
            GrammarError: The request is strict.
        """
        if self.strict:
            raise GrammarError(f"{keyword} {reason}; leave it out, or ask without strict")


class NothingError(GrammarError):
    """No value fits a schema. An alternative like this is left out."""
