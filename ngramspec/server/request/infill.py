"""Fill-in-the-middle prompts, laid out as llama-server does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.server.errors import not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody


def missing_tokens(served: ServedModel) -> str:
    """Return which tokens a model lacks to fill in the middle, "" when it has all."""
    model = served.model
    tokens = {"prefix": model.fim_pre, "suffix": model.fim_suf, "middle": model.fim_mid}
    return " ".join(f"{name} token is missing." for name, token in tokens.items() if token < 0)


def check_layout(body: SamplingBody) -> None:
    """Refuse to fill in without the begin token, which the layout has.

    Raises:
        ApiError: The body asks for that.
    """
    if body.add_special_tokens is False:
        words = "add_special_tokens must not be false where text is filled in before a suffix"
        raise not_supported(words, "add_special_tokens")


def fill_prompt(served: ServedModel, prefix: str, suffix: str) -> TokenIds:
    """Return the prompt for the text between prefix and suffix."""
    return fill_layout(served, [], plain_tokens(served, prefix), plain_tokens(served, suffix), [])


def fill_layout(
    served: ServedModel,
    extra: Sequence[int],
    prefix: Sequence[int],
    suffix: Sequence[int],
    prompt: Sequence[int],
) -> TokenIds:
    """Return a prompt: other files, the text around the gap, and the start of the middle."""
    model = served.model
    before, after = [model.fim_pre, *prefix, *prompt], [model.fim_suf, *suffix]
    if served.spm_infill:
        before, after = after, before
    begin = [token for token in model.tokenize("", add_special=True) if token == model.bos][:1]
    return np.array([*extra, *begin, *before, *after, model.fim_mid], dtype=np.int32)


def plain_tokens(served: ServedModel, text: str, parse_special: bool = False) -> list[int]:
    """Return the tokens of a text, without a begin token."""
    ids = served.model.tokenize(text, add_special=False, parse_special=parse_special)
    return [int(token) for token in ids]
