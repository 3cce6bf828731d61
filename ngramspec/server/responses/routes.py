"""Routes of OpenAI's Responses API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.server.errors import ApiError
from ngramspec.server.responses.events import ResponseEvents, response_json
from ngramspec.server.responses.plan import input_tokens, plan_response
from ngramspec.server.service import routes, service_of


async def create(request: Request) -> Response:
    return await service_of(request).generate(request, plan_response, ResponseEvents, response_json)


async def count(request: Request) -> Response:
    return await service_of(request).compute(request, input_tokens)


async def stored(request: Request) -> Response:
    """Refuse: nothing is kept."""
    name = request.path_params["name"]
    raise ApiError(404, f"This server keeps no responses, so there is no {name!r}")


ROUTES = [
    *routes(create, "/v1/responses", "/responses", methods=["POST"]),
    *routes(count, "/v1/responses/input_tokens", "/responses/input_tokens", methods=["POST"]),
    *routes(stored, "/v1/responses/{name:path}", methods=["GET", "DELETE"]),
]
