"""Chats: messages, templates, reasoning and tool calls, in no protocol of their own."""
