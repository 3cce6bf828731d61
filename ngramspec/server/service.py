"""Service: shared by all routes: the served model, the settings, and how requests are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ngramspec.errors import InputError
from ngramspec.server.bridge.bridge import Bridge
from ngramspec.server.bridge.intake import Incoming, Plan
from ngramspec.server.errors import INTERNAL, REQUEST_ID_HEADER, ApiError
from ngramspec.server.http.guard import ApiKeys
from ngramspec.server.model import ServedModel
from ngramspec.server.reply.sse import Events, EventStream, finished
from ngramspec.server.request.bodies import read
from ngramspec.server.settings import ServerSettings

if TYPE_CHECKING:
    from ngramspec.engine import Generation

P = TypeVar("P", bound=Plan)
Handler = Callable[[Request], Awaitable[Response]]
MAX_NAME_BODY = 1 << 16  # bytes of a body that only names something: the event loop parses it


@dataclass(eq=False)
class Service:
    """One per app; `service_of` finds it.

    settings: Those of now; only the keys change, see `take_keys`.
    """

    served: ServedModel
    settings: ServerSettings
    bridge: Bridge
    # by tenant: how many of its slots are saved or restored at the same time
    slot_turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that no pool of the engine is left unused.

        Raises:
            InputError: Each key has pools of its own, but the engine was given shared ones.
        """
        self._check_pools(self.settings)
        self.keys = ApiKeys(self.settings.api_keys)

    def take_keys(self, keys: Sequence[str]) -> None:
        """Let these API keys in from now on, and no others; running requests finish.

        Call it from any thread, of a server that has had keys from its start.

        Raises:
            InputError: There are none, which would let anybody in, or as `__post_init__`; nothing
                has changed.
        """
        if not any(keys):
            raise InputError("there must be an API key: without any, anybody could send requests")
        changed = self.settings.with_keys(keys)
        self._check_pools(changed)
        self.settings = changed  # before a second key is let in, keys are told apart
        self.keys.replace(keys)

    def _check_pools(self, settings: ServerSettings) -> None:
        pools = self.served.engine.drafters.shared_params
        if settings.isolates and pools:
            raise InputError(
                f"each of several keys learns for itself, so the {' and the '.join(pools)} given "
                "to the engine would not be used: leave it out, or set pool_per_key to False"
            )

    async def generate(
        self,
        request: Request,
        plan: Callable[[Incoming], P],
        events: Callable[[P, ServedModel, Sequence[Generation]], Events],
        whole: Callable[[P, ServedModel, Sequence[Generation]], Any],
    ) -> Response:
        """Answer a generating request.

        Args:
            request: Its body is read here.
            plan: Makes engine requests from the body; runs in a thread.
            events: Makes the events of a streamed answer.
            whole: Makes the JSON value of an answer that is not streamed.

        Raises:
            ApiError: It is refused or fails.
        """
        request_plan, answer = await self.bridge.open(plan, await self.take(request))
        request.scope["state"]["request_id"] = answer.request_id  # an error has it as well
        try:
            requests = request_plan.requests
            tells_prompt = any(one.prompt_logprobs is not None for one in requests)
            if request_plan.stream:
                encoder = events(request_plan, self.served, answer.generations)
                return EventStream(self.bridge, answer, encoder, large=tells_prompt)
            generations = await finished(self.bridge, answer, request.receive)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, ApiError):
                answer.cancel(ApiError(500, INTERNAL), "error")  # not its client
            self.bridge.close(answer)
            raise
        make = partial(whole, request_plan, self.served, generations)
        if tells_prompt or any(one.logprobs is not None for one in requests):
            response = await in_thread(make)  # it may be large
        else:
            response = json_response(make())
        if answer.request_id:
            response.headers[REQUEST_ID_HEADER] = answer.request_id
        return response

    async def compute(self, request: Request, make: Callable[[Incoming], Any]) -> Response:
        """Answer a request that generates nothing.

        Args:
            request: Its body is read here.
            make: Makes the JSON value; runs in a thread.

        Raises:
            ApiError: It is refused or fails.
        """

        def respond(incoming: Incoming) -> Response:
            return json_response(make(incoming))

        return await self.bridge.intake.run(respond, await self.take(request))

    async def take(self, request: Request) -> Incoming:
        """Return a request with its body, and what answers it.

        Raises:
            ApiError: The body did not arrive in time, or the client left.
        """
        return Incoming(
            raw=await self.read(request),
            served=self.served,
            settings=self.settings,
            namespace=self.namespace_of(request),
            tenant=self.tenant_of(request),
            name=request.scope["state"]["request_id"],
            receive=request.receive,
        )

    async def read(self, request: Request, most: int | None = None) -> bytes:
        """Return the body of a request.

        most: Its bytes at most, fewer than of any body.

        Raises:
            ApiError: It did not arrive in time, is too large, or the client left.
        """
        raw = await read(request, self.settings.read_timeout)
        if most is not None and len(raw) > most:
            words = f"the body is larger than {most} bytes"
            raise ApiError(413, words, code="request_too_large")
        return raw

    def namespace_of(self, request: Request) -> str:
        """Return the namespace of the request's key, "" if keys share what is learned."""
        return self.tenant_of(request) if self.settings.isolates else ""

    def tenant_of(self, request: Request) -> str:
        """Return the tenant whose share of the server a request uses, "" without several keys."""
        return str(request.scope["state"]["key_id"]) if self.settings.tells_keys_apart else ""


class Endpoint:
    """A route's handler as an ASGI application, with nothing between its response and the server.

    Exceptions of a handler reach Guard.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)


def routes(
    handler: Handler,
    *paths: str,
    methods: Sequence[str] = ("GET",),
) -> list[Route]:
    return [Route(path, Endpoint(handler), methods=list(methods)) for path in paths]


def posts(handler: Handler, *paths: str) -> list[Route]:
    return routes(handler, *paths, methods=("POST",))


def generates(
    plan: Callable[[Incoming], P],
    events: Callable[[P, ServedModel, Sequence[Generation]], Events],
    whole: Callable[[P, ServedModel, Sequence[Generation]], Any],
) -> Handler:
    """Return the handler that answers as Service.generate does."""
    return lambda request: service_of(request).generate(request, plan, events, whole)


def computes(make: Callable[[Incoming], Any]) -> Handler:
    """Return the handler that answers as Service.compute does."""
    return lambda request: service_of(request).compute(request, make)


def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)


async def in_thread(make: Callable[[], Any]) -> Response:
    """Return the JSON response of what make() returns, the end of an answer, made in a thread.

    That is not one of the threads that take requests in: at shutdown those end first, and running
    answers go on to their end.
    """
    return await asyncio.to_thread(lambda: json_response(make()))


def json_response(value: Any, status: int = 200) -> Response:
    # texts from clients may hold lone surrogates
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Response(body, status, media_type="application/json")
