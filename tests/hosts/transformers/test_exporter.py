"""tools/gguf_to_transformers.py: transformers and llama.cpp say the same of a llama."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.programs import load_program
from hosts.transformers.conftest import EXPORTER, REASON

SIZE, HEADS, KV_HEADS = 64, 4, 2


def write_llama(path: Path, head_width: int) -> None:
    """Write a llama whose heads have this width; only the usual one is not said in the file."""
    from helpers.gguf_models import attention_block, finish, header

    rng = np.random.default_rng(5)
    writer, vocab = header(path, "llama", SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(head_width)
    writer.add_rope_freq_base(10000.0)
    writer.add_pad_token_id(0)
    if head_width != SIZE // HEADS:
        writer.add_key_length(head_width)
        writer.add_value_length(head_width)
    tensors = {
        "token_embd.weight": rng.normal(0, 0.3, (vocab, SIZE)).astype(np.float32),
        "output_norm.weight": np.ones(SIZE, np.float32),
    }
    rows = {"q": HEADS * head_width, "k": KV_HEADS * head_width, "v": KV_HEADS * head_width}
    for layer in range(2):
        block = attention_block(rng, SIZE, HEADS, 1.0)
        for name, count in rows.items():
            block[f"attn_{name}"] = rng.normal(0, 0.3, (count, SIZE))
        block["attn_output"] = rng.normal(0, 0.3, (SIZE, HEADS * head_width))
        tensors.update({f"blk.{layer}.{name}.weight": data for name, data in block.items()})
    finish(writer, tensors, "F32")


@pytest.mark.parametrize("head_width", [16, 32])
def test_heads_of_any_width(head_width: int, tmp_path: Path) -> None:
    for name in ("transformers", "gguf"):
        pytest.importorskip(name, reason=REASON)
    torch = pytest.importorskip("torch", reason=REASON)
    llama_cpp = pytest.importorskip("llama_cpp")
    path = tmp_path / "llama.gguf"
    write_llama(path, head_width)
    tokens = [1, *range(40, 60), *range(50, 40, -1)]
    exact = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    theirs = llama_cpp.Llama(
        str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False, **exact
    )
    theirs.eval(tokens)
    with torch.no_grad():
        logits = load_program(EXPORTER).read_model(path)(torch.tensor([tokens])).logits[0].numpy()
    expected = np.array(theirs.scores[: len(tokens)])
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(logits, expected, atol=1e-3)
