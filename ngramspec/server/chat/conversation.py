"""Conversation: the input of a chat's prompt, the same for every protocol."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from ngramspec.server.request.bodies import MAX_TOOLS, Body, Objects, at_most
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
