"""Chats in the model's own template: what it can do, and prompts as llama-server writes them."""
