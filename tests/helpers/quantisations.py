"""The embedded model with weights of other types, made by llama.cpp's own quantisation."""

from __future__ import annotations

import ctypes
from pathlib import Path

from ngramspec import embedded_model

# llama.cpp's number of each type, and the type of most weights in such a file.
KINDS = {
    "F32": (0, "F32"),
    "F16": (1, "F16"),
    "BF16": (32, "BF16"),
    "Q8_0": (7, "Q8_0"),
    "Q6_K": (18, "Q6_K"),
    "Q5_K_M": (17, "Q5_K"),
    "Q5_1": (9, "Q5_1"),
    "Q5_0": (8, "Q5_0"),
    "Q4_K_M": (15, "Q4_K"),
    "Q4_K_S": (14, "Q4_K"),
    "Q4_1": (3, "Q4_1"),
    "Q4_0": (2, "Q4_0"),
    "IQ4_NL": (25, "IQ4_NL"),
    "IQ4_XS": (30, "IQ4_XS"),
    "Q3_K_M": (12, "Q3_K"),
    "IQ3_S": (26, "IQ3_S"),
    "Q2_K": (10, "Q2_K"),
}


def requantized(kind: str, folder: Path) -> str:
    """Return the path of the embedded model with weights of a type, written into a folder.

    Raises:
        OSError: llama.cpp cannot write it.
    """
    import llama_cpp.llama_cpp as lib
    from llama_cpp._logger import set_verbose

    set_verbose(False)
    source, target = embedded_model(), folder / f"{kind}.gguf"
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = KINDS[kind][0], True, 1
    code = lib.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(params)
    )
    if code != 0:
        raise OSError(f"llama_model_quantize returned {code}")
    return str(target)
