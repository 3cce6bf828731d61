"""Embeddings beside text: the options of `serve`, with llama-server's names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.options import Decorator, option, options
from ngramspec.cli.target import context_settings, model_settings
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.llamacpp.embeddings import Embedder
    from ngramspec.llamacpp.model import LlamaModel

POOLINGS = ("none", "mean", "cls", "last", "rank")


def embedding_options(section: str) -> Decorator:
    """Return the options that turn embeddings on."""
    return options(
        option(section, "--embeddings", "--embedding", "embeddings", env="EMBEDDINGS",
               is_flag=True,
               help="Vectors of texts too, in a context of --ubatch-size tokens of their own: "
               "/v1/embeddings, /embeddings, /api/embed."),
        option(section, "--pooling", env="POOLING", type=click.Choice(POOLINGS),
               help="How vectors of tokens become one of the text.  [default: as the model says]"),
        option(section, "--embd-normalize", type=click.IntRange(-1, 100), default=2,
               help="Length of vectors: -1 as they are, 0 largest number 32760, else the p-norm."),
    )  # fmt: skip


def open_embedder(
    values: Mapping[str, Any], model: LlamaModel, models: contextlib.ExitStack
) -> Embedder | None:
    """Return what makes vectors, None unless it is asked for.

    Args:
        values: The options.
        model: The model whose weights it uses.
        models: Closes it.

    Raises:
        InputError: The pooling is for ranking.
        BackendError: llama.cpp cannot make the context.
    """
    from ngramspec.llamacpp.embeddings import Embedder
    from ngramspec.runtime import settle

    if not values["embeddings"]:
        return None
    if values["pooling"] == "rank":
        raise InputError("--pooling rank: this server does not rank texts, keep llama-server")
    settings = settle(model_settings(values), context_settings(values))
    return models.enter_context(Embedder(model, settings, values["pooling"]))
