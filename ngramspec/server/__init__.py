"""The inference server: OpenAI's, llama-server's and Ollama's routes over an engine with slots.

Only this package imports web frameworks; `import ngramspec` does not load it.
"""

from __future__ import annotations

from ngramspec.server.app import create_app
from ngramspec.server.model import ChatModel, Memory, ServedModel
from ngramspec.server.settings import ServerSettings

__all__ = ["ChatModel", "Memory", "ServedModel", "ServerSettings", "create_app"]
