"""Routes of OpenAI's Responses API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.server.errors import ApiError
from ngramspec.server.responses.events import ResponseEvents, response_json
from ngramspec.server.responses.plan import input_tokens, plan_response
from ngramspec.server.service import computes, generates, posts, routes


async def stored(request: Request) -> Response:
    """Refuse: nothing is kept."""
    name = request.path_params["name"]
    raise ApiError(404, f"This server keeps no responses, so there is no {name!r}")


ROUTES = [
    *posts(generates(plan_response, ResponseEvents, response_json), "/v1/responses", "/responses"),
    *posts(computes(input_tokens), "/v1/responses/input_tokens", "/responses/input_tokens"),
    *routes(stored, "/v1/responses/{name:path}", methods=["GET", "DELETE"]),
]
