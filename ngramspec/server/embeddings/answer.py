"""How a request for embeddings is answered, whatever its protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.arrays import TokenIds, Vectors
from ngramspec.errors import NgramspecError
from ngramspec.server.embeddings.queue import EmbeddingQueue
from ngramspec.server.errors import api_error
from ngramspec.server.model import ServedModel
from ngramspec.server.service import json_response, service_of


class TextsPlan(Protocol):
    """What a request wants: vectors of these texts."""

    @property
    def texts(self) -> Sequence[TokenIds]:
        """Return the texts."""


P = TypeVar("P", bound=TextsPlan)


async def answer(
    request: Request,
    plan: Callable[[bytes, ServedModel], P],
    whole: Callable[[P, Sequence[Vectors]], Any],
) -> Response:
    """Answer a request: read it and make the JSON in threads, compute in the queue's.

    Args:
        request: The request.
        plan: Reads its body; raises ApiError if it cannot be answered.
        whole: Makes the JSON of a plan and the vectors of its texts.

    Raises:
        ApiError: It cannot be answered, or there is no room.
    """
    service = service_of(request)
    raw = await service.read(request)
    texts_plan = await service.bridge.prepare(
        lambda: plan(raw, service.served),
        request.receive,
        len(raw),
        service.tenant_of(request),
    )
    queue: EmbeddingQueue = request.app.state.embeddings
    try:
        tenant = service.tenant_of(request)
        vectors = await queue.run(texts_plan.texts, request.receive, tenant)
    except NgramspecError as error:
        raise api_error(error, service.settings.retry_after) from error
    return await service.bridge.finish(lambda: json_response(whole(texts_plan, vectors)))
