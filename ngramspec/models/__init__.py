"""The small language model that ships with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["embedded_model"]

FILE_NAME = "tiny-code-q8_0.gguf"


def embedded_model() -> Path:
    """Return the path of the shipped GGUF model, a tiny llama that copies and edits code.

    Raises:
        FileNotFoundError: The file is not there: the package was built without it, or it is
            imported from a zip archive, out of which llama.cpp cannot load a model.
    """
    path = Path(str(files(__name__).joinpath(FILE_NAME)))
    if not path.is_file():
        raise FileNotFoundError(
            f"the embedded model is missing: {path}; reinstall ngramspec unzipped, "
            "or rebuild the file as tools/embedded_model/README.md describes"
        )
    return path
