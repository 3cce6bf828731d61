"""Requests of all protocols: from the fields of a body to the engine's requests."""
