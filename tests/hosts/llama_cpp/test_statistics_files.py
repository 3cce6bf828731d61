"""Statistics files with a real Llama: used when the tokenizers agree, refused when they do not."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngramspec import NgramDraft, attach, create_drafter, open_cache, open_pool
from ngramspec._native.files.entries import EntryReader, Tally
from ngramspec.errors import VocabMismatchError
from ngramspec.files.cache_file import Origin, write_cache
from ngramspec.files.entries import ArraySource
from ngramspec.text.tokenizers import fingerprint_of, load_tokenizer

CODE = "def area(width, height):\n    return width * height\n"
TASK = f"Repeat this code:\n\n```python\n{CODE}```"
PROMPT = f"<|im_start|>user\n{TASK}<|im_end|>\n<|im_start|>assistant\n"
ONLY_STATIC: dict[str, Any] = {  # no drafts but its
    "policy": "fixed",
    "dynamic_update": False,
    "lax_min_sample": (99, 99, 99, 99),
}


def write_statistics(path: Path, model: str, fingerprint: bytes | None = None) -> Path:
    """Write 2- to 4-grams of the text that the model is going to repeat."""
    tokenizer = load_tokenizer(model)
    tally = Tally()
    for _ in range(3):
        tally.add(tokenizer.encode(f"```python\n{CODE}```"))
    own = tokenizer.fingerprint
    about = {"tokenizer": "another.gguf" if fingerprint else Path(model).name}
    origin = Origin(fingerprint or own.digest, own.vocab_size, about)
    write_cache(path, {size: ArraySource(tally.ngrams(size)) for size in (2, 3, 4)}, origin)
    return path


def complete(llama: Any) -> str:
    return str(
        llama.create_completion(PROMPT, max_tokens=40, temperature=0.0)["choices"][0]["text"]
    )


@pytest.mark.parametrize("way", ["attach", "draft_model"])
def test_a_static_file_drafts_what_the_text_does_not_hold_yet(
    make_llama: Any, model_path: Any, tmp_path: Path, way: str
) -> None:
    plain = complete(make_llama("embedded"))
    path = write_statistics(tmp_path / "code.ngc", model_path("embedded"))
    drafts = {**ONLY_STATIC, "static": path}
    if way == "attach":
        llama = make_llama("embedded")
        draft = attach(llama, "ngram-cache", **drafts).draft
    else:
        draft = NgramDraft("ngram-cache", **drafts)
        llama = make_llama("embedded", draft_model=draft)
    assert complete(llama) == plain
    assert draft.counters.accepted > 10


def test_a_file_of_another_tokenizer_is_refused(
    make_llama: Any, model_path: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_statistics(tmp_path / "code.ngc", model_path("embedded"), b"another-tokeniz.")
    llama = make_llama("embedded")
    with pytest.raises(VocabMismatchError, match=r"code\.ngc was built with another tokenizer"):
        attach(llama, "ngram-cache", static=path)
    with pytest.raises(VocabMismatchError, match=r"code\.ngc was built with another tokenizer"):
        attach(llama, NgramDraft("ngram-cache", static=path))
    with pytest.raises(VocabMismatchError, match="another tokenizer"):
        attach(llama, NgramDraft("ngram-cache", static=open_cache(path)))

    draft = NgramDraft("ngram-cache", params={"ngram-cache": {"static": path}})
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        other = make_llama("embedded", draft_model=draft)
        text = complete(other)
    assert text == complete(llama)
    assert draft.counters.drafts == 0
    assert [r.message.count("another tokenizer") for r in caplog.records] == [1]

    attach(llama, "ngram-cache", static=path, any_tokenizer=True)
    assert complete(llama) == text


@pytest.mark.parametrize("ready", [False, True])
def test_a_refusal_names_both_models(
    make_llama: Any, model_path: Any, tmp_path: Path, ready: bool
) -> None:
    model = model_path("embedded")
    path = write_statistics(tmp_path / "code.ngc", model, b"another-tokeniz.")
    llama = make_llama("embedded")
    arguments: Any = (NgramDraft("ngram-cache", static=path),) if ready else ("ngram-cache",)
    with pytest.raises(VocabMismatchError, match=r"another tokenizer, of another\.gguf:") as caught:
        attach(llama, *arguments, **({} if ready else {"static": path}))
    assert Path(model).name in str(caught.value)


def test_a_file_without_fingerprint_is_taken(
    make_llama: Any, model_path: Any, tmp_path: Path
) -> None:
    cache = open_cache(write_statistics(tmp_path / "a.ngc", model_path("embedded")))
    rewritten = {size: ArraySource(EntryReader(cache, size).read()) for size in (2, 3)}
    write_cache(tmp_path / "b.ngc", rewritten, Origin())
    llama = make_llama("embedded")
    drafts = {**ONLY_STATIC, "static": tmp_path / "b.ngc"}
    draft = attach(llama, "ngram-cache", **drafts).draft
    complete(llama)
    assert draft.counters.accepted > 10


def test_attach_states_the_tokenizer_in_files_that_it_makes(
    make_llama: Any, model_path: Any, tmp_path: Path
) -> None:
    llama = make_llama("embedded")
    pool, learned = tmp_path / "server.ngp", tmp_path / "learned.ngc"
    attachment = attach(llama, "ngram-mod,ngram-cache", pool=pool, dynamic=learned, n_match=8)
    complete(llama)
    del attachment
    fingerprint = fingerprint_of(model_path("embedded"))
    with pytest.raises(VocabMismatchError):
        open_pool(pool, fingerprint=b"another-tokeniz.")
    shared = open_pool(pool, fingerprint=fingerprint.digest, n_match=8)
    assert shared.num_used > 30
    assert shared.vocab_size == fingerprint.vocab_size


def test_generate_learns_across_processes_and_refuses_another_tokenizer(
    model_path: Any, tmp_path: Path
) -> None:
    learned = tmp_path / "learned.ngc"
    arguments = ["-p", TASK, "-n", "20", "-s", "1"]
    command = [sys.executable, "-m", "ngramspec", "generate", *arguments, "--policy", "fixed"]
    command.append("--spec-type")
    counts = []
    for _ in range(2):
        subprocess.run([*command, "ngram-cache", "-lcd", learned], check=True, capture_output=True)
        counts.append(sum(_total(learned)))
    assert counts[1] == 2 * counts[0] > 20

    cache = open_cache(learned)
    entries = {2: ArraySource(EntryReader(cache, 2).read())}
    write_cache(tmp_path / "odd.ngc", entries, Origin(b"another-tokeniz."))
    ran = subprocess.run(
        [*command, "ngram-cache", "-lcs", tmp_path / "odd.ngc"], capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert "odd.ngc was built with another tokenizer" in ran.stderr
    ran = subprocess.run(
        [*command, "ngram-cache", "-lcs", tmp_path / "odd.ngc", "--any-tokenizer"],
        capture_output=True,
    )
    assert ran.returncode == 0


def _total(path: Path) -> list[int]:
    cache = open_cache(path)
    reader = EntryReader(cache, 1)
    return [int(count) for count in reader.read()[:, 1] & np.uint64((1 << 22) - 1)]


def test_two_processes_share_one_pool_file(tmp_path: Path) -> None:
    path = tmp_path / "server.ngp"
    drafter = create_drafter("ngram-mod", pool=path, n_match=2, n_min=1)
    teach = (
        "import sys, ngramspec\n"
        "d = ngramspec.create_drafter('ngram-mod', pool=sys.argv[1], n_match=2, n_min=1)\n"
        "d.begin(0, list(range(100, 120)))\n"
        "import os; os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", teach, path]).returncode == -9
    drafter.begin(0, [100, 101])
    assert drafter.propose(0, 8).tolist() == list(range(102, 110))
