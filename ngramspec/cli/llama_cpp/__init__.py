"""Options with llama.cpp's names and meanings, for the commands that run a model with it."""
