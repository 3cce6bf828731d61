"""Fixtures: the models and Llama objects of llamacpp's tests."""

from llamacpp.conftest import make_llama, model_folder, model_path

__all__ = ["make_llama", "model_folder", "model_path"]
