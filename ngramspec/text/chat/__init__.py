"""How chats are written: messages and tools for a template, reasoning and calls of an answer."""
