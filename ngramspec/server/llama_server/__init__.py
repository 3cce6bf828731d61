"""llama-server's own API."""
