"""Incoming: a request as it came in, and what answers it; Plan: what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ngramspec.server.model import ServedModel
from ngramspec.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import Receive

    from ngramspec.engine import Request


@dataclass(frozen=True)
class Incoming:
    """A request as it came in, and what answers it.

    raw: Its body.
    namespace: Of its key, "" if keys share what is learned.
    tenant: Whose share of the server it uses, "" without several keys.
    name: What its client or a proxy calls it, "" = nothing.
    receive: The connection's, by which it is known whether the client has left; None = unknown.
    """

    raw: bytes
    served: ServedModel
    settings: ServerSettings
    namespace: str = ""
    tenant: str = ""
    name: str = ""
    receive: Receive | None = None


@dataclass(frozen=True)
class Plan:
    """What a body asks for, ready for the engine: one request per choice."""

    requests: Sequence[Request]
    stream: bool
    timings_per_token: bool
    spans: bool  # stream events mark the text that accepted drafts made
