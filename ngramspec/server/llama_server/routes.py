"""llama-server's own routes: completion, infill, tokens, templates."""

from __future__ import annotations

import functools
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.chat.budget import budget_tokens
from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.plan import prompt_text
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.llama_server.events import NativeEvents, native_json
from ngramspec.server.llama_server.plan import plan_native
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import (
    Body,
    SamplingBody,
    parse,
    parse_json,
)
from ngramspec.server.request.prompts import check_ids, tokenize_mixed
from ngramspec.server.service import computes, generates, json_response, posts, routes, service_of

# Routes of llama-server that this server does not have.
UNSUPPORTED_PATHS = (
    *("/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v1/audio/transcriptions"),
)
MAX_TOKENS = 1 << 22  # in one answer of /tokenize, or one question of /detokenize
MAX_PIECES = 1 << 17  # the same with pieces, which take a hundred times the memory
MAX_BYTES = 1 << 25  # in one answer of /detokenize: a token may have hundreds


class TemplateBody(SamplingBody, Conversation):
    """POST /apply-template: a chat that is not answered."""


class TokenizeBody(Body):
    """POST /tokenize."""

    content: str | list[Any] = ""
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[Any] = []  # noqa: RUF012


async def adapters(request: Request) -> Response:
    return json_response(service_of(request).served.adapters.list())


async def apply_adapters(request: Request) -> Response:
    """Set the scales of LoRA adapters for requests that say nothing."""
    service = service_of(request)
    if service.settings.isolates:
        raise not_supported("Keys cannot change what other keys get: send `lora` with requests")
    return await service.compute(request, _apply)


async def _unsupported(request: Request) -> Response:
    raise not_supported(f"This server does not support {request.url.path}", status=404)


def _apply(incoming: Incoming) -> dict[str, bool]:
    incoming.served.adapters.apply(parse_json(incoming.raw))
    return {"success": True}


def _prompt(incoming: Incoming) -> dict[str, str]:
    body, served = parse(incoming.raw, TemplateBody), incoming.served
    budget = budget_tokens(body, served)
    text, model = prompt_text(body, budget, served, body.callable_tools()), served.model
    if model.add_bos and model.bos >= 0:  # the tokenizer adds it: as llama-server shows prompts
        text = text.removeprefix(model.piece(model.bos, True).decode("utf-8", "replace"))
    return {"prompt": text}


def _tokenize(incoming: Incoming) -> dict[str, Any]:
    body, served = parse(incoming.raw, TokenizeBody), incoming.served
    ids = tokenize_mixed(
        body.content,
        served,
        add_special=bool(body.add_special),
        parse_special=body.parse_special is not False,
        field="content",
    )
    most = MAX_PIECES if body.with_pieces else MAX_TOKENS
    if ids.size > most:
        kind = "with pieces" if body.with_pieces else "at once"
        raise bad_request(f"content must have at most {most} tokens {kind}", "content")
    ids = ids.tolist()
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _piece(served, token)} for token in ids]}


def _detokenize(incoming: Incoming) -> dict[str, Any]:
    body, served = parse(incoming.raw, DetokenizeBody), incoming.served
    if len(body.tokens) > MAX_TOKENS:
        raise bad_request(f"tokens must have at most {MAX_TOKENS} members", "tokens")
    check_ids(body.tokens, served.model.vocab_size, "tokens")
    if sum(len(served.model.piece(token, True)) for token in body.tokens) > MAX_BYTES:
        raise bad_request(f"tokens must make at most {MAX_BYTES} bytes of text", "tokens")
    return {"content": served.model.detokenize(body.tokens, special=True)}


def _piece(served: ServedModel, token: int) -> str | list[int]:
    """Return a token's text, or its bytes where they are a part of a character."""
    piece = served.model.piece(token, True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


ROUTES = [
    *posts(generates(plan_native, NativeEvents, native_json), "/completion", "/completions"),
    *posts(
        generates(functools.partial(plan_native, infill=True), NativeEvents, native_json), "/infill"
    ),
    *posts(computes(_tokenize), "/tokenize"),
    *posts(computes(_detokenize), "/detokenize"),
    *routes(adapters, "/lora-adapters"),
    *posts(apply_adapters, "/lora-adapters"),
    *posts(computes(_prompt), "/apply-template"),
    *routes(_unsupported, *UNSUPPORTED_PATHS, methods=["GET", "POST"]),
]
