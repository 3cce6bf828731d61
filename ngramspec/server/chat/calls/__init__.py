"""The formats in which models write tool calls.

To add a format, write a class in a file of its own and add it to CALL_FORMATS.
"""

from ngramspec.server.chat.calls.format import CallFormat
from ngramspec.server.chat.calls.hermes import Hermes
from ngramspec.server.chat.calls.llama import Llama
from ngramspec.server.chat.calls.mistral import Mistral

# A model's format is the first one that fits its chat template; the last one fits every template.
CALL_FORMATS: list[CallFormat] = [Mistral(), Llama(), Hermes()]


def call_format_of(template: str) -> CallFormat:
    """Return the format of the model with this chat template."""
    return next(known for known in CALL_FORMATS if known.fits(template))
