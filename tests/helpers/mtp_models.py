"""GGUF models with MTP heads whose weights are constructed: which tokens come is known beforehand.

The layers add nothing to the residual, so the state after a token is the token's own direction. The
output matrix leads from each letter to the next one, round the alphabet. The heads look at the
state before their token only, and go one letter further: a draft is right if and only if they get
the right states in the right places, also after rejections. After the letters in `wrong` a head
goes two letters further: there it errs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType

from helpers.gguf_models import FIRST_LETTER, SPACE, finish, header

SIZE, HEAD, LETTERS = 384, 96, 26
Tensors = dict[str, np.ndarray]


def letters_after(letter: int, count: int) -> list[int]:
    """Return the tokens that the target writes after a letter, 0 = a."""
    return [FIRST_LETTER + (letter + 1 + i) % LETTERS for i in range(count)]


def _then(vocab: int, wrong: Collection[int] = ()) -> np.ndarray:
    """Return each token's next one."""
    table = np.full(vocab, FIRST_LETTER)
    for letter in range(LETTERS):
        step = 2 if letter in wrong else 1
        table[FIRST_LETTER + letter] = FIRST_LETTER + (letter + step) % LETTERS
    return table


def _turned(table: np.ndarray, at: int = 0, width: int = SIZE) -> np.ndarray:
    """Return the matrix from each token's direction, which begins at column `at`, to its next's."""
    matrix = np.zeros((SIZE, width), np.float32)
    matrix[table, at + np.arange(table.size)] = 1.0
    return matrix


def _trunk(vocab: int) -> Tensors:
    embeddings = np.zeros((vocab, SIZE), np.float32)
    embeddings[np.arange(vocab), np.arange(vocab)] = 1.0
    norm = np.ones(SIZE, np.float32)
    head = _turned(_then(vocab))[:vocab] * 0.5  # 0.5 * sqrt(SIZE) above all others: near certain
    return {"token_embd.weight": embeddings, "output_norm.weight": norm, "output.weight": head}


def _heads(first: int, count: int, vocab: int, wrong: Collection[int]) -> Tensors:
    tensors: Tensors = {}
    for layer in range(first, first + count):
        tensors[f"blk.{layer}.nextn.eh_proj.weight"] = _turned(_then(vocab, wrong), SIZE, 2 * SIZE)
        tensors[f"blk.{layer}.nextn.enorm.weight"] = np.ones(SIZE)
        tensors[f"blk.{layer}.nextn.hnorm.weight"] = np.ones(SIZE)
    return tensors


def _attention(layer: int, queries: int = 1) -> Tensors:
    wide = 4 * HEAD
    shapes = {
        "attn_q": (queries * wide, SIZE), "attn_k": (wide // 2, SIZE), "attn_v": (wide // 2, SIZE),
        "attn_output": (SIZE, wide),
    }  # fmt: skip
    tensors = {f"blk.{layer}.{name}.weight": np.zeros(shape) for name, shape in shapes.items()}
    return tensors | {f"blk.{layer}.attn_norm.weight": np.ones(SIZE)}


def _dense(layer: int, wide: int = 64) -> Tensors:
    shapes = {"ffn_gate": (wide, SIZE), "ffn_up": (wide, SIZE), "ffn_down": (SIZE, wide)}
    return {f"blk.{layer}.{name}.weight": np.zeros(shape) for name, shape in shapes.items()}


def _experts(layer: int, wide: int = 32) -> Tensors:
    tensors = {
        f"blk.{layer}.ffn_gate_inp.weight": np.zeros((2, SIZE)),
        f"blk.{layer}.exp_probs_b.bias": np.zeros(2),
    }
    for name, tensor in _dense(layer, wide).items():
        tensors[name.replace(".weight", "_exps.weight")] = np.stack([tensor, tensor])
        tensors[name.replace(".weight", "_shexp.weight")] = tensor
    return tensors


def _begin(path: Path, family: str, heads: int, **facts: int) -> tuple[Any, int]:
    writer, vocab = header(path, family, SIZE, **facts)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    if heads:
        writer.add_nextn_predict_layers(heads)
    return writer, vocab


def _end(writer: Any, tensors: Tensors) -> None:
    finish(writer, {name: data.astype(np.float32) for name, data in tensors.items()}, "F16")


def glm4moe(
    path: Path,
    wrong: Collection[int] = (),
    heads: int = 1,
    weights: bool = True,
    dense: int = 1,
) -> None:
    """Write a mixture of experts with one head.

    dense: Layers at the beginning that have no experts.
    heads: How many the file names.
    weights: Whether it has their weights.
    """
    writer, vocab = _begin(path, "glm4moe", heads, layers=1 + heads)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(32)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(dense)
    tensors = _trunk(vocab)
    for layer in range(1 + (heads if weights else 0)):
        tensors |= _attention(layer) | {f"blk.{layer}.post_attention_norm.weight": np.ones(SIZE)}
        tensors |= _experts(layer) if layer >= dense else _dense(layer)
    _end(writer, tensors | _heads(1, heads if weights else 0, vocab, wrong))


def step35(path: Path, wrong: Collection[int] = (), heads: int = 3) -> None:
    """Write a model with several heads, each of which drafts one token."""
    layers = 1 + heads
    writer, vocab = _begin(path, "step35", heads, layers=layers)
    writer.add_sliding_window(4096)
    writer.add_sliding_window_pattern([False, *[True] * heads])
    writer.add_expert_count(0)
    writer.add_expert_feed_forward_length(32)
    tensors = _trunk(vocab)
    for layer in range(layers):
        tensors |= _attention(layer) | _dense(layer)
        tensors[f"blk.{layer}.ffn_norm.weight"] = np.ones(SIZE)
    _end(writer, tensors | _heads(1, heads, vocab, wrong))


def qwen35(path: Path, wrong: Collection[int] = (), family: str = "qwen35") -> None:
    """Write a hybrid with one head: a recurrent layer and one of attention.

    family: qwen35, or one with experts: qwen35moe, qwen3next.
    """
    writer, vocab = _begin(path, family, 1, layers=3)
    experts = family != "qwen35"
    if experts:
        writer.add_expert_count(2)
        writer.add_expert_used_count(1)
        writer.add_expert_feed_forward_length(32)
        writer.add_expert_shared_feed_forward_length(32)
    state, groups, conv = 32, 2, 4
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(groups * state)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(groups)
    writer.add_ssm_group_count(groups)
    writer.add_full_attention_interval(2)
    writer.add_rope_dimension_sections([16, 16, 16, 0])
    wide = groups * state
    tensors = _trunk(vocab)
    tensors |= {
        "blk.0.attn_qkv.weight": np.zeros((3 * wide, SIZE)),
        "blk.0.attn_gate.weight": np.zeros((wide, SIZE)),
        "blk.0.ssm_conv1d.weight": np.zeros((3 * wide, conv)),
        "blk.0.ssm_dt.bias": np.zeros(groups),
        "blk.0.ssm_a": -np.ones(groups),
        "blk.0.ssm_norm.weight": np.ones(state),
        "blk.0.ssm_out.weight": np.zeros((SIZE, wide)),
        "blk.0.attn_norm.weight": np.ones(SIZE),
    }
    if family == "qwen3next":
        tensors["blk.0.ssm_ba.weight"] = np.zeros((2 * groups, SIZE))
    else:
        for name in ("ssm_beta", "ssm_alpha"):
            tensors[f"blk.0.{name}.weight"] = np.zeros((groups, SIZE))
    for layer in range(3):
        if layer:
            tensors |= _attention(layer, queries=2)
            for name in ("attn_q_norm", "attn_k_norm"):
                tensors[f"blk.{layer}.{name}.weight"] = np.ones(HEAD)
        tensors |= {f"blk.{layer}.post_attention_norm.weight": np.ones(SIZE)}
        if experts:
            tensors |= _experts(layer) | {f"blk.{layer}.ffn_gate_inp_shexp.weight": np.zeros(SIZE)}
            del tensors[f"blk.{layer}.exp_probs_b.bias"]
        else:
            tensors |= _dense(layer)
    _end(writer, tensors | _heads(2, 1, vocab, wrong))


def qwen35moe(path: Path, wrong: Collection[int] = ()) -> None:
    """Write a qwen35 with experts."""
    qwen35(path, wrong, "qwen35moe")


def qwen3next(path: Path, wrong: Collection[int] = ()) -> None:
    """Write the family before qwen35, with experts."""
    qwen35(path, wrong, "qwen3next")


# The sizes of Gemma 4's two kinds of layers: with a sliding window, and without.
WINDOW, LOCAL, GLOBAL, LOCAL_GROUPS, GLOBAL_GROUPS = 64, 64, 128, 2, 1
ASSISTANT = 416  # numbers of a state within the assistant; the target's have SIZE
FAMILY = "gemma4-assistant"
MARK = SPACE + 1  # "!"


def _gemma_facts(writer: Any, family: str, windows: list[bool]) -> None:
    writer.add_head_count(4)
    writer.add_head_count_kv([LOCAL_GROUPS if local else GLOBAL_GROUPS for local in windows])
    writer.add_key_length(GLOBAL)
    writer.add_value_length(GLOBAL)
    writer.add_rope_dimension_count(GLOBAL)
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        writer.add_uint32(f"{family}.{key}_swa", LOCAL)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern(windows)


def _gemma_layer(layer: int, size: int, local: bool, wide: int = 64) -> Tensors:
    head = LOCAL if local else GLOBAL
    tensors = {
        "attn_q": np.zeros((4 * head, size)), "attn_output": np.zeros((size, 4 * head)),
        "attn_norm": np.ones(size), "attn_q_norm": np.ones(head),
        "post_attention_norm": np.ones(size), "ffn_norm": np.ones(size),
        "post_ffw_norm": np.ones(size), "layer_output_scale": np.ones(1),
        "ffn_gate": np.zeros((wide, size)), "ffn_up": np.zeros((wide, size)),
        "ffn_down": np.zeros((size, wide)),
    }  # fmt: skip
    return {f"blk.{layer}.{name}.weight": data for name, data in tensors.items()}


def gemma4(path: Path, layers: int = 2, shared: int = 0, vocab: int = 0) -> None:
    """Write a model without heads of its own: an assistant drafts for it.

    The last two layers that cache keys and values cache a value for MARK and nothing for other
    tokens, and do not use it.

    shared: How many layers at the end have the keys and values of those before them.
    """
    family = "gemma4"
    writer, vocab = header(path, family, SIZE, vocab, layers=layers)
    windows = [layer % 2 == 0 for layer in range(layers)]
    _gemma_facts(writer, family, windows)
    writer.add_uint32(f"{family}.embedding_length_per_layer_input", 0)
    writer.add_uint32(f"{family}.attention.shared_kv_layers", shared)
    tensors = _trunk(vocab) | {"rope_freqs.weight": np.ones(GLOBAL // 2)}
    for layer, local in enumerate(windows):
        head, groups = (LOCAL, LOCAL_GROUPS) if local else (GLOBAL, GLOBAL_GROUPS)
        tensors |= _gemma_layer(layer, SIZE, local)
        values = np.zeros((groups * head, SIZE))
        if layers - shared - 2 <= layer < layers - shared:
            values[::head, MARK] = 1.0
        tensors[f"blk.{layer}.attn_k.weight"] = np.zeros((groups * head, SIZE))
        tensors[f"blk.{layer}.attn_v.weight"] = values
        tensors[f"blk.{layer}.attn_k_norm.weight"] = np.ones(head)
    _end(writer, tensors)


def gemma4_assistant(
    path: Path,
    wrong: Collection[int] = (),
    sees: bool | None = None,
    facts: Mapping[str, Any] | None = None,
    without: str = "",
    windows: Sequence[bool] = (True, False),
    more: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the assistant of gemma4.

    sees: It drafts one letter again and again where MARK is in the cache of the layer with a window
        (True) or without (False).
    facts: Numbers and lists that are to be others, by key; None = they lack.
    without: A tensor that lacks.
    windows: Which layers have a window.
    more: Further tensors.
    """
    writer, vocab = header(path, FAMILY, ASSISTANT, layers=len(windows))
    _gemma_facts(writer, FAMILY, list(windows))
    writer.add_nextn_predict_layers(len(windows))
    writer.add_uint32(f"{FAMILY}.embedding_length_out", SIZE)
    before = np.zeros((ASSISTANT, 2 * SIZE))
    before[_then(vocab, wrong), SIZE + np.arange(vocab)] = 1.0
    head = np.zeros((vocab, ASSISTANT))
    head[_then(vocab), np.arange(vocab)] = 0.5
    tensors = {
        "token_embd.weight": head,
        "output_norm.weight": np.ones(ASSISTANT),
        "rope_freqs.weight": np.ones(GLOBAL // 2),
        "nextn.pre_projection.weight": before,
        "nextn.post_projection.weight": np.eye(SIZE, ASSISTANT),
    }
    for layer, local in enumerate(windows):
        tensors |= _gemma_layer(layer, ASSISTANT, local)
        if local == sees:
            tensors[f"blk.{layer}.attn_output.weight"][FIRST_LETTER + 16, 0] = 1.0
            tensors[f"blk.{layer}.post_attention_norm.weight"] *= 8  # outweighs the state
    tensors.pop(without, None)
    tensors |= more or {}
    values = writer.kv_data[0]
    for name, value in (facts or {}).items():
        values.pop(name, None)
        if value is not None:
            writer.add_key_value(name, value, *_kind(value))
    _end(writer, tensors)


def _kind(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return (GGUFValueType.STRING,)
    if not isinstance(value, list):
        return (GGUFValueType.BOOL if isinstance(value, bool) else GGUFValueType.UINT32,)
    inner = {bool: GGUFValueType.BOOL, bytes: GGUFValueType.STRING}
    return GGUFValueType.ARRAY, inner.get(type(value[0]), GGUFValueType.UINT32)
