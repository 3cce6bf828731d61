"""Prediction: a text that the client expects in the answer, as OpenAI describes it."""

from __future__ import annotations

from ngramspec.arrays import TokenIds
from ngramspec.engine.request import NO_TOKENS
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import Body, Objects
from ngramspec.server.request.prompts import least_tokens
from ngramspec.text.chat.messages import text_of


class Prediction(Body):
    """OpenAI's prediction: a text that the answer will mostly repeat."""

    type: str
    content: str | Objects


def prediction_of(prediction: Prediction | None, served: ServedModel) -> TokenIds:
    """Return the tokens of the client's prediction of the answer.

    Raises:
        ApiError: It is of another type, or longer than any answer can be.
        ChatError: It is not a text.
    """
    if prediction is None:
        return NO_TOKENS
    if prediction.type != "content":
        raise bad_request("prediction.type must be content", "prediction")
    text = text_of(prediction.content, "prediction.content")
    most = served.engine.context_size
    if least_tokens(text, served, most) > most:
        raise bad_request(f"prediction must have at most {most} tokens", "prediction")
    return served.model.tokenize(text, add_special=False) if text else NO_TOKENS
