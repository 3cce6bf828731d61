"""NativePlan: what the body of a request to llama-server's own completion routes asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from ngramspec.arrays import TokenIds
from ngramspec.server.bridge.intake import Incoming, Plan
from ngramspec.server.chat.budget import budgets_of_texts
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import (
    Integer,
    Objects,
    Prompt,
    SamplingBody,
    at_most,
    parse,
)
from ngramspec.server.request.engine_request import make_plan, most_prompts
from ngramspec.server.request.prompts import (
    check_layout,
    fill_layout,
    is_list,
    missing_tokens,
    plain_tokens,
    prompts_of,
    tokenize_mixed,
)
from ngramspec.server.request.sampling import grammar_of

PROJECT = "myproject\n"  # placeholders for names that requests lack, as in llama-server
FILE = "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"


class NativeBody(SamplingBody):
    """POST /completion and /infill."""

    prompt: Prompt | None = None
    n_predict: Integer | None = None
    max_tokens: Integer | None = None
    n_cmpl: Integer | None = None
    n: Integer | None = None
    n_probs: Integer | None = None
    logprobs: Integer | bool | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], at_most(256)] | None = None
    input_prefix: str | list[Any] | None = None
    input_suffix: str | list[Any] | None = None
    input_extra: Objects | None = None


@dataclass(frozen=True)
class NativePlan(Plan):
    """Completions as engine requests, and the shape of the response."""

    as_list: bool  # several answers were requested, or a list of prompts
    return_tokens: bool
    fields: Sequence[str] | None  # members of the answer to return, None = all


def plan_native(incoming: Incoming, infill: bool = False) -> NativePlan:
    """Read the body of POST /completion, or of POST /infill.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body, served = parse(incoming.raw, NativeBody), incoming.served
    choices = next((number for number in (body.n_cmpl, body.n) if number is not None), 1)
    prompts = _prompts(body, incoming, most_prompts(incoming.settings, choices), infill)
    kind = partial(
        NativePlan,
        as_list=len(prompts) * choices > 1 or (not infill and is_list(body.prompt)),
        return_tokens=bool(body.return_tokens),
        fields=body.response_fields,
    )
    return make_plan(
        kind,
        body,
        incoming,
        prompts=prompts,
        choices=choices,
        grammar=grammar_of(body, body.json_schema),
        max_tokens=body.max_tokens if body.n_predict is None else body.n_predict,
        logprobs=("logprobs" if body.n_probs is None else "n_probs", _logprobs(body)),
        post_sampling_probs=bool(body.post_sampling_probs),
        budgets=budgets_of_texts(body, served, prompts),
    )


def _logprobs(body: NativeBody) -> int | None:
    """Return how many of the likeliest tokens to report; `logprobs` stands for `n_probs`."""
    count = body.logprobs if body.n_probs is None else body.n_probs
    return int(count or 0) or None


def _prompts(body: NativeBody, incoming: Incoming, most: int, infill: bool) -> list[TokenIds]:
    if not infill:
        if body.prompt is None:
            raise bad_request('"prompt" is required', "prompt")
        return prompts_of(body.prompt, incoming, most, add_special=body.add_special_tokens)
    check_layout(body)
    missing = missing_tokens(incoming.served)
    if missing:
        raise not_supported(f"Infill is not supported by this model: {missing}")
    return [infill_prompt(body, incoming.served)]


def infill_prompt(body: NativeBody, served: ServedModel) -> TokenIds:
    """Return the prompt of POST /infill: other files, prefix, suffix, start of the middle.

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
