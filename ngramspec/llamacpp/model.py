"""LlamaModel: a GGUF model with its vocabulary and chat template, without a context."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ngramspec.arrays import TokenIds
from ngramspec.errors import BackendError, InputError, StateError
from ngramspec.llamacpp.loading import Loading, apply_loading
from ngramspec.llamacpp.lora import load_adapters
from ngramspec.llamacpp.placement import Placement, place
from ngramspec.text.templates.templates import ChatTemplates
from ngramspec.text.tokenizers.fingerprint import read_gguf_tokens
from ngramspec.text.tokenizers.gguf import check_gguf
from ngramspec.text.tokenizers.llama_library import Handle, catch_log, load_library, load_model
from ngramspec.text.tokenizers.llama_vocabulary import Vocabulary, check_vocabulary

if TYPE_CHECKING:
    from typing_extensions import Self


TEMPLATE_KEY = "tokenizer.chat_template"
TOOL_TEMPLATE_KEY = f"{TEMPLATE_KEY}.tool_use"
_FIM = ("pre", "suf", "mid", "pad", "rep", "sep")
STATEFUL = ("deepseek4",)  # attention models that keep a state as well
_SMALLEST = 256  # tokens of the smallest context that llama.cpp makes
ENDS = 1 << 20  # bytes of a file that its digest covers at either end


class Closable(Protocol):
    """Something that is closed before the model."""

    def close(self) -> None:
        """Free what was made from the model."""


class LlamaModel:
    """A model in GGUF format.

    Args:
        path: The file; for a split model, its first.
        placement: Where its weights lie; None = in the CPU's memory.
        loading: How the file is read; None = mapped.
        adapters: Files of LoRA adapters; requests say which are applied.
        vocab_only: Load the vocabulary only; no target can be made then.

    Raises:
        InputError: There is no such device or kind of memory, or adapters is one file.
        FormatError: Not a GGUF file, or its vocabulary cannot encode every text.
        BackendError: llama-cpp-python is not installed, or cannot load or run the file.
        OSError: The file cannot be read.

    Several threads may read it at once; close it when none uses it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        placement: Placement | None = None,
        loading: Loading | None = None,
        adapters: Sequence[str | os.PathLike[str]] = (),
        vocab_only: bool = False,
    ) -> None:
        if isinstance(adapters, (str, os.PathLike)):
            raise InputError(f"adapters must be a list of files, got one: [{str(adapters)!r}]")
        self.path = Path(path)
        placement, loading = placement or Placement(), loading or Loading()
        for file in (self.path, *adapters):  # the model may take long to load
            check_gguf(file)
        check_vocabulary(self.path, *read_gguf_tokens(self.path))
        state = self.path.stat()  # as it is read; it may be moved or deleted later
        self.file_size, self.file_time_ns = state.st_size, state.st_mtime_ns
        self.library = load_library()
        lib = self.library.lib
        catch_log(lib)
        params = lib.llama_model_default_params()
        arrays = [*place(placement, lib, params), *apply_loading(loading, self.library, params)]
        params.vocab_only = vocab_only
        self.vocab_only = vocab_only
        self.placement, self.loading = placement, loading
        self.n_gpu_layers = placement.layers
        self.handle = load_model(self.library, self.path, params)
        del arrays  # llama.cpp has read it
        self.adapters = load_adapters(self.library, self.handle, adapters)
        self._users: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._read()

    def _read(self) -> None:
        """Read the properties that never change."""
        lib, address = self.library.lib, self.handle.address
        self.vocabulary = Vocabulary(self.library, lib.llama_model_get_vocab(address))
        self.vocab_size = self.vocabulary.vocab_size
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(address))
        self.num_layers = int(lib.llama_model_n_layer(address))
        self.size_bytes = int(lib.llama_model_size(address))
        self.num_params = int(lib.llama_model_n_params(address))
        file_type = lib.llama_model_ftype(address)
        self.file_type = int(file_type) & ~lib.LLAMA_FTYPE_GUESSED
        self.file_type_name = str(lib.llama_ftype_name(file_type).decode())
        self.n_swa = int(lib.llama_model_n_swa(address))
        self.is_recurrent = bool(lib.llama_model_is_recurrent(address))
        self.is_hybrid = bool(lib.llama_model_is_hybrid(address))
        self.has_encoder = bool(lib.llama_model_has_encoder(address))
        self.is_diffusion = bool(lib.llama_model_is_diffusion(address))
        self.description = _text(lib.llama_model_desc, address)
        self.metadata = {**_metadata(lib, address), **self.loading.shown()}
        self.chat_template = self.metadata.get(TEMPLATE_KEY)
        self.tool_template = self.metadata.get(TOOL_TEMPLATE_KEY)
        special = self.vocabulary.special
        self.bos, self.eos, self.eot = special["bos"], special["eos"], special["eot"]
        self.add_bos = self.vocabulary.add_bos
        self.fim_pre, self.fim_suf, self.fim_mid = (special[f"fim_{n}"] for n in _FIM[:3])
        self.fim_pad, self.fim_rep, self.fim_sep = (special[f"fim_{n}"] for n in _FIM[3:])
        text = self.vocabulary.text
        self._templates = ChatTemplates(
            text(self.bos),
            text(self.eos),
            adds_eos=bool(lib.llama_vocab_get_add_eos(lib.llama_model_get_vocab(address))),
            library=self.library,
        )

    @property
    def architecture(self) -> str:
        """Return the name of the model family, such as "llama"."""
        return self.metadata.get("general.architecture", "")

    @property
    def is_stateful(self) -> bool:
        """Return whether tokens cannot be removed from its cache one by one."""
        return self.is_recurrent or self.is_hybrid or self.architecture in STATEFUL

    @cached_property
    def state_bytes(self) -> int:
        """The bytes of the state that it keeps for each sequence, measured on first use.

        Raises:
            BackendError: llama.cpp cannot run the model.
        """
        return _measure_state(self) if self.is_stateful else 0

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> TokenIds:
        """Return the token ids of a text, as llama.cpp makes them.

        Args:
            text: Lone surrogates become "?". Runs of more than 4,096 characters without white
                space, or of white space only, are cut.
            add_special: Put the begin token before it and the end token after it, if the model
                asks for them.
            parse_special: Make `<|im_end|>` and the like one special token instead of text.

        Returns:
            int32, shape (n,).

        Raises:
            BackendError: llama.cpp has no token for a part of it.
            StateError: The model is closed.

        Cost: 2 to 8 MB/s, without the GIL.
        """
        return self.vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, token_ids: Sequence[int] | TokenIds, special: bool = False) -> str:
        """Return the text of token ids, with U+FFFD for what is not UTF-8.

        Args:
            token_ids: Ids in 0..vocab_size - 1.
            special: Show special tokens.

        Raises:
            InputError: An id is not in the vocabulary.
        """
        return self.vocabulary.detokenize(token_ids, special)

    def piece(self, token_id: int, special: bool = False) -> bytes:
        """Return the bytes of a token, b"" for a special one unless `special`; kept once made.

        Raises:
            InputError: The id is not in the vocabulary.
        """
        return self.vocabulary.piece(token_id, special)

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary lists it, "" for -1.

        Raises:
            InputError: The id is not in the vocabulary.
        """
        return self.vocabulary.text(token_id)

    def is_end(self, token_id: int) -> bool:
        return 0 <= token_id < self.vocab_size and bool(self.vocabulary.ends[token_id])

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        continue_final_message: bool | str = False,
        **variables: Any,
    ) -> str:
        """Return the prompt of a conversation, as llama-server writes it.

        Args:
            messages: Objects with role and content, as in OpenAI's API.
            tools: Tools that the model may call.
            add_generation_prompt: End with the start of the answer.
            template: A Jinja template instead of the model's, which runs in a sandbox, or the name
                of one of llama.cpp's own.
            continue_final_message: The last message is the begun answer, which stays open.
                "content" or "reasoning_content" says which part of it is begun.
            variables: Further variables of the template.

        Raises:
            InputError: There is no template, it is not valid, or it refuses the conversation.
        """
        return self._templates.render(
            self._template(template, bool(tools)),
            messages,
            tools,
            add_generation_prompt,
            variables,
            continue_final_message,
        )

    def chat_capabilities(self, template: str | None = None) -> dict[str, bool]:
        """Return what the chat template can do, in the names of llama-server's /props.

        template: A Jinja template instead of the model's.

        Raises:
            InputError: There is no template, or it is not valid.
        """
        return self._templates.capabilities(self._template(template, True)).as_dict()

    def _template(self, chosen: str | None, tools: bool) -> str:
        """Return the template to use; a model may have another one for chats with tools."""
        own = self.tool_template if tools else None
        template = chosen or own or self.chat_template
        if not template:
            raise InputError("this model has no chat template")
        return template

    def tokenize_chat(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> TokenIds:
        """Return the tokens of a conversation; arguments and errors as render_chat.

        The begin token appears once, whether the template writes it or the model asks for it.
        """
        return self.tokenize_prompt(self.render_chat(messages, **options))

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least; 0 where that takes tokenizing it."""
        return self.vocabulary.least_tokens(text)

    def tokenize_prompt(self, text: str) -> TokenIds:
        """Return the tokens of a rendered prompt: special tokens parsed, the begin token once."""
        begin = self.token_text(self.bos)
        if self.add_bos and begin and text.startswith(begin):
            text = text[len(begin) :]
        return self.tokenize(text, add_special=True, parse_special=True)

    def check_open(self) -> None:
        """Check that contexts can be made.

        Raises:
            StateError: The model is closed, or only its vocabulary is loaded.
        """
        _ = self.vocabulary.address
        if self.vocab_only:
            raise StateError(f"{self.path}: only the vocabulary is loaded")

    def use(self, user: Closable) -> None:
        """Close `user` before the model.

        Raises:
            StateError: The model is closed.
        """
        with self._lock:
            if self._closed:
                raise StateError("the model is closed")
            self._users.add(user)

    def close(self) -> None:
        """Close the targets made from it and free it; a second call does nothing."""
        with self._lock:
            users, self._closed = list(self._users), True
            self._users.clear()
        for user in users:
            user.close()
        self.vocabulary.close()
        self.handle.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _metadata(lib: Any, address: Any) -> dict[str, str]:
    """Return every key that is not an array."""
    key, value = lib.llama_model_meta_key_by_index, lib.llama_model_meta_val_str_by_index
    count = int(lib.llama_model_meta_count(address))
    return {_text(key, address, i): _text(value, address, i) for i in range(count)}


def _text(function: Callable[..., int], *args: Any) -> str:
    """Call a function that writes a text into a buffer and returns its length."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        count = int(function(*args, buffer, size))
        if count < size:
            return buffer.value.decode("utf-8", "replace")
        size = count + 1


def _measure_state(model: LlamaModel) -> int:
    """Return the bytes of a sequence's state, measured on one token in a small context.

    Metadata does not tell: each family of models has its own keys for what its layers keep.

    Raises:
        BackendError: llama.cpp cannot run the model.

    Cost: a decode of one token, which reads all weights.
    """
    lib = model.library.lib
    params = lib.llama_context_default_params()
    params.n_ctx = _SMALLEST
    params.n_batch = params.n_ubatch = params.n_seq_max = 1
    params.no_perf = True
    address = lib.llama_init_from_model(model.handle.address, params)
    if not address:
        raise BackendError(f"{model.path}: llama.cpp cannot make a context to measure its state")
    context = Handle(lib.llama_free, address, model.handle)
    try:
        token = (lib.llama_token * 1)(max(0, model.bos))
        if lib.llama_decode(address, lib.llama_batch_get_one(token, 1)):
            raise BackendError(f"{model.path}: llama.cpp cannot run it to measure its state")
        flags = ctypes.c_uint32(lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        return int(lib.llama_state_seq_get_size_ext(address, 0, flags))
    finally:
        context.free()


def file_digest(path: Path) -> str:
    """Return a digest that identifies a model file by content: size, first and last MiB.

    Raises:
        OSError: It cannot be read.
    """
    import xxhash

    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
        for at in (0, max(0, size - ENDS)):
            file.seek(at)
            digest.update(file.read(ENDS))
    return digest.hexdigest()
