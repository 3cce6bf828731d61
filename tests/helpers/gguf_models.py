"""Tiny GGUF models made offline with the gguf package, one builder per model family.

Weights are random or constructed; the vocabulary is self-made, so nothing is downloaded and nothing
is copied. `build(name, folder)` writes the file once and returns its path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize

from ngramspec.models import embedded_model

UNKNOWN, BOS, EOS, IM_START, IM_END = 0, 1, 2, 3, 4
SPECIAL = [b"<unk>", b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>"]
FIRST_BYTE = len(SPECIAL)
SPACE = FIRST_BYTE + 256
FIRST_LETTER = SPACE + 1 + ord("a") - 33
BIG_VOCAB = 150_016
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class FastWriter(GGUFWriter):
    """GGUFWriter that packs long arrays in one go (150,000 strings: 0.1 s, not 8 s)."""

    def _pack_val(
        self, val: Any, vtype: GGUFValueType, add_vtype: bool, sub_type: Any = None
    ) -> bytes:
        if vtype != GGUFValueType.ARRAY or len(val) < 1000:
            return super()._pack_val(val, vtype, add_vtype, sub_type)
        head = self._pack("I", vtype) if add_vtype else b""
        head += self._pack("I", GGUFValueType.get_type(val[0])) + self._pack("Q", len(val))
        if not isinstance(val[0], bytes):
            return head + np.array(val, "<f4" if isinstance(val[0], float) else "<i4").tobytes()
        return head + b"".join(len(item).to_bytes(8, "little") + item for item in val)


def vocabulary(size: int = 0) -> tuple[list[bytes], list[float], list[int]]:
    """Return the tokens, scores and types of an SPM vocabulary of at least 357 tokens."""
    tokens = [*SPECIAL, *(b"<0x%02X>" % i for i in range(256)), "\u2581".encode()]
    tokens += [bytes([i]) for i in range(33, 127)]
    types = [2, 3, 3, 3, 3] + [6] * 256 + [1] * 95
    extra = max(0, size - len(tokens))
    tokens += [f"\u2581w{i}".encode() for i in range(extra)]
    types += [1] * extra
    return tokens, [0.0] * len(tokens), types


def header(path: Path, arch: str, size: int, vocab: int = 0, **facts: int) -> tuple[Any, int]:
    """Start a file: tokenizer, chat template and the numbers every family has."""
    writer = FastWriter(path, arch)
    tokens, scores, types = vocabulary(vocab)
    writer.add_context_length(facts.get("n_ctx", 8192))
    writer.add_embedding_length(size)
    writer.add_block_count(facts.get("layers", 2))
    writer.add_feed_forward_length(facts.get("feed_forward", 64))
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(IM_END if facts.get("chat") else EOS)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    if facts.get("chat"):
        writer.add_chat_template(CHATML)
    return writer, len(tokens)


def finish(writer: Any, tensors: dict[str, np.ndarray], kind: str) -> None:
    """Write the tensors (matrices as `kind`: F32, F16 or Q8_0) and close the file."""
    for name, data in tensors.items():
        plain = data.ndim == 1 or "conv" in name or "ssm_" in name
        ggml_type = GGMLQuantizationType.F32 if plain else GGMLQuantizationType[kind]
        if ggml_type == GGMLQuantizationType.Q8_0:
            writer.add_tensor(
                name, quantize(data.astype(np.float32), ggml_type), raw_dtype=ggml_type
            )
        else:
            dtype = np.float16 if ggml_type == GGMLQuantizationType.F16 else np.float32
            writer.add_tensor(name, np.ascontiguousarray(data, dtype=dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def successors(vocab: int, seed: int) -> np.ndarray:
    """Return a next-token map: letters and words mostly go round in cycles of about 24 tokens."""
    rng = np.random.default_rng(seed)
    table = rng.integers(FIRST_LETTER, FIRST_LETTER + 26, size=vocab)
    cycle = [SPACE, *(FIRST_LETTER + rng.permutation(26)[:23])]
    for here, then in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        table[here] = then
    return table


def markov_head(vocab: int, size: int, seed: int, strength: float) -> np.ndarray:
    """Return output rows that make successors(vocab)[token] the likely next token."""
    head = np.zeros((vocab, size), np.float32)
    table = successors(vocab, seed)
    for token in range(min(vocab, size)):
        head[table[token], token] += strength / np.sqrt(size)
    return head


def attention_block(rng: Any, size: int, heads: int, noise: float) -> dict[str, np.ndarray]:
    """Return the tensors of one llama layer; `noise` is how much it disturbs the residual."""
    wide = 64
    scale = 1.0 / np.sqrt(size)
    names = {"attn_q": (size, size), "attn_k": (size // 2, size), "attn_v": (size // 2, size)}
    block = {name: rng.normal(0, scale * 2, shape) for name, shape in names.items()}
    block["attn_output"] = rng.normal(0, noise * scale, (size, size))
    block["ffn_gate"] = rng.normal(0, scale, (wide, size))
    block["ffn_up"] = rng.normal(0, scale, (wide, size))
    block["ffn_down"] = rng.normal(0, noise * scale, (size, wide))
    block["attn_norm"] = np.ones(size)
    block["ffn_norm"] = np.ones(size)
    return {name: data.astype(np.float32) for name, data in block.items()}


def llama(path: Path, kind: str = "Q8_0", seed: int = 1, **facts: Any) -> None:
    """Write a llama model: one-hot embeddings, a Markov head, attention that adds context."""
    vocab_wanted, noise = facts.get("vocab", 0), facts.get("noise", 0.06)
    size, heads, layers = facts.get("size", 384), 4, 2
    rng = np.random.default_rng(seed)
    writer, vocab = header(path, "llama", size, vocab_wanted, chat=facts.get("chat", 0))
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads // 2)
    writer.add_rope_dimension_count(size // heads)
    embeddings = np.zeros((vocab, size), np.float32)
    embeddings[np.arange(vocab), np.arange(vocab) % size] = 1.0
    head = markov_head(vocab, size, seed, facts.get("strength", 9.0))
    for here, then in facts.get("links", {}).items():
        head[:, here] = 0.0
        head[then, here] = facts.get("strength", 9.0) / np.sqrt(size)
    tensors = {"token_embd.weight": embeddings, "output_norm.weight": np.ones(size, np.float32)}
    tensors["output.weight"] = head
    for layer in range(layers):
        for name, data in attention_block(rng, size, heads, noise).items():
            tensors[f"blk.{layer}.{name}.weight"] = data
    finish(writer, tensors, kind)


def gemma3(path: Path, kind: str = "Q8_0", seed: int = 2, window: int = 64) -> None:
    """Write a gemma3 model with a sliding attention window of `window` tokens."""
    size, heads, layers, head_size = 384, 4, 6, 96
    rng = np.random.default_rng(seed)
    writer, vocab = header(path, "gemma3", size, layers=layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads // 2)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_sliding_window(window)
    embeddings = np.zeros((vocab, size), np.float32)
    embeddings[np.arange(vocab), np.arange(vocab)] = 1.0
    tensors = {"token_embd.weight": embeddings, "output_norm.weight": np.ones(size, np.float32)}
    tensors["output.weight"] = markov_head(vocab, size, seed, 9.0)
    for layer in range(layers):
        block = attention_block(rng, size, heads, 0.6)
        block["attn_q_norm"] = block["attn_k_norm"] = np.ones(head_size, np.float32)
        # The embeddings are scaled by sqrt(size) here, so the branches must be strong as well.
        block["post_attention_norm"] = block["post_ffw_norm"] = np.full(size, 0.6, np.float32)
        for name, data in block.items():
            tensors[f"blk.{layer}.{name}.weight"] = data
    finish(writer, tensors, kind)


def mamba(path: Path, kind: str = "F32", seed: int = 3) -> None:
    """Write a mamba model: recurrent, no rollback."""
    size, state, rank, conv, layers = 64, 16, 4, 4, 2
    inner = 2 * size
    rng = np.random.default_rng(seed)
    writer, vocab = header(path, "mamba", size, feed_forward=0, layers=layers)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    tensors = {
        "token_embd.weight": rng.normal(0, 0.3, (vocab, size)),
        "output_norm.weight": np.ones(size),
    }
    for layer in range(layers):
        block = {
            "attn_norm.weight": np.ones(size),
            "ssm_in.weight": rng.normal(0, 0.3, (2 * inner, size)),
            "ssm_conv1d.weight": rng.normal(0, 0.3, (inner, conv)),
            "ssm_conv1d.bias": np.zeros(inner),
            "ssm_x.weight": rng.normal(0, 0.3, (rank + 2 * state, inner)),
            "ssm_dt.weight": rng.normal(0, 0.3, (inner, rank)),
            "ssm_dt.bias": np.zeros(inner),
            "ssm_a": -np.ones((inner, state)),
            "ssm_d": np.ones(inner),
            "ssm_out.weight": rng.normal(0, 0.3, (size, inner)),
        }
        tensors.update({f"blk.{layer}.{name}": data for name, data in block.items()})
    finish(writer, {n: d.astype(np.float32) for n, d in tensors.items()}, kind)


def lfm2(path: Path, kind: str = "F32", seed: int = 4) -> None:
    """Write an lfm2 model: one convolution layer, one attention layer (hybrid)."""
    size, heads, conv = 64, 4, 3
    rng = np.random.default_rng(seed)
    writer, vocab = header(path, "lfm2", size, layers=2)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0, 2])
    writer.add_shortconv_l_cache(conv)
    tensors = {
        "token_embd.weight": rng.normal(0, 0.3, (vocab, size)),
        "token_embd_norm.weight": np.ones(size),
    }
    for layer in range(2):
        block = attention_block(rng, size, heads, 1.0)
        if layer == 0:
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                del block[name]
            block["shortconv.conv"] = rng.normal(0, 0.3, (size, conv))
            block["shortconv.in_proj"] = rng.normal(0, 0.3, (3 * size, size))
            block["shortconv.out_proj"] = rng.normal(0, 0.3, (size, size))
        else:
            block["attn_q_norm"] = block["attn_k_norm"] = np.ones(size // heads)
        tensors.update({f"blk.{layer}.{name}.weight": data for name, data in block.items()})
    finish(writer, {n: d.astype(np.float32) for n, d in tensors.items()}, kind)


# A letter that leads to the end token: texts of this model end by themselves.
ENDING = {FIRST_LETTER + 25: IM_END}

MODELS: dict[str, Callable[[Path], None]] = {
    "llama": llama,
    "llama-f16": lambda path: llama(path, "F16"),
    "chat": lambda path: llama(path, chat=1, links=ENDING, seed=7),
    "markov": lambda path: llama(path, noise=0.0, strength=20.0),
    "peaked": lambda path: llama(path, noise=0.2, strength=12.0),
    "big-vocab": lambda path: llama(path, vocab=BIG_VOCAB, size=64, noise=0.1),
    "gemma3": gemma3,
    "mamba": mamba,
    "lfm2": lfm2,
}


def build(name: str, folder: Path) -> str:
    """Write the named model into `folder` unless it is there and return its path."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        MODELS[name](path)
    return str(path)


# Tokens of the embedded model that are good for nothing else.
FIM_TOKENS = {"fim_pre": 10, "fim_suf": 11, "fim_mid": 12, "fim_rep": 13, "fim_sep": 14}


def with_fim_tokens(path: Path) -> Path:
    """Write the embedded model with token ids for filling in the middle."""
    reader = GGUFReader(embedded_model())
    writer = GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub)
    for name, token in FIM_TOKENS.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
