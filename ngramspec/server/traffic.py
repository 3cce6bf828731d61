"""Traffic: counts of what went wrong between clients and server: errors, cancellations, drops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ngramspec.server.errors import ApiError

# Why a request was cancelled: its client left, read too slowly, no slot was free in time, the
# server closes, the engine hangs or has ended, or something else of the same answer failed.
Cause = Literal["client", "slow_client", "queue_timeout", "shutdown", "engine", "error"]
CAUSES: tuple[Cause, ...] = (
    *("client", "slow_client", "queue_timeout", "shutdown", "engine", "error"),
)
# Why a connection was closed without its client's wish, and how the log says it.
DROPS = {
    "crowded": "there are too many",
    "head": "the head of its request did not come",
    "unread": "its client does not read",
    "shutdown": "the server closes",
}
# Told from the start on, as 0: the first of them is then seen as an increase.
USUAL_ERRORS = (
    ("401", "invalid_api_key"),
    ("429", "rate_limit_exceeded"),
    ("500", "server_error"),
    ("503", "server_overloaded"),
    ("503", "too_many_connections"),
)


class Traffic:
    """Counts since the start. The event loop writes them, any thread may read them.

    errors: By status and code of the error; both come from a few of ours, never from a client.
    cancelled: Requests that ended as cancelled, by cause.
    dropped: Connections that the server closed, by a key of DROPS.
    num_connections: Open connections now.
    """

    def __init__(self) -> None:
        self.errors: dict[tuple[str, str], int] = dict.fromkeys(USUAL_ERRORS, 0)
        self.cancelled: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self.dropped = dict.fromkeys(DROPS, 0)
        self.num_connections = 0

    def count_error(self, error: ApiError) -> None:
        """Count an error that a client is told. Cost: O(1)."""
        key = str(error.status), error.code or error.type
        self.errors[key] = self.errors.get(key, 0) + 1
