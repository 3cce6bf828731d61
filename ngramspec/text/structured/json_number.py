"""Bounds and multiples of numbers as automata: every digit is checked as it is written.

Numbers with bounds are written without an exponent. Both bounds and values are exact decimals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from ngramspec.text.structured.automaton import (
    MAX_STATES,
    Automaton,
    Move,
    Spend,
    TooLargeError,
    explored,
)
from ngramspec.text.structured.errors import GrammarError

MAX_DIGITS = 16  # before the point where no bound asks for more, as in the rule `digits`
MAX_BOUND_DIGITS = 40  # before the point of a bound
MAX_STEP_DIGITS = 1000  # of a number that several steps have as a multiple
EXACT_DIGITS = 15  # that a float tells apart
MAX_FRACTION = 30  # digits behind the point
MAX_FACTORS = 20  # 2 or 5 in a step; what is beyond counts as another factor
MINUS = ord("-")
ZERO = Decimal(0)
_HOPELESS = 2 * MAX_STATES  # states that need not be explored to know that they are too many


@dataclass(frozen=True)
class Limits:
    """What a schema asks of a number; None = nothing.

    low, high: Bounds, with whether a number may be equal to it.
    step: What it must be a multiple of.
    """

    low: tuple[Decimal, bool] | None
    high: tuple[Decimal, bool] | None
    step: Fraction | None

    @property
    def is_sign(self) -> bool:
        """Tell whether they ask for no more than 0 or above."""
        return self.low == (ZERO, True) and self.high is None and self.step is None

    def allow(self, value: Fraction) -> bool:
        """Tell whether a number fits."""
        for bound, side in ((self.low, -1), (self.high, 1)):
            if bound is not None:
                over = (value - Fraction(bound[0])) * side
                if over > 0 or (over == 0 and not bound[1]):
                    return False
        return self.step is None or value % self.step == 0


def limits_of(schema: Mapping[str, Any]) -> Limits | None:
    """Return what a schema asks of a number, None if it asks for nothing.

    Raises:
        GrammarError: A bound is not a finite number, or multipleOf is not above 0.
    """
    low, high = _bound(schema, "minimum", -1), _bound(schema, "maximum", 1)
    step = step_of(schema)
    return None if low is None and high is None and step is None else Limits(low, high, step)


def step_of(schema: Mapping[str, Any]) -> Fraction | None:
    """Return a schema's multipleOf, None if it has none.

    Raises:
        GrammarError: It is not a finite number above 0.
    """
    multiple = schema.get("multipleOf")
    if isinstance(multiple, Fraction):  # made of several by allOf
        return multiple
    step = _number(schema, "multipleOf")
    if step is not None and step <= 0:
        raise GrammarError(f"multipleOf must be above 0, got {multiple!r:.80}")
    return None if step is None else Fraction(step)


def common_step(one: Fraction | None, other: Fraction | None) -> Fraction | None:
    """Return the least number that is a multiple of both steps; None is no step.

    Raises:
        GrammarError: It has more than MAX_STEP_DIGITS digits.
    """
    if one is None or other is None:
        return other if one is None else one
    whole = math.lcm(one.numerator, other.numerator)
    if whole >= 10**MAX_STEP_DIGITS:
        raise GrammarError(
            f"the multiples of all multipleOf together have more than {MAX_STEP_DIGITS} digits"
        )
    return Fraction(whole, math.gcd(one.denominator, other.denominator))


def exact(value: float) -> Fraction:
    """Return a finite number of JSON as its digits say it."""
    return Fraction(Decimal(repr(value))) if isinstance(value, float) else Fraction(value)


def number_automaton(limits: Limits, whole: bool, spend: Spend) -> Automaton:
    """Return the texts of the numbers within some limits; it is empty if there are none.

    Args:
        limits: The limits.
        whole: Only whole numbers, without a point.
        spend: As for `explored`.

    Raises:
        TooLargeError: The multiples take too many states.
    """
    below, above = _sides(limits, whole)
    if (
        max((side.least_states for side in (below, above) if side is not None), default=0)
        > _HOPELESS
    ):
        raise TooLargeError

    def side_of(state: _State | str) -> _Side | None:
        return below if state == "-" or (isinstance(state, _State) and state.below) else above

    def moves_of(state: _State | str) -> list[Move[_State | str]]:
        side = side_of(state)
        moves: dict[str, _State | None] = {}
        if side is not None and isinstance(state, _State):
            moves = side.moves(state)
        elif side is not None:
            moves = {str(digit): side.first(digit, bool(state)) for digit in range(10)}
        sign: list[Move[_State | str]] = [] if state or below is None else [(MINUS, MINUS, "-")]
        return [*sign, *((ord(char), ord(char), to) for char, to in moves.items() if to)]

    def ends_of(state: _State | str) -> int:
        side = side_of(state)
        return int(isinstance(state, _State) and side is not None and side.ends(state))

    start: _State | str = ""
    return explored(start, moves_of, ends_of, spend)


class _State(NamedTuple):
    """How far a number is written.

    below: It is below 0.
    point: It has its point; `places` are the digits behind it then, else those before it.
    low, high: How its digits compare with those of the bounds so far, as -1, 0 or 1.
    rest: What is left of all its digits as a whole number, divided by the step.
    zero: It is a 0, after which only a point can come.
    """

    below: bool
    point: bool
    places: int
    low: int
    high: int
    rest: int
    zero: bool = False


class _Edge(NamedTuple):
    """A bound's digits."""

    digits: str
    fraction: str
    included: bool


@dataclass(frozen=True)
class _Side:
    """Numbers of one sign, without it: between two bounds of 0 or more."""

    low: _Edge
    high: _Edge | None
    most_digits: int
    most_fraction: int
    step: int  # in the last place
    step_places: int
    odd: int  # the step without its factors 2 and 5
    deciding: int  # how many digits decide about these factors
    rests: dict[int, int] = field(default_factory=dict)  # each with the one that stands for it
    same: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def least_states(self) -> int:
        """Return about how many states there are to explore, without the bounds' own."""
        return sum(min(10**places, self.odd) for places in range(1, self.most_digits + 1))

    def first(self, digit: int, below: bool) -> _State | None:
        """Return the state after the first digit."""
        state = _State(below, False, 0, 0, 0, 0)
        after = self._digit(state, digit)
        return after and after._replace(zero=digit == 0)

    def moves(self, state: _State) -> dict[str, _State | None]:
        """Return the states after each character."""
        if state.point:
            return {str(d): self._behind(state, d) for d in range(10)}
        following = {} if state.zero else {str(d): self._digit(state, d) for d in range(10)}
        if self.most_fraction:
            following["."] = self._point(state)
        return following

    def ends(self, state: _State) -> bool:
        """Tell whether a number can end here."""
        settled = state if state.point else self._point(state)
        if settled is None or (state.point and not state.places):
            return False
        if settled.rest * 10 ** (self.step_places - settled.places) % self.step:
            return False
        if settled.low == 0:
            left = self.low.fraction[settled.places :]
            if left or not self.low.included:
                return False
        if settled.high == 0 and self.high is not None:
            left = self.high.fraction[settled.places :]
            return bool(left) or self.high.included
        return True

    def _digit(self, state: _State, digit: int) -> _State | None:
        at = state.places
        if at >= self.most_digits:
            return None
        low = _compared(state.low, self.low.digits, at, digit)
        high = 0 if self.high is None else _compared(state.high, self.high.digits, at, digit)
        return _State(state.below, False, at + 1, low, high, self._rest(state.rest * 10 + digit))

    def _point(self, state: _State) -> _State | None:
        """Return the state behind the point: the digits before it settle what they can."""
        low = _settled(state.low, state.places, len(self.low.digits))
        high = -1
        if self.high is not None:
            high = _settled(state.high, state.places, len(self.high.digits))
        if low < 0 or high > 0:
            return None
        return _State(state.below, True, 0, low, high, state.rest)

    def _behind(self, state: _State, digit: int) -> _State | None:
        at = state.places
        if at >= self.most_fraction:
            return None
        low, high = state.low, state.high
        if low == 0:
            low = _sign(digit - int(self.low.fraction[at : at + 1] or 0))
        if high == 0 and self.high is not None:
            high = _sign(digit - int(self.high.fraction[at : at + 1] or 0))
        if low < 0 or high > 0:
            return None
        return _State(state.below, True, at + 1, low, high, self._rest(state.rest * 10 + digit))

    def _rest(self, number: int) -> int:
        """Return what is left of a number, the same for all that the same digits complete.

        Of a step's factors 2 and 5 only the last digits matter: how many that is says how many
        digits decide, and for fewer than that what they would have to be.
        """
        rest = number % self.step
        if rest not in self.rests:
            ends = [rest * 10**more % self.step for more in range(self.deciding)]
            reached = [-end % self.step < 10**more for more, end in enumerate(ends)]
            key = rest % self.odd, *(e if r else -1 for e, r in zip(ends, reached, strict=True))
            self.rests[rest] = self.same.setdefault(key, rest)
        return self.rests[rest]


def _compared(so_far: int, digits: str, at: int, digit: int) -> int:
    """Compare one more digit with a bound's digits; past its end the number is larger."""
    if at >= len(digits):
        return 1
    return so_far or _sign(digit - int(digits[at]))


def _settled(so_far: int, places: int, length: int) -> int:
    """Return how a whole number of `places` digits compares, given how its digits compare."""
    return _sign(places - length) or so_far


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _sides(limits: Limits, whole: bool) -> tuple[_Side | None, _Side | None]:
    """Return the numbers below 0, without their sign, and those of 0 and more."""
    low, high = limits.low, limits.high
    step, places = _step(limits.step, whole)
    fractions = [_edge(bound).fraction for bound in (low, high) if bound is not None]
    longest = max((len(_edge(bound).digits) for bound in (low, high) if bound), default=1)
    most_fraction = max(1, EXACT_DIGITS - longest, *map(len, fractions), 0)
    most_fraction = min(most_fraction, MAX_FRACTION)
    if limits.step is not None:
        most_fraction = min(most_fraction, places)
    if whole:
        most_fraction = 0

    def side(low: tuple[Decimal, bool], high: tuple[Decimal, bool] | None) -> _Side | None:
        least, most = _edge(low), high and _edge(high)
        if most is not None and len(most.digits) > MAX_BOUND_DIGITS:
            most = None
        if len(least.digits) > MAX_BOUND_DIGITS:
            return None
        if high is not None and high[0] < low[0]:
            return None
        digits = max(MAX_DIGITS, len(least.digits) + 1)
        if most is not None:
            digits = len(most.digits)
        return _Side(least, most, digits, most_fraction, step, places, *_factors(step))

    below = above = None
    if low is None or low[0] < 0:
        nearest = (ZERO, False) if high is None or high[0] >= 0 else _negated(high)
        below = side(nearest, low and _negated(low))
    if high is None or high[0] >= 0:
        above = side((ZERO, True) if low is None or low[0] < 0 else low, high)
    return below, above


def _step(step: Fraction | None, whole: bool) -> tuple[int, int]:
    """Return a step as a whole number and its places behind the point."""
    if step is None:
        return 1, MAX_FRACTION
    if whole:  # multiples of both the step and 1
        return step.numerator, 0
    places = 0
    while (step * 10**places).denominator != 1:
        places += 1
    return (step * 10**places).numerator, places


def _factors(step: int) -> tuple[int, int]:
    """Return a step without its factors 2 and 5, and how often the more frequent one is in it."""
    often = [0]
    for factor in (2, 5):
        count = 0
        while step % factor == 0 and count < MAX_FACTORS:
            step, count = step // factor, count + 1
        often.append(count)
    return step, max(often)


def _edge(bound: tuple[Decimal, bool]) -> _Edge:
    digits, _, fraction = f"{bound[0].copy_abs():f}".partition(".")
    return _Edge(digits, fraction.rstrip("0"), bound[1])


def _negated(bound: tuple[Decimal, bool]) -> tuple[Decimal, bool]:
    return bound[0].copy_negate(), bound[1]


def _bound(schema: Mapping[str, Any], name: str, side: int) -> tuple[Decimal, bool] | None:
    """Return the tighter of a bound and its exclusive kind, and whether it is allowed itself.

    side: 1 for an upper bound, -1 for a lower one.

    Raises:
        GrammarError: One is not a finite number.
    """
    strict_name = f"exclusive{name.capitalize()}"
    bounds = []
    plain, strict = _number(schema, name), _number(schema, strict_name)
    if plain is not None:  # true makes a bound exclusive in old JSON schema drafts
        bounds.append((plain, schema.get(strict_name) is not True))
    if strict is not None:
        bounds.append((strict, False))
    if not bounds:
        return None
    tightest = min(bounds) if side > 0 else max(bounds, key=lambda bound: (bound[0], not bound[1]))
    return tightest


def _number(schema: Mapping[str, Any], name: str) -> Decimal | None:
    value = schema.get(name)
    if value is None or isinstance(value, bool):
        return None
    if not (isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))):
        raise GrammarError(f"{name} must be a finite number, got {value!r:.80}")
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
