"""Changes JSON texts by their structure: members come and go, and values become odd ones."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 63, 64, 255, 2**16, 2**31 - 1, 2**31, 2**32, -(2**31)),
    *(2**53, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.0, -1.5, 1e-300, 1e300, 1e39, math.inf, -math.inf, math.nan),
    *("", "x", "auto", "none", "\0", "\n", "\ud800", "é☃😀", "²", "0" * 40, "a" * 300, "<think>"),
    *("{{", "{% for %}", "../x", "-1", "1e400", "%s%n", " ", "\\", '"', "[", "#", "#/"),
    *([], {}, [[]], [{}], [None], [0], [""], [[0]], {"": 0}, {"a": {}}),
)


def changed(
    value: Any, rng: random.Random, members: Mapping[str, Sequence[Any]], most: int = 3
) -> Any:
    """Return a JSON value with one to `most` changes.

    members: Names that mean something, with values that each is likely to take.
    """
    for _ in range(rng.randint(1, most)):
        value = _once(value, rng, members)
    return value


def _once(value: Any, rng: random.Random, members: Mapping[str, Sequence[Any]]) -> Any:
    holder = {"": json.loads(json.dumps(value))}
    places = list(_places(holder))
    box, key = rng.choice(places)
    old = box[key]
    choice = rng.randrange(9)
    if choice <= 2 or (choice <= 4 and not isinstance(old, dict | list)):
        box[key] = _value(rng, members.get(str(key), ()))
    elif choice <= 4:
        _grow(old, rng, members)
    elif choice == 5:
        other, name = rng.choice(places)
        box[key] = json.loads(json.dumps(other[name])) if other is not holder else [old]
    elif choice == 6 and box is not holder:
        del box[key]
    elif choice == 7:
        for _ in range(rng.choice([1, 1, 2, 5, 70])):
            box[key] = [box[key]] if isinstance(key, int) or rng.random() < 0.5 else {key: box[key]}
    else:
        box[key] = _near(old, rng)
    return holder[""]


def _places(value: Any) -> Any:
    """Yield (container, key) of every value, to a bounded number."""
    todo: list[Any] = [value]
    count = 0
    while todo and count < 400:
        box = todo.pop()
        for key in list(box) if isinstance(box, dict) else range(len(box)):
            count += 1
            yield box, key
            if isinstance(box[key], dict | list):
                todo.append(box[key])


def _grow(box: Any, rng: random.Random, members: Mapping[str, Sequence[Any]]) -> None:
    for _ in range(rng.choice([1, 1, 2, 3])):
        if isinstance(box, list):
            more = json.loads(json.dumps(rng.choice(box))) if box else _value(rng, ())
            box.insert(rng.randint(0, len(box)), more)
        else:
            name = rng.choice(list(members)) if members and rng.random() < 0.9 else rng.choice("ab")
            box[name] = _value(rng, members.get(name, ()))


def _value(rng: random.Random, likely: Sequence[Any]) -> Any:
    if likely and rng.random() < 0.75:
        return rng.choice(likely)
    return rng.choice(ODD)


def _near(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value, value * 2, float(value % 2**53)])
    if isinstance(value, float):
        return rng.choice([-value, value * 2, value / 3, 1 - value])
    if isinstance(value, str):
        at = rng.randint(0, len(value))
        piece = str(rng.choice([x for x in ODD if isinstance(x, str)]))
        return rng.choice(
            [value[:at] + piece + value[at:], value[:at], value[at:], value + value[at:]]
        )
    if isinstance(value, list):
        return value * 2 if len(value) < 50 else value[: len(value) // 2]
    return list(value.items())


def mutation(
    members: Mapping[str, Sequence[Any]], heads: Sequence[bytes] = ()
) -> Callable[[bytes, int, int, Callable[[bytes, int], bytes]], bytes]:
    """Return a Mutate for JSON, of which a line with one of `heads` may come first."""

    def mutate(data: bytes, most: int, seed: int, plain: Callable[[bytes, int], bytes]) -> bytes:
        rng = random.Random(seed)
        head, text = b"", data
        if heads:
            head, _, text = data.partition(b"\n")
            if rng.random() < 0.1:
                head = rng.choice(heads)
        if rng.random() < 0.1:
            text = plain(text, max(1, most - len(head) - 1))
        else:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = {}
            try:
                text = json.dumps(changed(value, rng, members)).encode()
            except (ValueError, RecursionError, OverflowError):
                text = plain(text, max(1, most - len(head) - 1))
        mutant = head + b"\n" + text if heads else text
        return mutant if len(mutant) <= most else data

    return mutate


def shorter(data: bytes) -> Iterator[bytes]:
    """Yield inputs with a part of the JSON left out, which may follow a line of another kind.

    The largest parts come first.
    """
    head, newline, text = data.partition(b"\n")
    try:
        value = {"": json.loads(text if newline else head)}
    except (ValueError, RecursionError):
        return
    for number in range(sum(1 for _ in _places(value))):
        for inner in (False, True):
            copy = json.loads(json.dumps(value))
            box, key = next(itertools.islice(_places(copy), number, None))
            old = box[key]
            if inner and isinstance(old, dict | list) and old:
                box[key] = next(iter(old.values())) if isinstance(old, dict) else old[0]
            elif not inner and box is not copy:
                del box[key]
            else:
                continue
            candidate = json.dumps(copy[""]).encode()
            candidate = head + newline + candidate if newline else candidate
            if len(candidate) < len(data):
                yield candidate
