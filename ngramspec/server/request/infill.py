"""Fill-in-the-middle prompts, laid out as llama-server does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ngramspec.engine.request import TokenIds
from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import NativeBody
from ngramspec.server.request.prompts import tokenize_mixed
from ngramspec.server.served import Served

PROJECT = "myproject\n"  # stands for what llama-server does not know either
FILE = "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"


def missing_tokens(served: Served) -> str:
    """Return which tokens a model lacks to fill in the middle, "" when it has all."""
    model = served.model
    wanted = {"prefix": model.fim_pre, "suffix": model.fim_suf, "middle": model.fim_mid}
    return " ".join(f"{name} token is missing." for name, token in wanted.items() if token < 0)


def fill_prompt(served: Served, prefix: str, suffix: str) -> TokenIds:
    """Return the prompt for the text between prefix and suffix."""
    return _layout(served, [], _plain(served, prefix), _plain(served, suffix), [])


def infill_prompt(body: NativeBody, served: Served) -> TokenIds:
    """Return the prompt of POST /infill: extra files, prefix, suffix and the begun middle.

    A long prefix keeps its end, a long suffix its beginning: together they fill one batch.

    Raises:
        ApiError: A field is missing or has the wrong type.
    """
    for name in ("input_prefix", "input_suffix"):
        if getattr(body, name) is None:
            raise bad_request(f'"{name}" is required', name)
    if body.prompt is not None and not isinstance(body.prompt, str):
        raise bad_request('"prompt" must be a string', "prompt")
    prompt = _plain(served, body.prompt, parse_special=True) if body.prompt else []
    prefix = _mixed(served, body.input_prefix, "input_prefix")
    suffix = _mixed(served, body.input_suffix, "input_suffix")
    quarter = served.batch_size // 4
    prefix = prefix[max(0, len(prefix) - 3 * quarter) :]
    suffix = suffix[: max(0, quarter - (2 + len(prompt)))]
    extra = _extra(body.input_extra or [], served)
    predict = max(0, body.n_predict or 0)
    room = max(0, served.engine.context_size - served.batch_size - 2 * predict)
    return _layout(served, extra[max(0, len(extra) - room) :], prefix, suffix, prompt)


def _layout(
    served: Served,
    extra: Sequence[int],
    prefix: Sequence[int],
    suffix: Sequence[int],
    prompt: Sequence[int],
) -> TokenIds:
    model = served.model
    before, after = [model.fim_pre, *prefix, *prompt], [model.fim_suf, *suffix]
    if served.spm_infill:
        before, after = after, before
    begin = [token for token in model.tokenize("", add_special=True) if token == model.bos][:1]
    return np.array([*extra, *begin, *before, *after, model.fim_mid], dtype=np.int32)


def _extra(chunks: Sequence[dict[str, Any]], served: Served) -> list[int]:
    """Return the tokens of other files."""
    model = served.model
    made: list[int] = []
    if model.fim_rep >= 0:
        made += [model.fim_rep, *_plain(served, PROJECT)]
    for index, chunk in enumerate(chunks):
        text, name = chunk.get("text"), chunk.get("filename", "tmp")
        if not isinstance(text, str) or not isinstance(name, str):
            raise bad_request(
                f"input_extra[{index}] must have a text, and a filename that is one", "input_extra"
            )
        if model.fim_sep >= 0:
            made += [model.fim_sep, *_plain(served, f"{name}\n")]
        else:
            made += _plain(served, SNIPPET)
        made += _plain(served, text)
    if model.fim_sep >= 0:
        made += [model.fim_sep, *_plain(served, FILE)]
    return made


def _plain(served: Served, text: str, parse_special: bool = False) -> list[int]:
    ids = served.model.tokenize(text, add_special=False, parse_special=parse_special)
    return [int(token) for token in ids]


def _mixed(served: Served, given: Any, field: str) -> list[int]:
    ids = tokenize_mixed(given, served, add_special=False, parse_special=False, field=field)
    return [int(token) for token in ids]
