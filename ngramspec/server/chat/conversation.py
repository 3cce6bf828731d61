"""The input of a chat's prompt, and how to answer it, the same for every protocol."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from ngramspec.server.chat.prediction import Prediction
from ngramspec.server.request.bodies import MAX_TOOLS, Body, Objects, SamplingBody, at_most
from ngramspec.text.chat.tools import Tools, tools_of


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
    post_sampling_probs: bool | None = None

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
