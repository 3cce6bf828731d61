"""The formats in which models write their reasoning.

A format is a class in a file of its own and its place in REASONING_FORMATS.
"""

from ngramspec.server.chat.reasoning.format import ReasoningFormat
from ngramspec.server.chat.reasoning.think import Think

# The first one that fits a model's chat template is the model's; where none does, the first.
REASONING_FORMATS: list[ReasoningFormat] = [Think()]


def reasoning_format_of(template: str) -> ReasoningFormat:
    """Return the format of the model with this chat template, which may not be named in it."""
    fitting = (known for known in REASONING_FORMATS if known.fits(template))
    return next(fitting, REASONING_FORMATS[0])
