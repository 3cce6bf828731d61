"""Models, Modelfiles and chat templates of Ollama."""

from ngramspec.models.ollama.chat_template import ChatTemplate, render_chat
from ngramspec.models.ollama.modelfile import (
    ExampleMessage,
    Modelfile,
    parse_modelfile,
    read_modelfile,
)
from ngramspec.models.ollama.names import ModelName
from ngramspec.models.ollama.parameters import check_parameter, clamp_parameter, parse_parameter
from ngramspec.models.ollama.store import (
    ModelNotFoundError,
    StoredModel,
    default_roots,
    find_gguf,
    find_model,
    list_models,
)

__all__ = [
    "ChatTemplate",
    "ExampleMessage",
    "ModelName",
    "ModelNotFoundError",
    "Modelfile",
    "StoredModel",
    "check_parameter",
    "clamp_parameter",
    "default_roots",
    "find_gguf",
    "find_model",
    "list_models",
    "parse_modelfile",
    "parse_parameter",
    "read_modelfile",
    "render_chat",
]
