"""What a shell completes for values that click knows nothing about: lists and names of models."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def in_list(*words: str) -> Complete:
    """Return what completes the last word of a comma-separated list, of those not yet in it."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        used = before.split(",")
        return [
            CompletionItem(before + comma + word)
            for word in words
            if word.startswith(last) and word not in used
        ]

    return complete


def model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a file, or the name of a model in Ollama's store once it has begun."""
    import os

    from ngramspec.models.ollama.store import default_roots, list_models

    names: set[str] = set()
    if incomplete and not incomplete.startswith((".", "/", "~")):
        roots = default_roots(os.environ.get("OLLAMA_MODELS"))
        names = {one.name.short() for one in list_models(roots)}
    matches = sorted(name for name in names if name.startswith(incomplete))
    return [*map(CompletionItem, matches), CompletionItem(incomplete, type="file")]


def cache_types(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete types of the key-value cache."""
    from ngramspec.llamacpp.settings import CACHE_TYPES

    return in_list(*CACHE_TYPES)(ctx, param, incomplete)
