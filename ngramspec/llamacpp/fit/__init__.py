"""How layers and context fit in free memory.

`machine` looks at the machine, `dry` lets llama.cpp say what a context takes, `plan`
decides from these facts alone, `fit` puts them together and says what to tell.
"""

from ngramspec.llamacpp.fit.dry import trained_context
from ngramspec.llamacpp.fit.fit import (
    Fitted,
    Limits,
    Machine,
    Words,
    find_machine,
    fit,
    layer_notes,
    possible,
)

__all__ = [
    "Fitted",
    "Limits",
    "Machine",
    "Words",
    "find_machine",
    "fit",
    "layer_notes",
    "possible",
    "trained_context",
]
