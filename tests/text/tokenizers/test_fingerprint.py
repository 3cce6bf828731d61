"""Both files of one model have one fingerprint; other vocabularies have another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import (
    BYTE,
    BYTES,
    CONTROL,
    NORMAL,
    SPM,
    UNUSED,
    USER_DEFINED,
    added,
    write_gguf,
    write_json,
)

from helpers.paths import VOCABULARY_WITH_SPACES
from ngramspec.errors import BackendError, FormatError
from ngramspec.text.tokenizers import Fingerprint, fingerprint_of, fingerprint_of_llama
from ngramspec.text.tokenizers.fingerprint import fingerprint_of_tokens

Make = Callable[..., Fingerprint]


@pytest.fixture
def of_gguf(tmp_path: Path) -> Make:
    def make(tokens: list[str], **settings: Any) -> Fingerprint:
        return fingerprint_of(write_gguf(tmp_path / "model.gguf", tokens, **settings))

    return make


@pytest.fixture
def of_json(tmp_path: Path) -> Make:
    def make(model: dict[str, Any], more: list[dict[str, Any]] | None = None) -> Fingerprint:
        return fingerprint_of(write_json(tmp_path / "tokenizer.json", model, more or []))

    return make


def bpe(*tokens: str) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}


def test_the_embedded_model_and_its_tokenizer_json_match(gguf_path: Path, json_path: Path) -> None:
    of_gguf, of_json = fingerprint_of(gguf_path), fingerprint_of(json_path)
    assert of_gguf == of_json
    assert of_gguf.matches(of_json)
    assert of_gguf.vocab_size == 4096
    assert len(of_gguf.digest) == 16


def test_the_digest_of_a_vocabulary_does_not_change() -> None:
    """It is stored in files."""
    fingerprint = fingerprint_of(VOCABULARY_WITH_SPACES)
    assert str(fingerprint) == fingerprint.digest.hex() == "c661897c859f9f70d32bbce3042aebb2"


def test_padding_and_gaps_change_the_size_only(of_gguf: Make, of_json: Make) -> None:
    tokens = ["a", "b", "[PAD2]", "<|end|>", "[PAD4]", "[PAD5]"]
    types = [NORMAL, NORMAL, UNUSED, CONTROL, UNUSED, UNUSED]
    padded = of_gguf(tokens, model="gpt2", types=types, merges=[])
    plain = of_json(bpe("a", "b"), [added(3, "<|end|>", special=True)])
    assert padded.matches(plain)
    assert plain.matches(padded)
    assert (padded.vocab_size, plain.vocab_size) == (6, 4)
    other_number = of_gguf(["a", "b", "[PAD7]", "<|end|>"], model="gpt2", merges=[])
    assert not other_number.matches(plain)


def test_added_tokens_replace_what_the_model_has(of_gguf: Make, of_json: Make) -> None:
    of_file = of_gguf(["a", "b c", "<|end|>"], model="gpt2", merges=[])
    more = [added(1, "b c"), added(2, "<|end|>", special=True)]
    assert of_json(bpe("a", "b\u0120c"), more).matches(of_file)
    assert of_json(bpe("a", "b c", "<|end|>"), more).matches(of_file)
    assert not of_json(bpe("a", "b\u0120c", "<|end|>")).matches(of_file)


def test_added_tokens_may_have_spaces_either_way(of_gguf: Make, of_json: Make) -> None:
    types = [NORMAL, USER_DEFINED]
    of_file = of_gguf(["\u2581a", "  "], model="gemma4", types=types, merges=[])
    assert of_json(bpe("\u2581a"), [added(1, "\u2581\u2581")]).matches(of_file)


def test_a_sentencepiece_vocabulary_matches_as_bpe_and_as_unigram(
    of_gguf: Make, of_json: Make
) -> None:
    of_file = of_gguf(SPM, types=[2, 3, 3] + [BYTE] * 256 + [NORMAL] * (len(SPM) - 259))
    more = [added(i, SPM[i], special=True) for i in range(3)]
    assert of_json(bpe(*SPM), more) == of_file
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [[token, -1.0] for token in SPM]}
    assert of_json(unigram, more) == of_file


def test_a_wordpiece_vocabulary_matches(of_gguf: Make, of_json: Make) -> None:
    words = ["[PAD]", "[unused0]", "[CLS]", "[", "the", "##ing", "#", "##]"]
    model = {"type": "WordPiece", "vocab": {word: i for i, word in enumerate(words)}}
    of_file = of_json(model, [added(i, words[i], special=True) for i in (0, 2)])
    pieces = ["[PAD]", "\u2581[unused0]", "[CLS]", "\u2581[", "\u2581the", "ing", "\u2581#", "]"]
    assert of_gguf(pieces, model="bert").matches(of_file)
    padded = [*pieces, "\u2581[PAD8]"]
    assert of_gguf(padded, model="bert").matches(of_file)
    assert not of_gguf(pieces, model="llama").matches(of_file)


TOKENS = st.lists(st.binary(max_size=3), max_size=6).map(tuple)


@given(st.lists(TOKENS, max_size=20, unique=True))
def test_different_texts_or_ids_give_different_digests(vocabularies: list[tuple[bytes]]) -> None:
    seen: dict[bytes, dict[int, bytes]] = {}
    for tokens in vocabularies:
        texts = enumerate(token.partition(b"\0")[0] for token in tokens)
        meaning = {i: text for i, text in texts if text}
        digest = fingerprint_of_tokens(tokens).digest
        assert seen.setdefault(digest, meaning) == meaning


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([b"ab", b"c"], [b"a", b"bc"]),
        ([b"a", b"b"], [b"b", b"a"]),
        ([b"a", b"", b"b"], [b"a", b"b"]),
        ([b"a"], [b"a", b"b"]),
        ([b"[PAD0]x"], [b"[PAD0]"]),
    ],
)
def test_near_misses_differ(first: list[bytes], second: list[bytes]) -> None:
    assert not fingerprint_of_tokens(first).matches(fingerprint_of_tokens(second))


def test_the_c_interface_sees_no_further_than_a_nul_and_names_empty_texts() -> None:
    file, memory = [b"a\0b", b"\0", b""], [b"a", b"[EMPTY_1]", b"[EMPTY_2]"]
    assert fingerprint_of_tokens(file) == fingerprint_of_tokens(memory)


@pytest.mark.parametrize("kind", ["gguf", "spm", "wordpiece"])
def test_a_loaded_model_has_the_fingerprint_of_its_file(
    gguf_path: Path, tmp_path: Path, kind: str
) -> None:
    from llama_cpp import Llama

    path = gguf_path
    if kind == "spm":
        path = write_gguf(tmp_path / "m.gguf", SPM, types=[2, 3, 3] + [NORMAL] * (len(SPM) - 3))
    elif kind == "wordpiece":
        words = ["[UNK]", "\u2581[unused0]", "\u2581a", "b", "\u2581[PAD4]"]
        path = write_gguf(tmp_path / "m.gguf", words, model="bert", arch="bert")
    expected = fingerprint_of(path)
    llama = Llama(str(path), vocab_only=True, verbose=False)
    try:
        assert fingerprint_of_llama(llama) == expected
        llama.model_path = "moved.gguf"
        assert fingerprint_of_llama(llama) == expected
    finally:
        llama.close()


def test_a_model_without_vocabulary_is_refused(tmp_path: Path) -> None:
    import llama_cpp.llama_cpp as lib
    from llama_cpp import Llama

    path = write_gguf(tmp_path / "none.gguf", [], model="none")
    with pytest.raises(FormatError, match=r"none\.gguf: the file has no vocabulary"):
        fingerprint_of(path)
    params = lib.llama_model_default_params()
    params.vocab_only = True
    llama = Llama(str(path), vocab_only=True, verbose=False)
    try:
        with pytest.raises(BackendError, match="no vocabulary, only token ids"):
            fingerprint_of_llama(SimpleNamespace(_model=llama._model))
    finally:
        llama.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hello", "neither a GGUF file nor a tokenizer.json"),
        ("[" * 200_000, "neither a GGUF file nor a tokenizer.json"),
        ("\0\xff", "neither a GGUF file nor a tokenizer.json"),
        ("[]", "not a tokenizer.json"),
        ("null", "not a tokenizer.json"),
        ('{"model": {"type": "BPE"}}', "not a tokenizer.json: it has no 'vocab'"),
        ('{"model": {"vocab": {"a": "x"}}}', "'x' is no token id"),
        ('{"model": {"vocab": {"a": -1}}}', "-1 is no token id"),
        ('{"model": {"vocab": {"a": 99999999999}}}', "99999999999 is no token id"),
        ('{"model": {"vocab": [[]]}}', "not a tokenizer.json"),
        ('{"model": {"vocab": [[7, 0]]}}', "not a tokenizer.json"),
        ('{"model": {"vocab": {}}, "added_tokens": [{}]}', "not a tokenizer.json: it has no "),
        ('{"model": {"vocab": {}}}', "the vocabulary is empty"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(FormatError, match=f"tokenizer.json: .*{reason}"):
        fingerprint_of(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="found a directory"):
        fingerprint_of(tmp_path)
    with pytest.raises(FileNotFoundError):
        fingerprint_of(tmp_path / "missing.gguf")


def test_lone_surrogates_in_a_tokenizer_json_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"vocab": {"\\ud800": 0}}}')
    assert fingerprint_of(path).vocab_size == 1


def test_all_bytes_are_in_the_sentencepiece_fixture() -> None:
    assert set(BYTES) < set(SPM)
