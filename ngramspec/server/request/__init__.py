"""What all protocols need to ask: from the fields of a body to the engine's requests."""
