"""Chats: messages, templates, reasoning and tool calls, independent of the protocol."""
