"""The prompt of POST /infill: extra files, prefix, suffix and the start of the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.arrays import TokenIds
from ngramspec.server.errors import bad_request
from ngramspec.server.llama_server.bodies import NativeBody
from ngramspec.server.model import ServedModel
from ngramspec.server.request.infill import fill_layout, plain_tokens
from ngramspec.server.request.prompts import tokenize_mixed

PROJECT = "myproject\n"  # placeholders for names that requests lack, as in llama-server
FILE = "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"


def infill_prompt(body: NativeBody, served: ServedModel) -> TokenIds:
    """Return the prompt of a body.

    A long prefix keeps its end, a long suffix its beginning: together they fit one batch.

    Raises:
        ApiError: A field is missing or has the wrong type.
    """
    for name in ("input_prefix", "input_suffix"):
        if getattr(body, name) is None:
            raise bad_request(f'"{name}" is required', name)
    if body.prompt is not None and not isinstance(body.prompt, str):
        raise bad_request('"prompt" must be a string', "prompt")
    prompt = plain_tokens(served, body.prompt, parse_special=True) if body.prompt else []
    prefix = _mixed(served, body.input_prefix, "input_prefix")
    suffix = _mixed(served, body.input_suffix, "input_suffix")
    quarter = served.batch_size // 4
    prefix = prefix[max(0, len(prefix) - 3 * quarter) :]
    suffix = suffix[: max(0, quarter - (2 + len(prompt)))]
    extra = _extra(body.input_extra or [], served)
    predict = max(0, body.n_predict or 0)
    room = max(0, served.engine.context_size - served.batch_size - 2 * predict)
    return fill_layout(served, extra[max(0, len(extra) - room) :], prefix, suffix, prompt)


def _extra(chunks: Sequence[dict[str, Any]], served: ServedModel) -> list[int]:
    """Return the tokens of other files."""
    model = served.model
    ids: list[int] = []
    if model.fim_rep >= 0:
        ids += [model.fim_rep, *plain_tokens(served, PROJECT)]
    for index, chunk in enumerate(chunks):
        text, name = chunk.get("text"), chunk.get("filename", "tmp")
        if not isinstance(text, str) or not isinstance(name, str):
            raise bad_request(
                f"input_extra[{index}] must have a text, and its filename must be a text",
                "input_extra",
            )
        if model.fim_sep >= 0:
            ids += [model.fim_sep, *plain_tokens(served, f"{name}\n")]
        else:
            ids += plain_tokens(served, SNIPPET)
        ids += plain_tokens(served, text)
    if model.fim_sep >= 0:
        ids += [model.fim_sep, *plain_tokens(served, FILE)]
    return ids


def _mixed(served: ServedModel, content: Any, field: str) -> list[int]:
    ids = tokenize_mixed(content, served, add_special=False, parse_special=False, field=field)
    return [int(token) for token in ids]
