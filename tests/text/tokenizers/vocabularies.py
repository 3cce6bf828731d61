"""Small vocabularies as GGUF and tokenizer.json files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFWriter

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPM = ["<unk>", "<s>", "</s>", *BYTES, "\u2581", *map(chr, range(33, 127)), "\u2581t", "ing"]


def write_gguf(path: Path, tokens: Sequence[str | bytes], **settings: Any) -> Path:
    """Write a vocabulary; `model`, `pre`, `types`, `merges`, `scores` and `arch` have defaults."""
    model = settings.get("model", "llama")
    writer = GGUFWriter(path, settings.get("arch", "llama"))
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        getattr(writer, f"add_{name}")(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(settings.get("pre", "default"))
    if tokens:
        writer.add_token_list(tokens)
        writer.add_token_scores(settings.get("scores", [0.0] * len(tokens)))
        writer.add_token_types(settings.get("types", [NORMAL] * len(tokens)))
    if "merges" in settings:
        writer.add_token_merges(settings["merges"])
    if model == "llama" and len(tokens) > 2:
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_gguf(path: Path) -> dict[str, Any]:
    """Read a vocabulary with the gguf package."""
    fields = GGUFReader(path).fields
    return {name: fields[name].contents() for name in fields if name.startswith("tokenizer.")}


def write_json(path: Path, model: dict[str, Any], added: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a tokenizer.json that has a vocabulary and nothing else."""
    path.write_text(json.dumps({"version": "1.0", "added_tokens": list(added), "model": model}))
    return path


def added(token: int, content: str, special: bool = False) -> dict[str, Any]:
    """Return an entry of added_tokens."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": content, "special": special, **flags}


def export_tokenizer_json(gguf_path: Path, path: Path) -> None:
    """Write a byte-level BPE vocabulary of a GGUF file as tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    metadata = read_gguf(gguf_path)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, types, strict=True)
    tokenizer.add_special_tokens([token for token, kind in kinds if kind == CONTROL])
    tokenizer.save(str(path))
