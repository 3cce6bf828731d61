"""llama-server's own routes: completion, infill, tokens, templates."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ngramspec.errors import NgramspecError
from ngramspec.server.bodies import Body, ChatBody, parse
from ngramspec.server.chat_plan import chat_text
from ngramspec.server.errors import api_error, bad_request, not_supported
from ngramspec.server.native_events import NativeEvents, native_json
from ngramspec.server.native_plan import plan_native
from ngramspec.server.prompts import tokenize_mixed
from ngramspec.server.served import Served
from ngramspec.server.service import json_response, service_of
from ngramspec.server.tools import tools_of

router = APIRouter()
# Routes of llama-server that generate no text, or not with this server.
NOT_HERE = (
    *("/embedding", "/embeddings", "/v1/embeddings", "/rerank", "/reranking", "/v1/rerank"),
    *("/v1/reranking", "/v1/responses", "/v1/messages", "/v1/audio/transcriptions"),
    "/lora-adapters",
)


class TokenizeBody(Body):
    """POST /tokenize."""

    content: str | list[Any] = ""
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[int] = []  # noqa: RUF012


@router.post("/completion")
@router.post("/completions")
async def completion(request: Request) -> Response:
    """Continue texts."""
    return await service_of(request).answer(request, plan_native, NativeEvents, native_json)


@router.post("/infill")
async def infill(request: Request) -> Response:
    """Fill in the text between a prefix and a suffix."""
    plan = functools.partial(plan_native, infill=True)
    return await service_of(request).answer(request, plan, NativeEvents, native_json)


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Return the tokens of a text."""
    service = service_of(request)
    raw, served = await service.read(request), service.served
    return json_response(await asyncio.to_thread(_tokenize, raw, served))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Return the text of tokens."""
    service = service_of(request)
    raw, served = await service.read(request), service.served
    return json_response(await asyncio.to_thread(_detokenize, raw, served))


@router.post("/apply-template")
async def apply_template(request: Request) -> Response:
    """Return the prompt that the chat template makes of messages."""
    service = service_of(request)
    raw, served = await service.read(request), service.served
    try:
        prompt = await asyncio.to_thread(_prompt, raw, served)
    except NgramspecError as error:
        raise api_error(error) from error
    return json_response({"prompt": prompt})


async def _not_here(request: Request) -> Response:
    raise not_supported(f"This server does not support {request.url.path}")


for _path in NOT_HERE:
    router.add_api_route(_path, _not_here, methods=["GET", "POST"])


def _prompt(raw: bytes, served: Served) -> str:
    body = parse(raw, ChatBody)
    return chat_text(body, served, tools_of(body))


def _tokenize(raw: bytes, served: Served) -> dict[str, Any]:
    body = parse(raw, TokenizeBody)
    ids = tokenize_mixed(
        body.content,
        served,
        add_special=bool(body.add_special),
        parse_special=body.parse_special is not False,
        field="content",
    ).tolist()
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _piece(served, token)} for token in ids]}


def _detokenize(raw: bytes, served: Served) -> dict[str, Any]:
    body = parse(raw, DetokenizeBody)
    most = served.model.vocab_size - 1
    if any(not 0 <= token <= most for token in body.tokens):
        raise bad_request(f"tokens must hold ids in 0..{most}", "tokens")
    return {"content": served.model.detokenize(body.tokens, special=True)}


def _piece(served: Served, token: int) -> str | list[int]:
    """Return a token's text, or its bytes where they are a part of a character."""
    piece = served.model.piece(token, True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
