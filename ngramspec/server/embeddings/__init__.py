"""Vectors of texts: how a request for them is answered, and OpenAI's and llama-server's routes."""
