"""The drafters' names and their order of priority: llama.cpp's in its order, then ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ngramspec.errors import InputError

# The order is the priority: the first one with a draft wins.
DRAFTER_NAMES = (
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "suffix",
    "recycle",
)
# What a request may name: after them a draft model and MTP heads, by llama.cpp's words.
REQUEST_NAMES = (*DRAFTER_NAMES, "draft-simple", "draft-mtp")
WITH_TREES = ("suffix", "recycle")  # whose drafts can have branches
FROM_LOGITS = ("recycle",)  # those that draft nothing unless they are shown the target's logits
POLICY_NAMES = ("auto", "gate", "fixed", "shadow")  # how long drafts may be; shadow: none is sent
WITH_COSTS = ("auto", "shadow")  # those that weigh what passes cost
DEFAULT_SPEC, DEFAULT_ORDER, DEFAULT_POLICY = "suffix", "priority", POLICY_NAMES[0]
# Longest draft in tokens. With the token before it, that is more than exact settings ever send.
DEFAULT_MAX_DRAFT = 64
MAX_SHOWN = 80  # characters of an unknown name in a message


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a hint that names the known words nearest to an unknown one, or all of them."""
    import difflib  # only errors need it

    choices, name = tuple(choices), name[:MAX_SHOWN]  # difflib keeps every character's place
    close = difflib.get_close_matches(name.replace("_", "-"), choices, n=2, cutoff=0.6)
    close = close or difflib.get_close_matches(name, choices, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(choices)}"


def parse_names(
    spec: str | Iterable[str], order: str, choices: Sequence[str] = DRAFTER_NAMES
) -> tuple[str, ...]:
    """Split a comma-separated list (or take a sequence) of drafter names and put it in order.

    Args:
        spec: Such as "ngram-mod,ngram-cache".
        order: "priority" for the order of choices, "given" for the caller's.
        choices: The names that there are.

    Raises:
        InputError: No name, an unknown or repeated name, no text, or an unknown order.
    """
    if isinstance(spec, str):
        parts = spec.split(",")
    else:
        parts = list(spec) if isinstance(spec, Iterable) else [spec]
        if not all(isinstance(part, str) for part in parts):
            raise InputError(f"spec must be names of drafters, got {spec!r:.{MAX_SHOWN}}")
    names = [part.strip() for part in parts]
    if not any(names):
        raise InputError(f"spec must name at least one drafter, known: {', '.join(choices)}")
    for name in names:
        if name not in choices:
            hint = nearest(name, choices)
            raise InputError(f"unknown drafter {name!r:.{MAX_SHOWN}}; {hint}")
    if len(set(names)) != len(names):
        raise InputError(f"each drafter may be named once, got {','.join(names):.{MAX_SHOWN}}")
    if order not in ("priority", "given"):
        raise InputError(f'order must be "priority" or "given", got {order!r}')
    return tuple(sorted(names, key=choices.index) if order == "priority" else names)
