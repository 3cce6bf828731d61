"""Draft models whose vocabulary is a little smaller or larger than the target's, on real files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.gguf_models import FIRST_LETTER, SPACE, llama
from ngramspec.engine import AutoPolicy, Engine, Request, Sampling
from ngramspec.llamacpp.draft_model import DraftModelSettings, open_draft_model
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

Texts = list[list[int]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[int, int | None], tuple[Texts, int, dict[str, int]]]:
    """Return a function that generates with models of so many tokens.

    It returns the texts, the number of drafted tokens and the failures of sources.
    """

    def path(size: int) -> Path:
        file = tmp_path / f"{size}.gguf"
        if not file.exists():
            llama(file, vocab=size, noise=0.0, strength=20.0)
        return file

    def generate(own: int, other: int | None) -> tuple[Texts, int, dict[str, int]]:
        with contextlib.ExitStack() as stack:
            model = stack.enter_context(LlamaModel(path(own)))
            target = stack.enter_context(LlamaTarget(model, slots=2, context_size=256, threads=1))
            small = None
            if other is not None:
                settings = DraftModelSettings(path=path(other), n_max=4, p_min=0.0)
                small = open_draft_model(settings, target, stack)
            policy = AutoPolicy(fixed=4)
            engine = Engine(target, None, slots=2, draft_model=small, policy=policy)
            ends = [[FIRST_LETTER], [own - 1, SPACE]]  # the second has the target's last token
            asked = [
                Request(
                    prompt_ids=np.array(end, dtype=np.int32),
                    max_tokens=30,
                    sampling=Sampling(temperature=0),
                )
                for end in ends
            ]
            answers = engine.generate(asked)
            drafted = sum(one.timings.num_draft_tokens for one in answers)
            return [one.token_ids for one in answers], drafted, engine.source_failures()

    return generate


@pytest.mark.parametrize("other", [360, 500, 600])  # with many more it drafts through text
def test_other_numbers_of_tokens_do_not_matter(run, other: int) -> None:
    plain, _, _ = run(400, None)
    texts, drafted, failures = run(400, other)
    assert texts == plain
    assert drafted > 10
    assert failures == {}
