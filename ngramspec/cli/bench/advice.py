"""The advice of `bench replay`: the fastest of what was replayed, and how to ask `serve` for it."""

from __future__ import annotations

import shlex
from typing import Any

from ngramspec.cli.drafts import FILES, NO_DRAFTS
from ngramspec.drafting.config import option_flag, options_of
from ngramspec.drafting.names import DEFAULT_ORDER, DEFAULT_SPEC, parse_names
from ngramspec.lab.replay.sets import Replays
from ngramspec.lab.replay.subjects import DEFAULT, parse_spec

LEAST_GAIN = 1.01  # over the default, or over plain decoding without it, to be worth an option


def advise(replays: Replays, profile: str) -> dict[str, Any]:
    """Return the fastest that `serve` has options for, or no drafts, at the costs of a profile."""
    speedups = {NO_DRAFTS: 1.0}
    for name in replays.drafters:
        if serve_words(name) is not None:
            speedups[name] = replays.mean_speedup(name, profile) or 1.0
    usual = next((name for name in DEFAULT if name in speedups), NO_DRAFTS)
    best = max(speedups, key=speedups.__getitem__)
    best = best if speedups[best] > LEAST_GAIN * speedups[usual] else usual
    words = shlex.join(serve_words(best) or [])
    speedup = round(speedups[best], 4)
    return {"costs": profile, "drafter": best, "modelled_speedup": speedup, "serve": words}


def serve_words(spec: str) -> list[str] | None:
    """Return the options of `serve` that ask for a specification, None if it lacks one."""
    if spec == NO_DRAFTS:
        return ["--spec-type", NO_DRAFTS]
    names, params = parse_spec(spec)
    is_default = names in DEFAULT
    words = [] if is_default else ["--spec-type", names, "--policy", "fixed"]
    drafters = parse_names(DEFAULT_SPEC if is_default else names, DEFAULT_ORDER)
    for key, value in params.items():
        flags = [flag for name, of, flag in FILES.values() if name in drafters and of == key]
        having = [name for name in drafters if key in {one.name for one in options_of(name)}]
        flags += [option_flag(name, key, value) for name in having]
        if not flags:
            return None
        for flag in flags:
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
    return words


def advice_line(advice: dict[str, Any]) -> str:
    """Return the advice in words."""
    what = {NO_DRAFTS: "no drafts", DEFAULT[0]: "the default"}
    drafter = what.get(advice["drafter"], advice["drafter"])
    times = f"{advice['modelled_speedup']:.3f} times plain decoding"
    options = f" Options of `serve`: {advice['serve']}" if advice["serve"] else ""
    return f"Advice at the costs of {advice['costs']}: {drafter}, {times}.{options}"
