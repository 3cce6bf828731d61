"""What was trained and ships with the package: a small language model, and weights."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["confidence_weights", "embedded_model", "successor_claims"]

FILE_NAME = "tiny-code-q8_0.gguf"
WEIGHTS = "suffix_confidence.npy"
CLAIMS = "recycle_claims.npy"


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


def confidence_weights() -> npt.NDArray[np.float32]:
    """Return the weights of the network behind the suffix drafter's confidence, read-only.

    tools/train_confidence.py makes them.
    """
    weights: npt.NDArray[np.float32] = _load(WEIGHTS)
    return weights


def successor_claims() -> npt.NDArray[np.uint16]:
    """Return how often recycle takes successors of each class to be right at first, read-only.

    In 65,535ths, uint16 (2, 3, 6, 2, 4, 16). tools/train_recycle.py makes them.
    """
    claims: npt.NDArray[np.uint16] = _load(CLAIMS)
    return claims


def _load(name: str) -> npt.NDArray[Any]:
    import numpy as np

    with files(__name__).joinpath(name).open("rb") as file:
        values: npt.NDArray[Any] = np.load(file, allow_pickle=False)
    values.flags.writeable = False
    return values
