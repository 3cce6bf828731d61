"""speculative.* fields: refused with 400, or made into settings that the engine's drafters take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields

from fuzz import json_inputs
from fuzz.target import Finding, Run, Target
from ngramspec.drafting.config import CONFIGS
from ngramspec.engine.sources.drafters import Drafters
from ngramspec.errors import InputError
from ngramspec.server.errors import ApiError
from ngramspec.server.request.speculation import speculation_of

OWN = {
    "types": ("none", "ngram-mod", "ngram-cache,ngram-mod", "suffix", ["ngram-simple"], "default"),
    "type": ("ngram-map-k", "ngram-map-k4v", ""),
    "enabled": (True, False),
    "n_max": (0, 1, 16, 64, 4096, 65535),
    "namespace": ("", "a", "b", "a" * 256, "a" * 257),
    "spans": (True, False),
}


def members() -> dict[str, tuple[object, ...]]:
    """Return all names that a request may send, flat and nested, with their defaults."""
    names: dict[str, tuple[object, ...]] = {**OWN}
    names["speculative"] = (True, False, {}, {"n_max": 3}, {"ngram_mod": {}}, {"suffix": {}})
    names |= {f"speculative.{name}": values for name, values in OWN.items()}
    for name, config in CONFIGS.items():
        drafter = name.replace("-", "_")
        defaults = {
            field.name: () if field.default is MISSING else (_plain(field.default),)
            for field in fields(config)
        }
        names |= {f"speculative.{drafter}.{own}": choices for own, choices in defaults.items()}
        names |= {own: choices for own, choices in defaults.items() if own not in names}
        names[drafter] = names[f"speculative.{drafter}"] = ({}, {"n_max": 1}, {"size_n": 3})
    return names


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


MEMBERS = members()


@contextmanager
def opened() -> Iterator[Run]:
    small = {"ngram-mod": {"capacity": 1 << 12}, "ngram-cache": {"max_ngrams": 1 << 10}}
    drafters = Drafters("ngram-mod,ngram-cache", 2, small)
    tokens = [1, 2, 3, 1, 2, 3, 1, 2]

    def run(data: bytes) -> None:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(body, dict):
            return
        try:
            speculation = speculation_of(body, "").speculation
            source = drafters.get(speculation)
        except InputError:
            return
        except ApiError as error:
            if error.status != 400:
                raise
            return
        if (source is not None) and not speculation.enabled:
            raise Finding("drafts for a request that wants none")
        if source is not None:
            source.begin(0, tokens)
            most = 4096 if speculation.max_draft is None else min(4096, speculation.max_draft)
            if source.propose([0], [most])[0].size > most:
                raise Finding("a draft is longer than was asked for")

    yield run


TARGET = Target(
    opened=opened,
    instrumented=("ngramspec.server.request.speculation", "ngramspec.drafting", "ngramspec.engine"),
    mutate=json_inputs.mutation(MEMBERS),
    words=tuple(MEMBERS),
    max_bytes=2048,
)
