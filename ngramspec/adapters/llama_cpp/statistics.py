"""Statistics files and the model they are used with: both must have the same tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ngramspec.formats.container import is_container, open_container
from ngramspec.tokenizers import fingerprint_of_llama

FILES = ("static", "dynamic", "pool")


def files_among(params: Mapping[str, Any]) -> list[Any]:
    """Return the statistics that drafter parameters name: paths or opened objects."""
    own = [params, *params.get("params", {}).values()]
    return [some[role] for some in own for role in FILES if some.get(role) is not None]


def stated_fingerprints(params: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the tokenizer fingerprints that statistics state, by name of the file."""
    if params.get("any_tokenizer"):
        return {}
    stated: dict[str, bytes] = {}
    for given in files_among(params):
        if isinstance(given, (str, os.PathLike)):
            name, fingerprint = os.fspath(given), None
            if is_container(name):
                fingerprint = open_container(name, verify=False).header.fingerprint
        else:
            name = str(getattr(given, "name", ""))
            fingerprint = getattr(given, "fingerprint", None)
        if fingerprint:
            stated[name] = fingerprint
    return stated


def mismatch(llama: Any, stated: Mapping[str, bytes]) -> str:
    """Return why statistics do not fit a Llama, "" when they do."""
    if not stated:
        return ""
    own = fingerprint_of_llama(llama).digest
    for name, fingerprint in stated.items():
        if fingerprint != own:
            return (
                f"{name} was built with another tokenizer: its fingerprint is {fingerprint.hex()}, "
                f"the model's is {own.hex()} (any_tokenizer overrides)"
            )
    return ""
