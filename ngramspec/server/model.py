"""ChatModel: what the server needs of a model; ServedModel: a model, its engine and defaults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ngramspec.arrays import TokenIds
from ngramspec.engine.sampling import Sampling
from ngramspec.errors import InputError
from ngramspec.models.ollama.recipe import Recipe
from ngramspec.server.adapters import ServedAdapters
from ngramspec.text.chat.prompt import Templates

if TYPE_CHECKING:
    from ngramspec.engine import Drafting, Engine
    from ngramspec.server.recorder import Recorder


_PROBE = "a system message"


class ChatModel(Templates, Protocol):
    """A model's vocabulary, chat template and figures; the engine's Target runs the model.

    Several threads use it at once. Nothing here changes while it is served.
    """

    path: Path  # its file, which Ollama's routes name; it need not be there any more
    file_size: int  # bytes of the file when it was read
    file_time_ns: int  # when it had been written, nanoseconds since 1970
    metadata: dict[str, str]  # as in a GGUF file, without arrays
    description: str
    file_type: int  # llama.cpp's number for how weights are quantized
    file_type_name: str  # its name, such as "Q8_0"
    num_params: int
    size_bytes: int  # of the weights
    n_ctx_train: int  # tokens of context that it was trained with
    n_gpu_layers: int  # 0 = none on a GPU
    vocab_size: int
    add_bos: bool  # prompts begin with the begin token
    bos: int  # token id; here and below: -1 = the vocabulary has none
    eos: int
    fim_pre: int  # infill tokens: prefix, suffix, middle, repository, file
    fim_suf: int
    fim_mid: int
    fim_rep: int
    fim_sep: int

    @property
    def architecture(self) -> str:
        """Return the name of the model family, such as "llama"; "" = unknown."""

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> TokenIds:
        """Return the token ids of a text.

        Args:
            text: Any text, lone surrogates included.
            add_special: Put the begin token before it if the model wants one.
            parse_special: Turn texts such as `<|im_end|>` into one special token.
        """

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least, without tokenizing it; 0 = unknown."""

    def tokenize_prompt(self, text: str) -> TokenIds:
        """Return the tokens of a prompt: special tokens parsed, the begin token once."""

    def detokenize(self, token_ids: Sequence[int] | TokenIds, special: bool = False) -> str:
        """Return the text of token ids, with U+FFFD for what is not UTF-8."""

    def piece(self, token_id: int, special: bool = False) -> bytes:
        """Return the bytes of a token, b"" for a special one unless `special`."""


class ServedEmbedder(Protocol):
    """Makes vectors of texts; one thread at a time uses it."""

    pooling: str  # none: a vector per token
    size: int  # numbers of a vector
    most_tokens: int  # of all texts of one call
    most_texts: int  # of one call

    def embed(self, texts: Sequence[TokenIds]) -> list[npt.NDArray[np.float32]]:
        """Return a vector per text, shape (1, size), or one per token, shape (n, size)."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that a model takes, and where its layers are."""

    weights: int
    context: int  # keys, values and states of all slots
    context_per_slot: int  # all of it where slots share
    context_shared: bool
    compute: int  # what a decode needs
    device: str  # CPU, or GPUs and how many layers they have


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model, its engine and the defaults of requests."""

    name: str  # the model's id for clients
    model: ChatModel
    engine: Engine
    memory: Memory | None = None  # None = not known
    embedder: ServedEmbedder | None = None  # None: routes for embeddings are refused
    embedding_norm: int = 2  # length of vectors, as llama-server's embd_normalize
    aliases: tuple[str, ...] = ()  # further ids
    created: int = field(default_factory=lambda: int(time.time()))
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = -1  # -1 = until the context is full, for ever if it shifts; -2 = full
    num_keep: int = 0  # tokens of the prompt that a context shift keeps, -1 = all
    reasoning_budget: int = -1  # tokens of reasoning in a chat, -1 = any number
    reasoning_message: str = ""  # written before the end of reasoning that a budget ends
    stop: tuple[str, ...] = ()
    system: str = ""  # system message of chats that have none
    template: str | None = None  # chat template in Jinja, None = the model's
    recipe: Recipe = field(default_factory=Recipe)  # what Ollama knows of the model
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    prefill: bool = True  # an assistant's message at the end of a chat is continued
    special: bool = False  # answers show special tokens
    tags: tuple[str, ...] = ()  # listed with the model
    adapters: ServedAdapters = field(default_factory=ServedAdapters)
    cache_prompt: bool = True
    batch_size: int = 2048  # tokens; sizes the context of /infill, as in llama-server
    spm_infill: bool = False  # /infill: suffix before prefix
    draft_notes: tuple[str, ...] = ()  # why something that was asked for does not draft
    recorder: Recorder | None = None  # writes finished requests to a file

    @property
    def drafting(self) -> Drafting:
        drafting = self.engine.drafting()
        return replace(drafting, notes=(*self.draft_notes, *drafting.notes))

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def chat_template(self) -> str:
        """Return the chat template in use, "" when there is none."""
        return self.template_for(tools=False)

    def template_for(self, tools: bool) -> str:
        """Return the template that chats with tools, or without, are written in, "" for none."""
        own = self.model.tool_template if tools else None
        return self.template or self.go_template or own or self.model.chat_template or ""

    @cached_property
    def chat_capabilities(self) -> Mapping[str, bool]:
        """Return what the chat template in Jinja can do, nothing where there is none."""
        if self.go_template is None:
            with contextlib.suppress(InputError):
                return self.model.chat_capabilities(self.template)
        return {}

    @cached_property
    def takes_late_system(self) -> bool:
        """Return whether the chat template shows system messages within a chat; many refuse."""
        if self.go_template is not None:
            return True
        message = {"role": "user", "content": "x"}
        chat = [message, {"role": "system", "content": _PROBE}, message]
        with contextlib.suppress(InputError):
            variables = dict(self.template_variables)
            return _PROBE in self.model.render_chat(chat, template=self.template, **variables)
        return False

    @property
    def go_template(self) -> str | None:
        """Return the chat template in use if it is a Go template, otherwise None."""
        first = self.recipe.template_first or not self.model.chat_template
        return self.recipe.template if first and not self.template else None
