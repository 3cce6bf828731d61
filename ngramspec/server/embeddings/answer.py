"""How a request for embeddings is answered, whatever its protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.arrays import TokenIds, Vectors
from ngramspec.errors import NgramspecError
from ngramspec.server.embeddings.queue import EmbeddingQueue
from ngramspec.server.errors import api_error
from ngramspec.server.incoming import Incoming
from ngramspec.server.service import in_thread, service_of


class TextsPlan(Protocol):
    """What a request wants: vectors of these texts."""

    @property
    def texts(self) -> Sequence[TokenIds]:
        """Return the texts."""


P = TypeVar("P", bound=TextsPlan)


async def answer(
    request: Request,
    plan: Callable[[Incoming], P],
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
    incoming = await service.take(request)
    texts_plan = await service.bridge.intake.run(plan, incoming)
    queue: EmbeddingQueue = request.app.state.embeddings
    try:
        vectors = await queue.run(texts_plan.texts, request.receive, incoming.tenant)
    except NgramspecError as error:
        raise api_error(error, service.settings.retry_after) from error
    return await in_thread(partial(whole, texts_plan, vectors))
