"""Write a checkpoint as a Q8_0 GGUF file that llama.cpp loads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quantize
from model import ModelConfig, load_gguf
from tokenizer import CHAT_TEMPLATE, SPECIAL

NAME = "ngramspec-tiny-code"


def write_sizes(writer: GGUFWriter, config: ModelConfig) -> None:
    """Write the architecture's hyperparameters and a few facts about the model."""
    writer.add_name(NAME)
    writer.add_license("MIT")
    writer.add_description("Copies and edits code; trained on CPython's standard library.")
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.feed_forward)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_width)
    writer.add_value_length(config.head_width)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_vocab_size(config.vocab)
    writer.add_file_type(7)


def copy_tokenizer(writer: GGUFWriter, path: str) -> None:
    """Copy every tokenizer field of another GGUF file."""
    for key, item in GGUFReader(path).fields.items():
        if key.startswith("tokenizer."):
            kinds = item.types
            inner = kinds[-1] if kinds[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, item.contents(), kinds[0], sub_type=inner)


def write_tokenizer(writer: GGUFWriter, path: str) -> None:
    """Write the tokenizer fields from a `tokenizer.json`."""
    bpe = json.loads(Path(path).read_text("utf-8"))["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in bpe["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def export(state: dict[str, torch.Tensor], config: ModelConfig, tokenizer: str, out: str) -> None:
    """Quantise the matrices to Q8_0, keep the norms in float32, and write the file."""
    writer = GGUFWriter(out, "llama")
    write_sizes(writer, config)
    if tokenizer.endswith(".gguf"):
        copy_tokenizer(writer, tokenizer)
    else:
        write_tokenizer(writer, tokenizer)
    for name, tensor in state.items():
        values = tensor.detach().float().cpu().numpy()
        if values.ndim == 1:
            writer.add_tensor(name, values)
            continue
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Export the checkpoint named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="file written by train.py")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json or a GGUF to copy from")
    parser.add_argument(
        "--mean-with", default="", help="GGUF file; each weight is the mean of its and of this one"
    )
    parser.add_argument("--out", default="tiny-code-q8_0.gguf", help="file to write")
    options = parser.parse_args()
    content = torch.load(options.checkpoint, weights_only=True, map_location="cpu")
    state = content["model"]
    if options.mean_with:
        other = load_gguf(options.mean_with).state_dict()
        state = {name: (tensor + other[name]) / 2 for name, tensor in state.items()}
    export(state, ModelConfig(**content["config"]), options.tokenizer, options.out)
    print(f"{options.out}: {Path(options.out).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
