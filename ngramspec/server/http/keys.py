"""ApiKeys: the keys that are accepted, kept and compared as hashes."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from hashlib import sha256

ID_LENGTH = 16  # hexadecimal digits


class ApiKeys:
    """The valid keys; without any, all requests are allowed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        """Let these keys in from now on, and no others."""
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, presented: str) -> str | None:
        """Return the id of a valid key, None for any other text.

        Compares with all keys, in a time that does not depend on how much of a key is right.
        """
        digest = _digest(presented)
        valid = False
        for key_digest in self._digests:
            valid |= hmac.compare_digest(key_digest, digest)
        return digest.hex()[:ID_LENGTH] if valid else None


def presented_key(headers: Mapping[str, str]) -> str:
    """Return the key of a request: `Authorization: Bearer KEY` or `X-Api-Key: KEY`."""
    value = headers.get("authorization", "") or headers.get("x-api-key", "")
    value = value.encode("latin-1", "replace").decode("utf-8", "replace")  # ASGI decodes as latin-1
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value.strip()


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
