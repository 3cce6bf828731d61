"""What MkDocs does beside its plugins: links to files outside docs/ go to the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")


def repository() -> str | None:
    """Return the address of the files, or None where pyproject.toml names no home page."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    home = re.search(r'^Homepage = "([^"]+)"$', text, re.M)
    return f"{home[1]}/blob/main/" if home else None


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave docs/ at the repository's files.

    Raises:
        FileNotFoundError: A link names a file that the repository does not have.
    """
    folder = posixpath.dirname(page.file.src_uri)
    base = repository()

    def mend(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[1]))
        if path.startswith("docs/"):
            return link[0]
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {link[1]}, which does not exist")
        return f"]({base}{path}{link[2] or ''})" if base else "]"

    return LINK.sub(mend, markdown)
