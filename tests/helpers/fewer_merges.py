"""Models over one vocabulary with fewer merges: one text in shorter tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGUFReader, GGUFWriter

from helpers.gguf_models import attention_block, finish
from helpers.paths import VOCABULARY_WITH_SPACES
from ngramspec.text.tokenizers.llama import LlamaTokenizer

CONTROL = 3
HEADS, FEED_FORWARD = 4, 64
# No token of it is in it twice, with 600 merges or more.
TEXT = (
    " café 🎉 assert statement convenient into program expression raise rror hese that with names "
    "normal alse when requested command line option code compile time unnecessary source error "
    "message will part value used bind attributes items mutable target list slicing section"
)


class Bpe(NamedTuple):
    """A byte-level BPE vocabulary."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


def with_merges(count: int) -> Bpe:
    """Return a vocabulary with its first merges, and what these make."""
    fields = GGUFReader(VOCABULARY_WITH_SPACES).fields
    names = ("tokens", "token_type", "merges")
    tokens, types, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in names)
    merged = {merge.replace(" ", "") for merge in merges[:count]}
    left = [
        (token, kind)
        for token, kind in zip(tokens, types, strict=True)
        if kind == CONTROL or token in merged or len(token) == 1
    ]
    return Bpe([token for token, _ in left], [kind for _, kind in left], merges[:count])


def text_model(path: Path, num_merges: int) -> Path:
    """Write a model that says TEXT again and again, whatever its tokens are."""
    bpe = with_merges(num_merges)
    _write(path, bpe, 4 * HEADS, {})  # for its tokenizer
    tokenizer = LlamaTokenizer(path)
    tokens = tokenizer.encode(TEXT).tolist()
    tokenizer.close()
    assert len(set(tokens)) == len(tokens), "a token is in the text twice"
    size = -(-(len(tokens) + 1) // 64) * 64
    embeddings = np.zeros((len(bpe.tokens), size), np.float32)
    embeddings[:, len(tokens)] = 1.0  # of all tokens that are not in the text
    head = np.zeros_like(embeddings)
    strength = 30.0 / np.sqrt(size)
    for number, token in enumerate(tokens):
        embeddings[token] = 0.0
        embeddings[token, number] = 1.0
        head[tokens[(number + 1) % len(tokens)], number] = strength
    head[tokens[0], len(tokens)] = strength
    tensors = {"token_embd.weight": embeddings, "output_norm.weight": np.ones(size, np.float32)}
    tensors["output.weight"] = head
    for name, data in attention_block(np.random.default_rng(1), size, HEADS, 0.0).items():
        tensors[f"blk.0.{name}.weight"] = data
    _write(path, bpe, size, tensors)
    return path


def _write(path: Path, bpe: Bpe, size: int, tensors: dict[str, Any]) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(size)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_rope_dimension_count(size // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(bpe.tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(bpe.tokens)
    writer.add_token_types(bpe.types)
    writer.add_token_merges(bpe.merges)
    writer.add_bos_token_id(bpe.tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(bpe.tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    finish(writer, tensors, "F32")
