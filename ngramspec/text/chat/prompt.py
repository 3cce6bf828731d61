"""ChatPrompt: what a model reads of a conversation, and how it will write its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ngramspec.text.chat.format import ChatFormat, chat_format
from ngramspec.text.chat.messages import for_template, messages_of
from ngramspec.text.chat.tools import tools_of


class Templates(Protocol):
    """A model's chat templates; LlamaModel has them. Several threads use them at once."""

    chat_template: str | None  # in Jinja
    tool_template: str | None  # its own one for chats with tools; None = the same

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        continue_final_message: bool | str = False,
        **variables: Any,
    ) -> str:
        """Return the prompt of a conversation; as LlamaModel.render_chat."""

    def chat_capabilities(self, template: str | None = None) -> dict[str, bool]:
        """Return what the chat template can do, in the names of llama-server's /props.

        template: A Jinja template instead of the model's.

        Raises:
            InputError: There is none, or it is not valid.
        """


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt of a conversation."""

    text: str  # as the template wrote it
    format: ChatFormat  # of the answer


def chat_prompt(
    model: Templates,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> ChatPrompt:
    """Return the prompt of a conversation, as the server makes it.

    Args:
        model: Whose templates are used.
        messages: In OpenAI's shape; contents are texts or lists of text parts.
        tools: In OpenAI's shape; a template that knows none gets them as text.

    Raises:
        ChatError: A message or a tool does not have that shape.
        InputError: There is no template, or it refuses the conversation.
    """
    offered, chat = tools_of(tools), messages_of(messages)
    can = model.chat_capabilities()
    listed = offered.tools if can["supports_tools"] else None
    conversation, described = for_template(chat, offered, listed, can["supports_tool_calls"])
    text = model.render_chat(conversation, tools=described or None)
    template = (model.tool_template if offered else None) or model.chat_template or ""
    return ChatPrompt(text, chat_format(template, text, offered, parses_reasoning=True))
