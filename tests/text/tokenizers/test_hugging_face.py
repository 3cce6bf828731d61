"""The tokenizers library gives the ids that llama.cpp gives for the same vocabulary."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ngramspec.errors import BackendError, FormatError, InputError, StateError
from ngramspec.text.tokenizers import Tokenizer, load_tokenizer
from ngramspec.text.tokenizers.hugging_face import HfTokenizer

CODE = "def area(width, height):\n    return width * height\n\n\n"
SPECIAL = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "'s", "  \n "])
CHARS = st.text(
    st.characters(max_codepoint=0x2FF) | st.sampled_from("\u4e2d\u0416\U0001f600\u0301")
)
TEXTS = st.lists(CHARS | SPECIAL | st.text("ab \n\t0(_'", max_size=20), max_size=8).map("".join)


@pytest.fixture(scope="module")
def tokenizers(gguf_path: Path, json_path: Path) -> Iterator[tuple[Tokenizer, Tokenizer]]:
    pair = load_tokenizer(gguf_path), load_tokenizer(json_path)
    yield pair
    for tokenizer in pair:
        tokenizer.close()


@given(text=TEXTS)
@example(CODE + "<|im_end|>" + CODE)
def test_both_give_the_same_ids(tokenizers: tuple[Tokenizer, Tokenizer], text: str) -> None:
    llama, hugging_face = tokenizers
    ids = hugging_face.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == llama.encode(text).tolist()
    assert hugging_face.decode(ids) == text


def test_both_are_of_one_vocabulary(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    llama, hugging_face = tokenizers
    assert isinstance(hugging_face, HfTokenizer)
    assert hugging_face.name == "tokenizer.json"
    assert hugging_face.fingerprint == llama.fingerprint


def test_a_batch_is_encoded_in_order(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    _, tokenizer = tokenizers
    texts = ["", CODE, "a", "\ud800", CODE * 50]
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text).tolist() for text in texts]
    assert tokenizer.decode(batch[3]) == "?"
    assert tokenizer.encode_batch([]) == []


def test_truncation_padding_and_templates_of_the_file_do_not_apply(
    json_path: Path, tmp_path: Path
) -> None:
    fields = json.loads(json_path.read_text())
    fields["truncation"] = {
        **{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    }
    fields["padding"] = {
        **{"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"},
    }
    special = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    fields["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(fields))
    plain, tokenizer = load_tokenizer(json_path), load_tokenizer(path)
    assert tokenizer.encode(CODE).tolist() == plain.encode(CODE).tolist()


def test_added_tokens_that_are_not_special_are_recognised(json_path: Path, tmp_path: Path) -> None:
    fields = json.loads(json_path.read_text())
    entry = {**fields["added_tokens"][0], "id": 4096, "content": "<tool_call>", "special": False}
    fields["added_tokens"].append(entry)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(fields))
    assert 4096 in load_tokenizer(path).encode("a<tool_call>b")


def test_a_pickled_tokenizer_is_loaded_anew(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    copy = pickle.loads(pickle.dumps(tokenizers[1]))
    assert np.array_equal(copy.encode(CODE), tokenizers[1].encode(CODE))


def test_a_closed_tokenizer_says_so(json_path: Path) -> None:
    tokenizer = load_tokenizer(json_path)
    tokenizer.close()
    tokenizer.close()
    calls: list[Any] = [lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1])]
    for call in calls:
        with pytest.raises(StateError, match=r"tokenizer\.json is closed"):
            call()


@pytest.mark.parametrize("ids", [[-1], [4096], [1 << 40]])
def test_ids_out_of_range_are_refused(
    tokenizers: tuple[Tokenizer, Tokenizer], ids: list[int]
) -> None:
    with pytest.raises(InputError, match=r"token ids must be 0\.\.4095"):
        tokenizers[1].decode(ids)
    assert tokenizers[1].decode([]) == ""


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(FormatError, match="not a tokenizer"):
        load_tokenizer(path)
    path.write_text('{"model": {"type": "Nonsense", "vocab": {"a": 0}}}')
    with pytest.raises(BackendError, match=r"tokenizers cannot load .*tokenizer\.json"):
        load_tokenizer(path)


def test_without_the_library_the_extra_is_named(
    json_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BackendError, match=r'pip install "ngramspec\[corpus\]"'):
        load_tokenizer(json_path)
