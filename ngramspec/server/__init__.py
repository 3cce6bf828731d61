"""The inference server: OpenAI's and llama-server's routes over an engine with slots.

Web frameworks are imported in this package only; `import ngramspec` does not load it.
"""

from __future__ import annotations

from ngramspec.server.app import create_app
from ngramspec.server.served import Served
from ngramspec.server.settings import ServerSettings

__all__ = ["Served", "ServerSettings", "create_app"]
