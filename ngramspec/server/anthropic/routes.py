"""Routes of Anthropic's Messages API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.server.anthropic.events import MessageEvents, message_json
from ngramspec.server.anthropic.plan import input_tokens, plan_message
from ngramspec.server.service import routes, service_of


async def create(request: Request) -> Response:
    return await service_of(request).generate(request, plan_message, MessageEvents, message_json)


async def count(request: Request) -> Response:
    return await service_of(request).compute(request, input_tokens)


ROUTES = [
    *routes(create, "/v1/messages", methods=["POST"]),
    *routes(count, "/v1/messages/count_tokens", methods=["POST"]),
]
