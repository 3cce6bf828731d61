"""Asset: a file of the page, as it is sent to a browser."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PAGE = files("ngramspec.server") / "page"
# Files with other endings are not sent.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Only the page's own files, no inline scripts or styles, not in another site's frame. HTML is made
# of text in one place only: by the sanitiser.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # kept, but asked for again with its tag
    "vary": "accept-encoding",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page; it is read when it is first asked for."""

    file: Traversable
    media_type: str

    @cached_property
    def content(self) -> bytes:
        """Return the file's bytes."""
        return self.file.read_bytes()

    @cached_property
    def zipped(self) -> bytes:
        """Return the bytes in gzip's format."""
        return gzip.compress(self.content, mtime=0)

    @cached_property
    def tag(self) -> str:
        """Return what changes with the content."""
        return hashlib.sha256(self.content).hexdigest()[:20]

    def response(self, asked: Mapping[str, str]) -> Response:
        """Return the answer to a request: 304 where the browser has the file already.

        asked: The request's headers, names in lower case.
        """
        zips = "gzip" in asked.get("accept-encoding", "")
        tag = f'"{self.tag}{"-gzip" if zips else ""}"'
        headers = {**HEADERS, "etag": tag, "content-type": self.media_type}
        etags = asked.get("if-none-match", "")
        if etags.strip() == "*" or tag in [one.strip() for one in etags.split(",")]:
            return Response(status_code=304, headers=headers)
        if zips:
            return Response(self.zipped, headers={**headers, "content-encoding": "gzip"})
        return Response(self.content, headers=headers)


def page_assets() -> dict[str, Asset]:
    """Return the files of the page by their paths: index.html at /, the others below /page/."""
    assets = {f"/page/{path}": asset for path, asset in _assets_in(PAGE)}
    assets["/"] = assets.pop("/page/index.html")
    assets["/favicon.ico"] = assets["/page/favicon.svg"]
    return assets


def _assets_in(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        ending = f".{entry.name.rpartition('.')[2]}"
        if entry.is_dir():
            yield from _assets_in(entry, f"{prefix}{entry.name}/")
        elif ending in TYPES:
            yield f"{prefix}{entry.name}", Asset(entry, TYPES[ending])
