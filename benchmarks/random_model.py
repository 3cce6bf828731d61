"""Write a llama model with random weights, for measuring speed at sizes that need no download.

    python benchmarks/random_model.py random.gguf                        # 100 M parameters
    python benchmarks/random_model.py big.gguf --size 400M --vocab 32000
    python benchmarks/random_model.py loops.gguf --repeating
    python benchmarks/random_model.py 8b.gguf --size 8B --vocab 128256 --tiled   # in seconds

Matrices are Q8_0 and cost what those of a trained model cost; the text means nothing. The
vocabulary and the chat template are those of the embedded model, or with --vocab a self-made one.
Equal options give equal files.

The weights are scaled so that greedy text depends on all that came before and hardly repeats:
drafters find nothing there. With --repeating a token depends on the one before it only and is one
of few, the text soon goes round in circles, and nearly every draft is right. Either way the model
chooses only tokens of plain text: no end of text, no byte of an unfinished character.

Drawing billions of weights takes minutes. With --tiled one layer is drawn and all are equal, and
vocabulary matrices repeat 4,096 rows: the same size and time of a pass, for texts nobody reads.

The output matrix is not the embedding matrix, which would make the model repeat its last token; the
size counts one of the two, because a pass reads only a row of the other.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from ngramspec import embedded_model

HEAD_SIZE = 64
BLOCK = 32  # weights that share a scale in Q8_0
NORMAL, CONTROL, BYTE = 1, 3, 6  # llama.cpp's token types
SELF_MADE_MINIMUM = 512
TILE = 4096  # rows of a vocabulary matrix that are drawn with --tiled
# How far the attention scores of one token spread: a wide spread lets it look at few tokens only.
# The mean of many would hardly change from one token to the next, and the text would repeat.
SCORE_SPREAD = 8.0
LOGIT_SPREAD = 3.0
# How much a layer adds to the embedding of the last token. More makes the text hang on differences
# in the last digits, less makes it repeat.
MEMORY = 0.3
REPEATING_MEMORY, REPEATING_TOKENS = 0.01, 256
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int
    width: int
    feed_forward: int
    kv_heads: int
    vocab: int

    @property
    def heads(self) -> int:
        """Return the number of attention heads."""
        return self.width // HEAD_SIZE

    @property
    def parameters(self) -> int:
        """Return the weights that a pass reads: matrices of layers and the output matrix."""
        kv = self.kv_heads * HEAD_SIZE
        layer = self.width * (2 * self.width + 2 * kv + 3 * self.feed_forward)
        return self.layers * layer + self.vocab * self.width


def shape_of_width(width: int, vocab: int) -> Shape:
    """Return the shape of a model so wide: as deep, with as many heads as is usual."""
    heads = width // HEAD_SIZE
    kv_heads = max(n for n in range(1, max(1, heads // 3) + 1) if heads % n == 0)
    feed_forward = round(11 / 3 * width / BLOCK) * BLOCK
    return Shape(heads, width, feed_forward, kv_heads, vocab)


def shape_of_size(parameters: int, vocab: int) -> Shape:
    """Return the usual shape whose number of parameters is nearest."""
    shapes = [shape_of_width(HEAD_SIZE * n, vocab) for n in range(2, 65, 2)]
    return min(shapes, key=lambda shape: abs(shape.parameters - parameters))


def count(text: str) -> int:
    """Read a number such as 100M."""
    factors = {"K": 10**3, "M": 10**6, "B": 10**9}
    factor = factors.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if factor > 1 else text) * factor)


def self_made_vocabulary(writer: GGUFWriter, size: int) -> NDArray[np.bool_]:
    """Write the fields of an SPM vocabulary; say which tokens are plain text."""
    tokens = [b"<unk>", b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>"]
    tokens += [b"<0x%02X>" % i for i in range(256)]
    letters = ["\u2581", "\n", *(chr(i) for i in range(33, 127))]
    words = [f"\u2581w{i}" for i in range(size - len(tokens) - len(letters))]
    types = [2] + [CONTROL] * 4 + [BYTE] * 256 + [NORMAL] * (len(letters) + len(words))
    tokens += [text.encode() for text in letters + words]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    # Longer pieces have better scores, or llama.cpp would never put letters together.
    writer.add_token_scores([len(token) - 1000.0 for token in tokens])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(4)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHATML)
    plain: NDArray[np.bool_] = np.array(types) == NORMAL
    return plain


def copied_vocabulary(writer: GGUFWriter, reader: GGUFReader) -> NDArray[np.bool_]:
    """Copy all that a file says of its tokenizer; say which tokens are plain text."""
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind, *inner = field.types
        sub_type = inner[0] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = np.array(reader.fields["tokenizer.ggml.token_type"].contents())
    # In the byte-level alphabet these two stand for a space and the end of a line.
    texts = [token.replace("\u0120", " ").replace("\u010a", "\n") for token in tokens]
    plain: NDArray[np.bool_] = np.array([text.isascii() for text in texts]) & (types == NORMAL)
    return plain


class Weights:
    """Random Q8_0 matrices.

    Args:
        seed: Of what is drawn.
        memory: How much layers add to the embedding of the last token.
        tiled: Draw few of them, and use them again.
    """

    def __init__(self, seed: int, memory: float, tiled: bool) -> None:
        self._random = np.random.default_rng(seed)
        self._memory = memory
        self._tiled = tiled

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> NDArray[np.uint8]:
        """Return a matrix that turns inputs of variance 1 into outputs of variance gain²."""
        blocks = np.empty((rows, columns // BLOCK, BLOCK + 2), np.uint8)
        # Uniform from -127 to 127: their standard deviation is 127 / sqrt(3).
        scale = gain / math.sqrt(columns) * math.sqrt(3) / 127
        blocks[:, :, :2] = np.array([scale], np.float16).view(np.uint8)
        drawn = self._random.integers(-127, 128, (rows, columns // BLOCK, BLOCK), np.int8)
        blocks[:, :, 2:] = drawn.view(np.uint8)
        return blocks.reshape(rows, -1)

    def vocabulary(self, shape: Shape, gain: float) -> NDArray[np.uint8]:
        """Return a matrix with a row for each token."""
        if not self._tiled or shape.vocab <= TILE:
            return self.matrix(shape.vocab, shape.width, gain)
        tile = self.matrix(TILE, shape.width, gain)
        return np.resize(tile, (shape.vocab, tile.shape[1]))  # repeats its rows

    def layers(self, shape: Shape) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the tensors of each layer."""
        layer: dict[str, NDArray[Any]] = {}
        for _ in range(shape.layers):
            if not layer or not self._tiled:
                layer = self.layer(shape)
            yield layer

    def layer(self, shape: Shape) -> dict[str, NDArray[Any]]:
        """Return the tensors of one layer."""
        width, kv, inner = shape.width, shape.kv_heads * HEAD_SIZE, shape.feed_forward
        sharp = math.sqrt(SCORE_SPREAD)
        return {
            "attn_norm": np.ones(width, np.float32),
            "attn_q": self.matrix(width, width, sharp),
            "attn_k": self.matrix(kv, width, sharp),
            "attn_v": self.matrix(kv, width),
            "attn_output": self.matrix(width, width, self._memory),
            "ffn_norm": np.ones(width, np.float32),
            "ffn_gate": self.matrix(inner, width),
            "ffn_up": self.matrix(inner, width),
            "ffn_down": self.matrix(width, inner, 2.0 * self._memory),
        }


def tensors(shape: Shape, plain: NDArray[np.bool_], weights: Weights) -> dict[str, NDArray[Any]]:
    """Return all tensors of the model."""
    output = weights.vocabulary(shape, LOGIT_SPREAD)
    output[~plain] = 0  # a logit of 0 always, far below that of the likeliest token
    by_name: dict[str, NDArray[Any]] = {
        "token_embd.weight": weights.vocabulary(shape, math.sqrt(shape.width)),
        "output_norm.weight": np.ones(shape.width, np.float32),
        "output.weight": output,
    }
    for layer, parts in enumerate(weights.layers(shape)):
        for name, data in parts.items():
            by_name[f"blk.{layer}.{name}.weight"] = data
    return by_name


def write(arguments: argparse.Namespace, shape: Shape) -> None:
    """Write the model."""
    writer = GGUFWriter(arguments.output, "llama")
    writer.add_name(f"random {shape.parameters / 1e6:.0f}M, seed {arguments.seed}")
    writer.add_context_length(arguments.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    if arguments.vocab is None:
        plain = copied_vocabulary(writer, GGUFReader(embedded_model()))
    else:
        plain = self_made_vocabulary(writer, arguments.vocab)
    if arguments.repeating:
        plain &= np.cumsum(plain) <= REPEATING_TOKENS
    memory = REPEATING_MEMORY if arguments.repeating else MEMORY
    weights = Weights(arguments.seed, memory, arguments.tiled)
    for name, data in tensors(shape, plain, weights).items():
        kind = GGMLQuantizationType.Q8_0 if data.ndim == 2 else None
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def embedded_vocabulary_size() -> int:
    """Return how many tokens the embedded model knows."""
    return len(GGUFReader(embedded_model()).fields["tokenizer.ggml.tokens"].data)


def parse() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", type=count, default=count("100M"), help="parameters (100M)")
    parser.add_argument("--layers", type=int, help="instead of what the size suggests")
    parser.add_argument("--width", type=int, help=f"a multiple of {HEAD_SIZE}")
    parser.add_argument("--feed-forward", type=int, help=f"a multiple of {BLOCK}")
    parser.add_argument("--kv-heads", type=int, help=f"a divisor of width / {HEAD_SIZE}")
    parser.add_argument("--vocab", type=int, help="tokens of a self-made vocabulary")
    parser.add_argument("--context", type=int, default=8192, help="trained context (8192)")
    parser.add_argument("--repeating", action="store_true", help="text that goes round in circles")
    parser.add_argument("--tiled", action="store_true", help="draw few weights, repeat them")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.vocab is not None and arguments.vocab < SELF_MADE_MINIMUM:
        parser.error(f"--vocab must be at least {SELF_MADE_MINIMUM}")
    if (arguments.width or 0) % HEAD_SIZE or (arguments.feed_forward or 0) % BLOCK:
        parser.error(f"--width goes by {HEAD_SIZE}, --feed-forward by {BLOCK}")
    return arguments


def main() -> None:
    """Parse the arguments, write the file, say what it holds."""
    arguments = parse()
    vocab = arguments.vocab or embedded_vocabulary_size()
    usual = shape_of_size(arguments.size, vocab)
    if arguments.width:
        usual = shape_of_width(arguments.width, vocab)
    shape = Shape(
        arguments.layers or usual.layers,
        usual.width,
        arguments.feed_forward or usual.feed_forward,
        arguments.kv_heads or usual.kv_heads,
        vocab,
    )
    write(arguments, shape)
    print(
        f"{arguments.output}: {shape.parameters / 1e6:.1f} M parameters, {shape.layers} layers, "
        f"width {shape.width}, feed-forward {shape.feed_forward}, {shape.heads} heads, "
        f"{shape.kv_heads} KV heads, {shape.vocab} tokens, "
        f"{os.path.getsize(arguments.output) / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
