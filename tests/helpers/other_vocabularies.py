"""Models that say the same in other tokens, made offline: permuted ids, and words in more parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from helpers.gguf_models import CHATML, attention_block
from ngramspec import embedded_model

NORMAL, CONTROL = 1, 3
SIZE, HEADS = 384, 4
# In the words are whole characters of two bytes, of which no two have a byte in common.
TWO_BYTES = [bytes([0xC3 + i, 0xA1 + i]).decode() for i in range(8)]
WORDS = [f" {upper}{upper.lower()}" for upper in "ABCDEFGHIJKLMN"] + [f" {c}" for c in TWO_BYTES]


def permuted(path: Path, seed: int = 1, pre: str = "gpt-2", source: Path | None = None) -> Path:
    """Write a model with other token ids: the same texts, the same probabilities.

    pre: How text is split into words.
    source: Its file; None = the embedded model.
    """
    reader = GGUFReader(source or embedded_model())
    count = len(reader.fields["tokenizer.ggml.tokens"].contents())
    old_of = np.random.default_rng(seed).permutation(count)
    new_of = np.argsort(old_of)
    writer = GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
        value = field.contents()
        if field.name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            value = [value[old] for old in old_of]
        elif field.name == "tokenizer.ggml.pre":
            value = pre
        elif field.name.endswith("_token_id"):
            value = int(new_of[value])
        writer.add_key_value(field.name, value, kind, sub)
    for tensor in reader.tensors:
        data = tensor.data[old_of] if tensor.name == "token_embd.weight" else tensor.data
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    return _close(writer, path)


def byte_letters() -> dict[int, str]:
    """Return the letter that byte-level BPE writes for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {b: chr(256 + i) for i, b in enumerate(others)}


def chain_model(
    path: Path,
    *,
    parts: int = 1,
    marker: str = "<|sep|>",
    add_bos: bool = False,
    pre: str = "gpt-2",
    strength: float = 20.0,
) -> Path:
    """Write a model that says WORDS and a marker for ever, in a byte-level BPE vocabulary.

    Args:
        path: The file.
        parts: 1 = a word is one token, 2 = two, which may be parts of a character.
        marker: Text of the special token after the words.
        add_bos: Texts begin with the token <bos>.
        pre: How text is split into words.
        strength: Of the likeliest token's logit.
    """
    letters = byte_letters()
    tokens = ["<bos>", "<end>", *letters.values(), marker]
    types = [CONTROL] * 2 + [NORMAL] * 256 + [CONTROL]
    merges = list[str]()
    chain = list[int]()
    for word in WORDS:
        *start, last = [letters[byte] for byte in word.encode()]
        first = "".join(start)
        merges.append(" ".join(start))
        tokens.append(first)
        chain.append(len(tokens) - 1)
        if parts == 2:
            chain.append(tokens.index(last))
        else:
            merges.append(f"{first} {last}")
            tokens.append(first + last)
            chain[-1] += 1
    types += [NORMAL] * (len(tokens) - len(types))
    chain.append(tokens.index(marker))
    return _write(path, tokens, types, merges, chain, add_bos, pre, strength)


def word_piece_model(path: Path) -> Path:
    """Write a model whose tokenizer makes letters small: it does not give texts back."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581{one}" for one in letters), *letters]
    types = [CONTROL] * 4 + [NORMAL] * (len(tokens) - 4)
    return _write(path, tokens, types, [], [5, 6], False, "default", 9.0, kind="bert")


def no_vocabulary(path: Path) -> Path:
    """Write a file that has token ids only, no texts."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(400)
    return _close(writer, path)


def spm_vocabulary(path: Path, add_space: bool) -> Path:
    """Write a SentencePiece vocabulary with a few words and no model."""
    words = ["th", "he", "the", "\u2581t", "\u2581the", "qu", "ck", "ab", "wo", "\u2581wo", "rd"]
    single = ["\u2581", *map(chr, range(33, 127)), "\n", "\u6f22"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *single, *words]
    writer = GGUFWriter(path, "llama")
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        getattr(writer, f"add_{name}")(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(add_space)
    return _close(writer, path)


def _write(
    path: Path,
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[str],
    chain: Sequence[int],
    add_bos: bool,
    pre: str,
    strength: float,
    kind: str = "gpt2",
) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_rope_dimension_count(SIZE // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types))
    if merges:
        writer.add_token_merges(list(merges))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template(CHATML)
    embeddings = np.zeros((len(tokens), SIZE), np.float32)
    embeddings[np.arange(len(tokens)), np.arange(len(tokens)) % SIZE] = 1.0
    head = np.zeros((len(tokens), SIZE), np.float32)
    head[chain[0], :] = 0.1 * strength / np.sqrt(SIZE)  # after any other token
    for here, then in zip(chain, [*chain[1:], chain[0]], strict=True):
        head[:, here % SIZE] = 0.0
        head[then, here % SIZE] = strength / np.sqrt(SIZE)
    tensors = {"token_embd.weight": embeddings, "output_norm.weight": np.ones(SIZE, np.float32)}
    tensors["output.weight"] = head
    for name, data in attention_block(np.random.default_rng(1), SIZE, HEADS, 0.0).items():
        tensors[f"blk.0.{name}.weight"] = data
    for name, data in tensors.items():
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.F32)
    return _close(writer, path)


def _close(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
