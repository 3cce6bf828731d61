"""Statistics files and the model they are used with: both must have the same tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ngramspec.files.cache_file import about_of
from ngramspec.files.container import is_container, open_container
from ngramspec.text.tokenizers import fingerprint_of_llama

FILES = ("static", "dynamic", "pool")


def files_among(params: Mapping[str, Any]) -> list[Any]:
    """Return the statistics that drafter parameters name: paths or opened objects."""
    own = [params, *params.get("params", {}).values()]
    return [some[role] for some in own for role in FILES if some.get(role) is not None]


def stated_fingerprints(params: Mapping[str, Any]) -> dict[str, tuple[bytes, str]]:
    """Return the tokenizers that statistics state, by name of the file: fingerprint and model."""
    if params.get("any_tokenizer"):
        return {}
    stated: dict[str, tuple[bytes, str]] = {}
    for file in files_among(params):
        model = ""
        if isinstance(file, (str, os.PathLike)):
            name, fingerprint = os.fspath(file), None
            if is_container(name):
                container = open_container(name, verify=False)
                fingerprint = container.header.fingerprint
                model = about_of(container).get("tokenizer", "")
        else:
            name = str(getattr(file, "name", ""))
            fingerprint = getattr(file, "fingerprint", None)
        if fingerprint:
            stated[name] = fingerprint, f", of {model}" if model else ""
    return stated


def mismatch(llama: Any, stated: Mapping[str, tuple[bytes, str]]) -> str:
    """Return why statistics do not fit a Llama, "" when they do."""
    if not stated:
        return ""
    own = fingerprint_of_llama(llama)
    for name, (fingerprint, model) in stated.items():
        if fingerprint != own.digest:
            return (
                f"{name} was built with another tokenizer{model}: its fingerprint is "
                f"{fingerprint.hex()}, that of {own.name} is {own} (any_tokenizer overrides)"
            )
    return ""
