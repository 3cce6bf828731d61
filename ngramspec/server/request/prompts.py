"""Prompts of the completion routes: texts, token ids, both mixed, and lists of these.

Fill-in-the-middle prompts are laid out as llama-server does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.engine.sampling import is_int
from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.errors import bad_request, not_supported, too_long
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody

CHARS_PER_TOKEN = 8  # texts with more may be too long to tokenize them first
MAX_TEXTS = 2048  # among token ids, each tokenized by itself


def prompts_of(
    prompt: Any, incoming: Incoming, most: int, *, add_special: bool | None = None
) -> list[TokenIds]:
    """Return the token ids of every prompt in a `prompt` field.

    Args:
        prompt: The field.
        incoming: The request.
        most: Prompts that a request may have.
        add_special: False: put no special tokens before texts.

    Raises:
        ApiError: It does not have the shape of llama-server's prompts, is empty, has too many, or
            one is certainly too long.
    """
    parts = listed(prompt)
    if not parts:
        raise bad_request("prompt must not be empty", "prompt")
    if len(parts) > most:
        raise bad_request(f"prompt must hold at most {most} prompts, got {len(parts)}", "prompt")
    return [_prompt(part, incoming, add_special is not False) for part in parts]


def check_ids(ids: Sequence[Any], vocab_size: int, field: str) -> None:
    """Refuse a list that holds anything but token ids of the vocabulary.

    Raises:
        ApiError: It does.
    """
    if not all(is_int(token) and 0 <= token < vocab_size for token in ids):
        raise bad_request(f"{field} must hold token ids in 0..{vocab_size - 1}", field)


def is_list(prompt: Any) -> bool:
    """Return whether a `prompt` field is a list of prompts; the answer is then a list too."""
    return isinstance(prompt, list) and not any(is_int(part) for part in prompt)


def listed(prompt: Any) -> list[Any]:
    """Return the prompts of a `prompt` field, one or several, as the client wrote them."""
    return prompt if is_list(prompt) else [prompt]


def tokenize_mixed(
    content: Any,
    served: ServedModel,
    *,
    add_special: bool,
    parse_special: bool,
    field: str = "prompt",
) -> TokenIds:
    """Return the tokens of a text, or of a list of texts and token ids.

    Special tokens are added only to a text that comes first, and no begin token where it has one.

    Raises:
        ApiError: It is neither, or has more than MAX_TEXTS texts.
    """
    model = served.model

    def tokens(text: str, special: bool) -> TokenIds:
        if special and parse_special:
            return model.tokenize_prompt(text)
        return model.tokenize(text, add_special=special, parse_special=parse_special)

    if isinstance(content, str):
        return tokens(content, add_special)
    if not isinstance(content, list):
        raise bad_request(f"{field} must be a text or a list of texts and token ids", field)
    if (count := len(texts_in(content))) > MAX_TEXTS:
        raise bad_request(
            f"{field} must hold at most {MAX_TEXTS} texts among token ids, got {count}", field
        )
    ids: list[int] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            ids += tokens(part, add_special and index == 0).tolist()
        elif is_int(part) and 0 <= part < model.vocab_size:
            ids.append(part)
        else:
            most = model.vocab_size - 1
            raise bad_request(f"{field} must hold texts and token ids in 0..{most}", field)
    return np.array(ids, dtype=np.int32)


def texts_in(content: Any) -> list[str]:
    """Return a text, or the texts in a list, in a list of their own."""
    parts = content if isinstance(content, list) else [content]
    return [part for part in parts if isinstance(part, str)]


def check_text(text: str, incoming: Incoming, field: str) -> None:
    """Refuse a prompt that is certainly too long, before it is tokenized.

    Raises:
        ApiError: It is.
    """
    served, limit = incoming.served, incoming.settings.max_prompt_tokens
    size = served.engine.context_size
    most = size - 1 if limit is None else min(limit, size - 1)
    if (least := least_tokens(text, served, most)) > most:
        raise too_long(least, size if most == size - 1 else most, field, at_least=True)


def least_tokens(text: str, served: ServedModel, most: int) -> int:
    """Return how many tokens a text has at least; 0 where it may have no more than `most`."""
    if len(text) <= CHARS_PER_TOKEN * most:
        return 0
    return served.model.least_tokens(text)


def check_length(prompt_ids: TokenIds, incoming: Incoming, field: str) -> None:
    """Refuse a prompt that is empty or too long.

    Raises:
        ApiError: It is.
    """
    size = int(prompt_ids.size)
    if not size:
        raise bad_request(f"{field} must not be empty", field)
    limit, most = incoming.settings.max_prompt_tokens, incoming.served.engine.context_size
    if limit is not None and size > limit:
        raise too_long(size, limit, field)
    if size >= most:
        raise too_long(size, most, field)


def _prompt(prompt: Any, incoming: Incoming, add_special: bool) -> TokenIds:
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise not_supported("this server takes text only, no multimodal_data", "prompt")
        if "prompt_string" not in prompt:
            raise bad_request("a prompt object must have prompt_string", "prompt")
        prompt = prompt["prompt_string"]
    check_text("".join(texts_in(prompt)), incoming, "prompt")
    return tokenize_mixed(prompt, incoming.served, add_special=add_special, parse_special=True)


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
