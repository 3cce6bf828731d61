"""Vectors of texts: OpenAI's, llama-server's and Ollama's routes for embeddings."""
