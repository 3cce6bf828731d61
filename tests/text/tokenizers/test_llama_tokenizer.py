"""The llama.cpp tokenizer: ids as from llama_cpp.Llama, and nothing that ends the process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import NORMAL, SPM, read_gguf, write_gguf

from ngramspec.errors import BackendError, FormatError, InputError, StateError
from ngramspec.text.tokenizers import Tokenizer, fingerprint_of, llama_library, load_tokenizer
from ngramspec.text.tokenizers.llama import LlamaTokenizer
from ngramspec.text.tokenizers.llama_vocabulary import MAX_RUN

CODE = "def area(width, height):\n    return width * height\n\n\n"
TEXTS = st.text() | st.text("ab \n\t0(_'\u00e9\u4e2d\U0001f600", max_size=60)


@pytest.fixture(scope="module")
def tokenizer(gguf_path: Path) -> Iterator[Tokenizer]:
    embedded = load_tokenizer(gguf_path)
    yield embedded
    embedded.close()


@pytest.fixture(scope="module")
def llama(gguf_path: Path) -> Iterator[Any]:
    from llama_cpp import Llama

    vocabulary = Llama(str(gguf_path), vocab_only=True, verbose=False)
    yield vocabulary
    vocabulary.close()


@given(text=TEXTS)
def test_ids_are_those_of_llama_cpp(tokenizer: Tokenizer, llama: Any, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32
    expected = llama.tokenize(text.encode(), add_bos=False, special=False)
    assert tokens.tolist() == expected
    assert [ids.tolist() for ids in tokenizer.encode_batch([text, "", text])] == [
        *(expected, [], expected)
    ]


@given(text=TEXTS)
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_knows_its_name_and_fingerprint(tokenizer: Tokenizer, gguf_path: Path) -> None:
    assert tokenizer.name == gguf_path.name
    assert tokenizer.fingerprint == fingerprint_of(gguf_path)


def test_special_tokens_in_a_text_are_text(tokenizer: Tokenizer, llama: Any) -> None:
    (special,) = llama.tokenize(b"<|im_end|>", add_bos=False, special=True)
    ids = tokenizer.encode("<|im_end|>")
    assert special not in ids
    assert tokenizer.decode(ids) == tokenizer.decode([special]) == "<|im_end|>"


def test_no_begin_token_even_where_the_model_adds_one(tmp_path: Path) -> None:
    spm = load_tokenizer(write_gguf(tmp_path / "m.gguf", SPM))
    assert spm.encode("").tolist() == []
    assert 1 not in spm.encode("the")
    assert SPM[spm.encode("the")[0]] == "\u2581t"
    assert spm.decode(spm.encode("the")) == " the"
    spm.close()


def test_long_pieces_and_clean_up(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert tokenizer.decode(tokenizer.encode("a ?  b .")) == "a ?  b ."
    spm = load_tokenizer(write_gguf(tmp_path / "m.gguf", [*SPM, "x" * 300]))
    assert spm.decode([len(SPM)]) == "x" * 300
    spm.close()


def test_lone_surrogates_and_nul_are_taken(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b\udfffc\0d")) == "a?b?c\0d"


def test_a_long_text_is_the_sum_of_its_lines(tokenizer: Tokenizer) -> None:
    line = "width = height * 2\n"  # followed by a letter, its end is a token boundary
    count = 10 * MAX_RUN // len(line)
    ids = tokenizer.encode(line * count)
    assert ids.tolist() == tokenizer.encode(line).tolist() * count


@pytest.mark.parametrize("size", [MAX_RUN - 1, MAX_RUN, MAX_RUN + 1, 3 * MAX_RUN])
def test_a_text_without_line_ends_is_cut_anywhere(tokenizer: Tokenizer, size: int) -> None:
    text = "\u4e2d" * size
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_runs_do_not_overflow_the_stack_of_std_regex_and_nothing_is_printed(
    gguf_path: Path, tmp_path: Path
) -> None:
    metadata = read_gguf(gguf_path)
    path = write_gguf(
        tmp_path / "m.gguf",
        metadata["tokenizer.ggml.tokens"],
        types=metadata["tokenizer.ggml.token_type"],
        merges=metadata["tokenizer.ggml.merges"],
        model="gpt2",
        pre="deepseek-llm",
    )
    code = (
        "import sys, threading\n"
        "from ngramspec.text.tokenizers import load_tokenizer\n"
        "tokenizer = load_tokenizer(sys.argv[1])\n"
        "def run():\n"
        "    for char in '/ a1\\u4e2d':\n"
        "        assert tokenizer.decode(tokenizer.encode(char * 60_000)) == char * 60_000\n"
        "    load_tokenizer(sys.argv[2]).encode('a')\n"
        "    print('done')\n"
        "thread = threading.Thread(target=run)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path, gguf_path], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_loading_leaves_the_log_callback_as_it_was(gguf_path: Path) -> None:
    import ctypes

    import llama_cpp.llama_cpp as lib

    def current() -> int | None:
        callback, data = lib.llama_log_callback(), ctypes.c_void_p()
        lib.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
        return ctypes.cast(callback, ctypes.c_void_p).value

    before = current()
    load_tokenizer(gguf_path).close()
    assert current() == before


def test_threads_get_the_same_ids(tokenizer: Tokenizer) -> None:
    texts = [f"{CODE}# {i}\n" * 40 for i in range(40)]
    alone = tokenizer.encode_batch(texts)
    with ThreadPoolExecutor(4) as pool:
        for ids, expected in zip(pool.map(tokenizer.encode, texts), alone, strict=True):
            assert np.array_equal(ids, expected)


def test_a_pickled_tokenizer_is_loaded_anew(tokenizer: Tokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    assert np.array_equal(copy.encode(CODE), tokenizer.encode(CODE))
    copy.close()


def test_a_closed_tokenizer_says_so(gguf_path: Path) -> None:
    tokenizer = load_tokenizer(gguf_path)
    tokenizer.close()
    tokenizer.close()
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1])):
        with pytest.raises(StateError, match=r"tiny-code-q8_0\.gguf is closed"):
            call()


@pytest.mark.parametrize("ids", [[-1], [4096], [0, 1 << 30], [1 << 40]])
def test_ids_out_of_range_are_refused(tokenizer: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(InputError, match=r"token ids must be 0\.\.4095"):
        tokenizer.decode(ids)
    assert tokenizer.decode([]) == ""


def test_vocabularies_that_would_end_the_process_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(FormatError, match="no vocabulary, only token ids"):
        load_tokenizer(write_gguf(path, [], model="none"))
    with pytest.raises(FormatError, match="no vocabulary, only token ids"):
        load_tokenizer(write_gguf(path, SPM, model="none"))
    with pytest.raises(FormatError, match="1 tokens share the text of another"):
        load_tokenizer(write_gguf(path, [*SPM, "the", "the"]))
    with pytest.raises(FormatError, match="1 tokens share the text of another"):
        load_tokenizer(write_gguf(path, [*SPM, "a\0y"]))
    with pytest.raises(FormatError, match="no token for byte 0x0A"):
        load_tokenizer(write_gguf(path, [token for token in SPM if token != "<0x0A>"]))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FormatError, match=r"m\.gguf: .* at offset"):
        load_tokenizer(path)


def test_empty_texts_are_no_duplicates(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", [*SPM, "", ""]))
    assert tokenizer.fingerprint.vocab_size == len(SPM) + 2
    tokenizer.close()


def test_bytes_but_nul_may_be_tokens_themselves(tmp_path: Path) -> None:
    tokens = [bytes([int(t[3:5], 16)]) if t.startswith("<0x") else t.encode() for t in SPM]
    tokens = list(dict.fromkeys(tokens))
    path = tmp_path / "m.gguf"
    with pytest.raises(FormatError, match="no token for byte 0x00"):
        load_tokenizer(write_gguf(path, tokens))
    tokenizer = load_tokenizer(write_gguf(path, [*tokens, "<0x00>"]))
    assert tokenizer.encode("\u00e9\n\0").size >= 4
    tokenizer.close()


def test_a_vocabulary_without_unknown_token_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", ["\u2581a", "b"], model="bert", arch="bert")
    tokenizer = load_tokenizer(path)
    with pytest.raises(BackendError, match="no token for a part of the text"):
        tokenizer.encode("\u4e2d")
    assert tokenizer.encode("a").tolist() == [0]
    tokenizer.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"arch": "nonsense"}, "unknown model architecture: 'nonsense'"),
        ({"model": "nonsense"}, "unknown tokenizer: 'nonsense'"),
        (
            {"model": "gpt2", "pre": "nonsense", "merges": ["a b"]},
            "error loading model vocabulary: unknown pre-tok",
        ),
        ({"model": "gpt2"}, "cannot find tokenizer merges"),
    ],
)
def test_what_llama_cpp_refuses_is_an_error_with_its_reason(
    tmp_path: Path, settings: dict[str, Any], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", SPM, types=[NORMAL] * len(SPM), **settings)
    with pytest.raises(BackendError, match=rf"cannot load .*m\.gguf: .*{reason}"):
        load_tokenizer(path)
    assert capfd.readouterr() == ("", "")


def test_without_llama_cpp_the_extra_is_named(
    gguf_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_library, "_LOADED", [])
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    with pytest.raises(BackendError, match=r'pip install "ngramspec\[llama\]"'):
        load_tokenizer(gguf_path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="found a directory"):
        load_tokenizer(tmp_path)


def test_the_class_is_a_tokenizer(gguf_path: Path) -> None:
    tokenizer: Tokenizer = LlamaTokenizer(gguf_path)
    public = {name for name in vars(Tokenizer) if not name.startswith("_")}
    assert {name for name in public if not hasattr(tokenizer, name)} == set()
    tokenizer.close()
