"""Addresses of the pages of the documentation, which an installed package does not hold."""

from __future__ import annotations

DOCS = "https://github.com/ngramspec/ngramspec/tree/main/docs"


def page_url(page: str) -> str:
    """Return the address of a page. page: its path in docs/, as "explanation/exactness.md"."""
    return f"{DOCS}/{page}"
