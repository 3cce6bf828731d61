"""The target model: loading a GGUF file with clear errors, prompts, logits."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ngramspec.adapters.llama_cpp.library import check_gguf
from ngramspec.errors import BackendError, InputError

# In this setting llama.cpp's CPU kernels compute a token the same way alone and in a batch, on
# Q8_0 weights, so that texts with and without drafts are equal bit for bit.
BIT_EXACT: Mapping[str, Any] = {"n_threads": 1, "n_threads_batch": 1, "flash_attn": True}


def load_model(path: Path, *, n_ctx: int, **settings: Any) -> Any:
    """Load a GGUF file.

    Args:
        path: The file.
        n_ctx: Context in tokens, 0 for the one that the model was trained with.
        settings: Further arguments of llama_cpp.Llama.

    Returns:
        The llama_cpp.Llama.

    Raises:
        FileNotFoundError: No such file.
        FormatError: The file is not a GGUF file.
        BackendError: llama-cpp-python is not installed or cannot load the file.
    """
    check_gguf(path)
    llama_cpp = _llama_cpp()
    try:
        return llama_cpp.Llama(str(path), n_ctx=n_ctx, verbose=False, **settings)
    except ValueError as error:
        raise BackendError(f"llama.cpp cannot load {path}: {error}") from error


def prompt_tokens(llama: Any, text: str) -> list[int]:
    """Return the tokens of a prompt to be completed as it stands, with the model's begin token."""
    return _not_empty(llama.tokenize(text.encode(), add_bos=True, special=True))


def chat_tokens(llama: Any, messages: Sequence[Any]) -> list[int]:
    """Return the tokens of a conversation in the model's chat format, ready for the answer.

    Raises:
        InputError: The model has no chat template, or its template refuses the conversation.
    """
    template = llama.metadata.get("tokenizer.chat_template")
    if not template:
        raise InputError("this model has no chat template: use --raw")
    from jinja2 import TemplateError
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    begin, end = (_piece(llama, token) for token in (llama.token_bos(), llama.token_eos()))
    try:
        made = Jinja2ChatFormatter(template, eos_token=end, bos_token=begin)(
            messages=list(messages)
        )
    except (TemplateError, ValueError) as error:
        raise InputError(f"the model's chat template refuses: {error}") from error
    add_bos = not (begin and made.prompt.startswith(begin)) and not made.added_special
    return _not_empty(llama.tokenize(made.prompt.encode(), add_bos=add_bos, special=True))


def has_chat_template(llama: Any) -> bool:
    """Tell whether the file holds a chat template."""
    return bool(llama.metadata.get("tokenizer.chat_template"))


def cannot_take_back(llama: Any) -> bool:
    """Tell whether the model is recurrent or hybrid, so that drafts cannot be verified."""
    return bool(llama._is_recurrent or llama._is_hybrid)


def make_grammar(llama: Any, text: str) -> Any:
    """Return a LlamaGrammar that is known to be valid; a bad one would end the process later.

    Raises:
        InputError: llama.cpp does not accept it.
    """
    import llama_cpp.llama_cpp as lib
    from llama_cpp.llama_grammar import LlamaGrammar

    with _captured_stderr() as said:
        sampler = lib.llama_sampler_init_grammar(llama._model.vocab, text.encode(), b"root")
    if not sampler:
        reason = said[0].split("\n", 1)[0] if said else ""
        raise InputError(f'the grammar is not GBNF with a rule named "root": {reason}'.rstrip(": "))
    lib.llama_sampler_free(sampler)
    return LlamaGrammar.from_string(text, verbose=False)


def logit_margin(llama: Any, token_ids: Sequence[int], first: int, second: int) -> float:
    """Return by how much `first` is ahead of `second` as the token after token_ids, in logits."""
    import llama_cpp.llama_cpp as lib

    llama.reset()
    llama._ctx.kv_cache_clear()
    llama.eval(list(token_ids))
    row = lib.llama_get_logits_ith(llama._ctx.ctx, -1)
    llama.reset()
    return float(row[first]) - float(row[second])


@contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """Keep what the native library writes to stderr; the list holds it, if any, after the block."""
    said: list[str] = []
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            said.extend(filter(None, [file.read().decode("utf-8", "replace").strip()]))


def _llama_cpp() -> Any:
    try:
        import llama_cpp
    except ImportError as error:
        raise BackendError(
            "this needs llama-cpp-python, which is not installed: pip install 'ngramspec[llama]'"
        ) from error
    return llama_cpp


def _piece(llama: Any, token: int) -> str:
    return str(llama._model.token_get_text(token)) if token >= 0 else ""


def _not_empty(token_ids: list[int]) -> list[int]:
    if not token_ids:
        raise InputError("the prompt is empty")
    return token_ids
