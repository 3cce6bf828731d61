"""Drafts in other engines: llama-cpp-python, transformers, vLLM, SGLang, Arctic's interface."""
