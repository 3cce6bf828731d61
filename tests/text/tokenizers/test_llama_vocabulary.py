"""Which texts are looked at for runs that llama.cpp must not get in one piece."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.machines import SETTINGS
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import llama_vocabulary
from ngramspec.text.tokenizers.llama_vocabulary import MAX_RUN, _may_have_long_run


@given(text=st.text("a\u4e2d \n\x1f", max_size=60), most=st.integers(2, 9))
@example(text="a aaaaaaaaa", most=8)  # a run that begins within a part, and ends within the next
def test_no_long_run_is_missed(text: str, most: int) -> None:
    longest = max((len(run) for run in re.findall(r"\s+|\S+", text)), default=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_vocabulary, "MAX_RUN", most)
        if longest > most:
            assert _may_have_long_run(text)
        if longest < most // 2:
            assert not _may_have_long_run(text)


def test_short_texts_and_plain_prose_are_not_looked_at() -> None:
    assert not _may_have_long_run("x" * MAX_RUN)
    assert not _may_have_long_run("plain words\n" * MAX_RUN)
    assert _may_have_long_run("words " * MAX_RUN + "x" * (MAX_RUN + 1))


def test_no_text_has_fewer_tokens_than_its_bytes_tell() -> None:
    with LlamaModel(embedded_model(), vocab_only=True) as model:
        pieces = [model.piece(token, True) for token in range(model.vocab_size)]
        texts = st.lists(
            st.sampled_from(pieces).map(lambda piece: piece.decode("utf-8", "replace"))
            | st.text(max_size=20)
        ).map("".join)

        @SETTINGS
        @given(text=texts)
        def check(text: str) -> None:
            least = model.least_tokens(text)
            assert least <= model.tokenize_prompt(text).size
            assert bool(least) == bool(text.encode("utf-8", "replace").split())

        check()
        longest = max(pieces, key=lambda piece: len(b"".join(piece.split())))
        text = longest.decode() * 1000
        assert model.least_tokens(text) == 1000
