"""Chats of any protocol: from the body of a request to the engine."""
