"""The input of a chat's prompt, and how to answer it, the same for every protocol."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from ngramspec.arrays import TokenIds
from ngramspec.engine.request import NO_TOKENS
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import MAX_TOOLS, Body, Objects, SamplingBody, at_most
from ngramspec.server.request.prompts import least_tokens
from ngramspec.text.chat.messages import text_of
from ngramspec.text.chat.tools import Tools, tools_of


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


class Conversation(Body):
    """Messages and tools in OpenAI's shape, and settings for the template."""

    messages_field: ClassVar[str] = "messages"  # what the client's request calls them
    messages: Objects
    tools: Annotated[list[dict[str, Any]], at_most(MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: Any = None  # true, "content" or "reasoning_content"; else false
    reasoning_effort: str | None = None

    def callable_tools(self) -> Tools:
        """Return the tools that the model may call.

        Raises:
            ChatError: A tool or the choice of one does not have OpenAI's shape.
        """
        return tools_of(self.tools, self.tool_choice, self.parallel_tool_calls)


class AnswerBody(SamplingBody):
    """A body that asks for answers; protocols say where in it the following is."""

    prediction: Prediction | None = None

    @property
    def answer_schema(self) -> tuple[Any, str]:
        """Return the JSON schema that an answer must follow, None for none, and its field's name.

        Raises:
            ApiError: The format of the answer is not known, or lacks its schema.
        """
        return self.json_schema, "json_schema"

    @property
    def is_strict(self) -> bool:
        """Return whether what a grammar cannot enforce of the schema is to be refused."""
        return False

    @property
    def num_tokens(self) -> int | None:
        """Return the largest number of tokens, None = the server's default."""
        return None

    @property
    def num_choices(self) -> int:
        """Return the number of answers."""
        return 1

    @property
    def reported(self) -> tuple[str, int | None]:
        """Return which field says how many of the likeliest tokens to report; None = none.

        Raises:
            ApiError: Fields contradict one another.
        """
        return "top_logprobs", None

    @property
    def of_prompt(self) -> int | None:
        """Return how many of the likeliest tokens to report of the prompt, None = nothing of it.

        Raises:
            ApiError: The answer has no place for it.
        """
        return None

    @property
    def reports_sampled(self) -> bool:
        """Return whether these are reported of what the sampler chose from."""
        return False
