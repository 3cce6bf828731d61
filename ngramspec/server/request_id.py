"""The id of a request: in the log, in the answer's id, and in the header x-request-id."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

HEADER = "x-request-id"
# A client's or proxy's own id that the log and the answer repeat; any other text is not looked at.
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def new_id() -> str:
    """Return an id that no other request has: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def given_id(headers: Mapping[str, str]) -> str:
    """Return the id that a request came with, "" if it has none that is short and plain."""
    request_id = headers.get(HEADER, "")
    return request_id if _SAFE.fullmatch(request_id) else ""
