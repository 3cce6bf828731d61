"""Between the event loop and the engine's thread."""
