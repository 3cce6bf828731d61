"""The formats in which models write their reasoning.

To add a format, write a class in a file of its own and add it to REASONING_FORMATS.
"""

from ngramspec.server.chat.reasoning.format import ReasoningFormat
from ngramspec.server.chat.reasoning.think import Think

# A model's format is the first one that fits its chat template; if none fits, the first.
REASONING_FORMATS: list[ReasoningFormat] = [Think()]


def reasoning_format_of(template: str) -> ReasoningFormat:
    """Return the format of the model with this chat template, even if the template lacks it."""
    fitting = (known for known in REASONING_FORMATS if known.fits(template))
    return next(fitting, REASONING_FORMATS[0])
