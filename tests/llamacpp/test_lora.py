"""LoRA adapters on the embedded model: scales change what it computes, drafts do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.decoding import rows_of
from helpers.lora_files import write_lora
from ngramspec.engine import Engine, Request, Sampling
from ngramspec.engine.exactness import Exactness
from ngramspec.engine.request import Adapters
from ngramspec.errors import BackendError, FormatError, InputError, StateError
from ngramspec.llamacpp.exact import find_exact, open_exact
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model

IDS = [5, 9, 300, 41, 77, 12]
SETTINGS: tuple[Adapters, ...] = ((), ((0, 1.0),), ((0, 0.5),), ((1, 1.0),), ((0, 1.0), (1, 1.0)))
PLAIN = {"slots": 2, "context_size": 512, "threads": 1, "flash_attn": True}


def random_tokens_of(count: int) -> list[int]:
    return np.random.default_rng(3).integers(3, 4000, count).tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("lora")
    return [write_lora(folder / "a.gguf", 1, task="rhyme"), write_lora(folder / "b.gguf", 2)]


@pytest.fixture(scope="module")
def exactness(files: list[Path]) -> Exactness:
    with LlamaModel(embedded_model(), adapters=files) as model:
        return find_exact(model, 1, 1)


def computed(target: LlamaTarget) -> np.ndarray:
    target.truncate(0, 0)
    return rows_of(target, IDS)[-1]


def test_scales_change_what_is_computed_and_none_is_the_model_itself(files: list[Path]) -> None:
    with LlamaModel(embedded_model()) as model, LlamaTarget(model, **PLAIN) as target:
        plain = computed(target)
        target.adapt(())
        assert (computed(target) == plain).all()
    with LlamaModel(embedded_model(), adapters=files) as model, LlamaTarget(model, **PLAIN) as own:
        assert (own.num_adapters, [one.path for one in model.adapters]) == (2, files)
        assert [one.task_name for one in model.adapters] == ["rhyme", ""]
        assert (computed(own) == plain).all()  # loaded is not applied
        seen = []
        for setting in SETTINGS:
            own.adapt(setting)
            seen.append(computed(own))
        for i, one in enumerate(seen):
            assert not any((one == other).all() for other in seen[:i])
        own.adapt(())
        assert (computed(own) == plain).all()


def test_drafts_change_no_token_whatever_adapters_requests_have(
    files: list[Path], exactness: Exactness
) -> None:
    with LlamaModel(embedded_model(), adapters=files) as model:
        prompts = [model.tokenize_prompt(f"def area{i}(width, height):\n") for i in range(2)]
        asked = [
            Request(prompt_ids=ids, max_tokens=24, adapters=setting, sampling=sampling)
            for sampling in (Sampling(temperature=0.0), Sampling(temperature=0.9, seed=3))
            for ids in prompts
            for setting in SETTINGS
        ]
        ids_by_drafter = []
        for drafter, requests in ((None, asked), ("ngram-mod,ngram-cache", asked[::-1])):
            with open_exact(model, exactness, 1, 512) as target:
                answers = Engine(target, drafter, slots=1, exact=True).generate(requests)
                assert all(one.error is None for one in answers)
                by_request = {id(one.request): list(one.token_ids) for one in answers}
                ids_by_drafter.append([by_request[id(request)] for request in asked])
        assert ids_by_drafter[0] == ids_by_drafter[1]
        texts = [tuple(tokens) for tokens in ids_by_drafter[0]]
        variants = {tuple(texts[i :: len(SETTINGS)]) for i in range(len(SETTINGS))}
        assert len(variants) == len(SETTINGS)  # each says its own, to one request at least


def test_an_exact_setting_is_exact_with_adapters_too(
    files: list[Path], exactness: Exactness
) -> None:
    ids = random_tokens_of(48)
    with LlamaModel(embedded_model(), adapters=files) as model:
        with pytest.raises(BackendError, match="with LoRA adapters only one slot is exact"):
            find_exact(model, 1, 2)
        with open_exact(model, exactness, 1, 512) as target:
            for setting in SETTINGS:
                target.adapt(setting)
                rows = []
                for step in (1, 2, 5, 48):
                    target.truncate(0, 0)
                    rows.append(rows_of(target, ids, step=step))
                assert all((one == rows[0]).all() for one in rows), setting


def test_what_is_no_adapter_of_the_model_is_refused(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    wide = write_lora(tmp_path / "wide.gguf", inputs=128)
    with pytest.raises(FormatError, match="is not a GGUF file"):
        LlamaModel(embedded_model(), adapters=[tmp_path / "text.gguf"])
    with pytest.raises(FileNotFoundError):
        LlamaModel(embedded_model(), adapters=[tmp_path / "none.gguf"])
    for one in (files[0], str(files[0])):
        with pytest.raises(InputError, match=r"adapters must be a list of files, got one: \['"):
            LlamaModel(embedded_model(), adapters=one)  # type: ignore[arg-type]
    for path in (wide, embedded_model()):
        with pytest.raises(BackendError, match=r"cannot load the adapter .*gguf: \S"):
            LlamaModel(embedded_model(), adapters=[path])
    with LlamaModel(embedded_model(), adapters=files) as model:
        target = LlamaTarget(model, **PLAIN)
        with pytest.raises(InputError, match="there is no adapter 2; 2 are loaded"):
            target.adapt(((2, 1.0),))
        target.close()
        with pytest.raises(StateError, match="closed"):
            target.adapt(())
