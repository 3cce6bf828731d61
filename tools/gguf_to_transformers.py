"""Write a llama in GGUF format as a folder for transformers: safetensors, config, tokenizer.

Quantised weights become float32. Needs torch, transformers and gguf; made for the embedded model,
on which adapters are tested: `python tools/gguf_to_transformers.py --out tiny-code`
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize

from ngramspec import embedded_model

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_config(reader: GGUFReader) -> Any:
    """Return the LlamaConfig that the file's metadata describe."""
    from transformers import LlamaConfig

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    if value("general.architecture") != "llama":
        raise SystemExit(f"expected a llama, got {value('general.architecture')}")
    named = {tensor.name for tensor in reader.tensors}
    width, heads = value("llama.embedding_length"), value("llama.attention.head_count")
    own = "llama.attention.key_length" in reader.fields
    return LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=width,
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=heads,
        head_dim=value("llama.attention.key_length") if own else width // heads,
        num_key_value_heads=value("llama.attention.head_count_kv"),
        max_position_embeddings=value("llama.context_length"),
        rms_norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        tie_word_embeddings="output.weight" not in named,
        bos_token_id=value("tokenizer.ggml.bos_token_id"),
        eos_token_id=value("tokenizer.ggml.eos_token_id"),
        pad_token_id=value("tokenizer.ggml.padding_token_id"),
    )


def rename(name: str) -> str:
    """Return transformers' name of a GGUF tensor."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    return f"{NAMES[parts[0]]}.{parts[1]}"


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a projection whose rotated pairs are halves of a head, from one of neighbours."""
    rows, width = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width)


def read_model(path: Path) -> Any:
    """Return the file's LlamaForCausalLM, float32."""
    from transformers import LlamaForCausalLM

    reader = GGUFReader(path)
    config = read_config(reader)
    state = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if ".attn_q." in tensor.name:
            weight = halves(weight, config.num_attention_heads)
        if ".attn_k." in tensor.name:
            weight = halves(weight, config.num_key_value_heads)
        state[rename(tensor.name)] = weight
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


def export(path: Path, out: Path) -> None:
    """Write model and tokenizer of a GGUF file into a folder."""
    from transformers import AutoTokenizer

    read_model(path).save_pretrained(out)
    AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(out)


def main() -> None:
    """Export the model named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", nargs="?", type=Path, help="default: the embedded model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    export(options.gguf or embedded_model(), options.out)
    print(f"{options.out}: {sum(p.stat().st_size for p in options.out.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
