"""Draft models of another vocabulary, on real files: what they draft, and that texts stay."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.exact_settings import find_once
from helpers.fewer_merges import TEXT, text_model
from helpers.gguf_models import build
from helpers.other_vocabularies import WORDS, chain_model, no_vocabulary, permuted, word_piece_model
from ngramspec import embedded_model
from ngramspec._native.engine.decode import GreedySampler
from ngramspec.cli.output import drafting_line
from ngramspec.engine import (
    AutoPolicy,
    DraftModel,
    Engine,
    Request,
    Sampling,
    Speculation,
)
from ngramspec.engine.sources.translated_model import TranslatedDraftModel
from ngramspec.errors import BackendError, FormatError, InputError
from ngramspec.llamacpp.draft_model import (
    NO_EXCHANGE,
    DraftModelSettings,
    open_draft_model,
)
from ngramspec.llamacpp.exact import open_exact
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.llm import LLM

Paths = dict[str, Path]
MERGES = (3837, 1500, 600)
MARKERS = (("<|sep|>", "<sep>"),)
PROMPTS = ["".join(WORDS[2:9]), "".join(WORDS[:7]), "".join(WORDS[12:18]), "".join(WORDS[-6:])]
REPEAT = (
    "<|im_start|>user\nRepeat this code:\n\n```python\n{}\n```<|im_end|>\n<|im_start|>assistant\n"
)
CODE = [
    REPEAT.format(source)
    for module in (tempfile, shutil)
    for _, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    for source in (inspect.getsource(function),)
    if 300 <= len(source) <= 600
][:7]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    folder = tmp_path_factory.mktemp("models")
    return {
        "code": embedded_model(),
        "permuted": permuted(folder / "permuted.gguf"),
        "words": chain_model(folder / "words.gguf"),
        "halves": chain_model(folder / "halves.gguf", parts=2),
        "halves, marked": chain_model(
            folder / "marked.gguf", parts=2, marker="<sep>", add_bos=True
        ),
        "spm": Path(build("markov", folder)),
        **{f"{n} merges": text_model(folder / f"{n}.gguf", n) for n in MERGES},
    }


class Made(NamedTuple):
    """What came of some requests."""

    texts: list[list[int]]
    per_pass: float  # tokens
    acceptance: float
    shifts: int
    failures: dict[str, int]
    kind: type | None


Run = Callable[..., Made]


@pytest.fixture(scope="module")
def run(paths: Paths) -> Run:
    """Return a function that generates with two models, once if it is asked for the same again."""

    @functools.cache
    def generate(own: str, other: str | None, prompts: tuple[str, ...], **options: Any) -> Made:
        n_max, slots = options.get("n_max", 8), options.get("slots", 1)
        with contextlib.ExitStack() as stack:
            model = stack.enter_context(LlamaModel(paths[own]))
            size = options.get("context_size", 512)
            exact = options.get("exact", False)
            if exact:  # texts are compared where rounding would decide between tokens
                exactness = find_once(model, 1, slots)
                target = stack.enter_context(open_exact(model, exactness, slots, size))
            else:
                target = stack.enter_context(
                    LlamaTarget(model, slots=slots, context_size=size, threads=1)
                )
            small = None
            if other is not None:
                settings = DraftModelSettings(
                    path=paths[other],
                    n_max=n_max,
                    p_min=options.get("p_min", 0.0),
                    replace=options.get("replace", ()),
                    context_size=options.get("small_size", 0),
                )
                small = open_draft_model(settings, target, stack)
            engine = Engine(
                target,
                options.get("drafter"),
                slots=slots,
                draft_model=small,
                policy=options.get("policy", AutoPolicy(fixed=n_max)),
                context_shift=options.get("shift", False),
                exact=exact,
            )
            asked = [
                Request(
                    prompt_ids=model.tokenize(prompt, parse_special=True),
                    max_tokens=options.get("max_tokens", 100),
                    sampling=Sampling(temperature=options.get("temperature", 0.0), seed=7),
                )
                for prompt in prompts
            ]
            answers, stats = engine.generate(asked), engine.stats()
            return Made(
                [one.token_ids for one in answers],
                stats.num_emitted_tokens / stats.num_steps,
                stats.num_accepted_tokens / max(stats.num_draft_tokens, 1),
                stats.num_context_shifts,
                engine.source_failures(),
                None if small is None else type(small),
            )

    return lambda own, other, prompts, **options: generate(own, other, tuple(prompts), **options)


def told_by_their_text(prompts: Sequence[str], answers: Sequence[list[int]]) -> list[int]:
    """Return which answers have other tokens than their text at no more than three places.

    The embedded model's tokenizer may make others of a text that has yet to go on.
    """
    indexes = []
    with LlamaModel(embedded_model(), vocab_only=True) as model:
        for index, (prompt, ids) in enumerate(zip(prompts, answers, strict=True)):
            asked = model.tokenize(prompt, parse_special=True).tolist()
            prefixes = [[*asked, *ids[: count + 1]] for count in range(len(ids))]
            texts = (model.detokenize(one, special=True) for one in prefixes)
            retokenized = (model.tokenize(text, parse_special=True).tolist() for text in texts)
            if sum(one != other for one, other in zip(prefixes, retokenized, strict=True)) <= 3:
                indexes.append(index)
    return indexes


@pytest.fixture(scope="module")
def plain_texts(run: Run) -> Callable[[float], dict[str, list[int]]]:
    """Return a function of a temperature: some of CODE with their answers without drafts.

    A model may say tokens that its tokenizer would not make of their text: what was said is then
    not what its text tells. These answers are told by their text.
    """

    @functools.cache
    def at(temperature: float) -> dict[str, list[int]]:
        code = list(at(0.0)) if temperature else CODE
        texts = run("code", None, code, temperature=temperature, exact=True, max_tokens=60).texts
        return {code[index]: texts[index] for index in told_by_their_text(code, texts)}

    return at


@pytest.mark.parametrize(
    ("n_max", "p_min", "temperature", "slots"),
    [(4, 0.0, 0.0, 1), (16, 0.75, 0.0, 4), (4, 0.75, 0.7, 1)],
)
def test_other_ids_draft_as_well_as_the_same_ones(
    run: Run,
    plain_texts: Callable[[float], dict[str, list[int]]],
    n_max: int,
    p_min: float,
    temperature: float,
    slots: int,
) -> None:
    options: dict[str, Any] = {"n_max": n_max, "p_min": p_min, "temperature": temperature}
    options |= {"slots": slots, "exact": True, "max_tokens": 60}
    plain = dict(itertools.islice(plain_texts(temperature).items(), 4))
    assert len(plain) >= 4
    own, other = (run("code", small, list(plain), **options) for small in ("code", "permuted"))
    assert (own.kind, other.kind) == (DraftModel, TranslatedDraftModel)
    assert other.texts == own.texts == list(plain.values())
    assert other.failures == {}
    assert other.per_pass >= 0.95 * own.per_pass
    assert other.acceptance >= 0.95 * own.acceptance


@pytest.mark.parametrize(("own", "other"), [("words", "halves"), ("halves", "words")])
@pytest.mark.parametrize(("n_max", "p_min", "slots"), [(3, 0.0, 1), (8, 0.75, 4), (16, 0.0, 4)])
def test_longer_and_shorter_tokens_draft_as_well_as_the_same_ones(
    run: Run, own: str, other: str, n_max: int, p_min: float, slots: int
) -> None:
    options: dict[str, Any] = {"n_max": n_max, "p_min": p_min, "slots": slots}
    options |= {"max_tokens": 150, "small_size": 1024}
    plain = run(own, None, PROMPTS, slots=4, max_tokens=150)
    same, translated = (run(own, small, PROMPTS, **options) for small in (own, other))
    assert (same.kind, translated.kind) == (DraftModel, TranslatedDraftModel)
    assert translated.texts == same.texts == plain.texts
    assert translated.failures == {}
    assert translated.per_pass >= 0.95 * same.per_pass
    assert translated.acceptance >= 0.95 * same.acceptance


@pytest.mark.parametrize(("own", "other"), list(itertools.permutations(MERGES, 2)))
def test_words_in_several_tokens_draft_as_well_as_the_same_ones(
    run: Run, own: int, other: int
) -> None:
    options: dict[str, Any] = {"slots": 4, "max_tokens": 180}
    prompts = [TEXT[: TEXT.index(word)].rstrip() for word in ("state", "with", "compile", "items")]
    same, translated = (
        run(f"{own} merges", f"{one} merges", prompts, **options) for one in (own, other)
    )
    assert same.texts == translated.texts == run(f"{own} merges", None, prompts, **options).texts
    assert translated.failures == {}
    assert translated.per_pass >= 0.98 * same.per_pass
    assert translated.acceptance >= 0.98 * same.acceptance


@pytest.mark.parametrize("own", ["words", "halves"])
def test_markers_are_exchanged_on_the_way(run: Run, own: str) -> None:
    prompts = [f"<|sep|>{prompt}" for prompt in PROMPTS]
    plain = run(own, None, prompts, slots=2)
    with_marker = run(own, "halves, marked", prompts, slots=2, replace=MARKERS)
    without = run(own, "halves, marked", prompts, slots=2)
    assert with_marker.texts == without.texts == plain.texts
    assert with_marker.failures == without.failures == {}
    assert with_marker.acceptance > 0.99 > without.acceptance


@pytest.mark.parametrize(("own", "other"), [("words", "halves"), ("halves", "words")])
@pytest.mark.parametrize("small_size", [0, 70, 33])
def test_contexts_that_shift_keep_their_texts(
    run: Run, own: str, other: str, small_size: int
) -> None:
    options = {"context_size": 64, "shift": True, "max_tokens": 210, "slots": 2, "n_max": 4}
    plain = run(own, None, PROMPTS, **options)
    translated = run(own, other, PROMPTS, small_size=small_size, **options)
    assert translated.texts == plain.texts
    assert translated.failures == {}
    assert translated.shifts >= 4 * len(PROMPTS)
    if not small_size and own == "halves":
        assert translated.per_pass > 0.9 * run(own, own, PROMPTS, **options).per_pass


def test_a_text_that_does_not_fit_is_left_to_others(run: Run) -> None:
    plain = run("words", None, PROMPTS[:1], max_tokens=60)
    translated = run("words", "halves", PROMPTS[:1], max_tokens=60, small_size=40)
    assert translated.texts == plain.texts
    assert 1.0 < translated.per_pass < 2.0


@pytest.mark.parametrize(("own", "other"), [("spm", "code"), ("spm", "words"), ("code", "spm")])
def test_sentence_piece_and_byte_level_models_draft_for_each_other(
    run: Run, own: str, other: str
) -> None:
    prompts = ["aa bb \u00e9\u6f22\U0001f600", "the", "a b c d e f g"]
    options: dict[str, Any] = {"temperature": 0.9, "slots": 3, "max_tokens": 60}
    options |= {"exact": own == "code"}
    plain = run(own, None, prompts, **options)
    translated = run(own, other, prompts, **options)
    assert translated.kind is TranslatedDraftModel
    assert (translated.texts, translated.failures) == (plain.texts, {})


def test_it_drafts_beside_ngrams(run: Run) -> None:
    options = {"slots": 2, "max_tokens": 150, "policy": None}
    plain = run("halves", None, PROMPTS, **options)
    translated = run("halves", "words", PROMPTS, drafter="suffix", **options)
    assert (translated.texts, translated.failures) == (plain.texts, {})


@pytest.fixture
def small(paths: Paths) -> Iterator[Callable[..., tuple[TranslatedDraftModel, LlamaModel]]]:
    """Return a function that opens the draft model of a target."""
    with contextlib.ExitStack() as stack:

        def open_small(own: str, other: str, **options: Any) -> Any:
            model = stack.enter_context(LlamaModel(paths[own]))
            target = stack.enter_context(LlamaTarget(model, slots=2, context_size=256, threads=1))
            settings = DraftModelSettings(path=paths[other], p_min=0.0, **options)
            return open_draft_model(settings, target, stack), model

        yield open_small


def counted(drafts: TranslatedDraftModel) -> list[int]:
    """Return a list that gets the size of each decode."""
    sizes, decode = list[int](), drafts._target.decode

    def count(batch: Any, rows: Any) -> None:
        sizes.append(len(batch))
        decode(batch, rows)

    drafts._target.decode = count  # type: ignore[method-assign]
    return sizes


def text_of(model: LlamaModel, ids: Any) -> str:
    return model.detokenize(ids, special=True)


@pytest.mark.parametrize(("own", "other"), [("words", "halves"), ("halves", "words")])
def test_it_drafts_after_what_another_source_has_drafted(small: Any, own: str, other: str) -> None:
    drafts, model = small(own, other, n_max=6)
    text, more = "".join(WORDS[:9]), "".join(WORDS[9:12])
    drafts.begin(0, model.tokenize(text))
    sizes = counted(drafts)
    (draft,) = drafts.extend([0], [model.tokenize(more)], [6])
    assert draft.size == 6
    assert "".join(WORDS[12:]).startswith(text_of(model, draft))
    assert drafts.confidence(0).shape == (6,)
    assert (drafts.confidence(0) > 0.9).all()
    sizes.clear()
    drafts.accept(0, np.concatenate([model.tokenize(more), draft[:4]]), 4)
    stats = drafts.stats()["draft-simple"]
    assert stats.accepted_per_position == (1, 1, 1, 1)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 6, 4)
    (again,) = drafts.propose([0], [6])
    assert again[:2].tolist() == draft[4:].tolist()
    assert sizes[0] <= 4, "what was right is not read again"
    drafts.accept(0, model.tokenize(WORDS[3]), 0)  # all of it was wrong
    (draft,) = drafts.propose([0], [6])
    assert "".join(WORDS[4:]).startswith(text_of(model, draft))


def test_a_next_turn_reads_only_what_is_new(small: Any) -> None:
    drafts, model = small("words", "halves", n_max=4)
    sizes = counted(drafts)
    text = "".join(WORDS) * 3
    drafts.begin(0, model.tokenize(text))
    assert drafts.backlog(0) == 0.0, "nothing was timed yet"
    drafts.propose([0], [4])
    read = sum(sizes)
    assert read > 120
    drafts.accept(0, model.tokenize(WORDS[0]), 1)
    drafts.end(0)
    sizes.clear()
    drafts.begin(0, model.tokenize(text + WORDS[0] + "<|sep|>" + WORDS[4]))
    first = drafts.backlog(0)
    (draft,) = drafts.propose([0], [4])
    assert text_of(model, draft) == "".join(WORDS[5:9])
    assert sum(sizes) < 40
    speculation = Speculation(namespace="another namespace")
    request = Request(prompt_ids=model.tokenize(text), speculation=speculation)
    drafts.start(0, request, GreedySampler())
    sizes.clear()
    drafts.begin(0, model.tokenize(text))
    assert drafts.backlog(0) > 3 * first
    assert drafts.propose([0], [4])[0].size == 4
    assert sum(sizes) >= read
    start, each = drafts.price()
    assert start >= 0.0 < each


def test_lengths_and_bounds_are_in_tokens_of_the_target(small: Any) -> None:
    drafts, model = small("words", "halves", n_max=4, n_min=3)
    assert (drafts.max_draft, drafts.info.vocabulary) == (4, "another")
    drafts.begin(0, model.tokenize("".join(WORDS[:6])))
    assert drafts.propose([0], [9])[0].size == 4
    drafts.shorten(0, 3)
    drafts.accept(0, model.tokenize("".join(WORDS[6:9])), 3)
    assert drafts.propose([0], [2])[0].size == 0
    drafts.accept(0, model.tokenize(WORDS[9]), 0)
    stats = drafts.stats()["draft-simple"]
    assert (stats.num_drafts, stats.num_draft_tokens, stats.accept_calls) == (1, 3, 1)
    drafts.begin(1, model.tokenize("")[:0])
    assert drafts.propose([1], [4])[0].size == 0, "there is no text to go on with"


def test_a_text_without_tokens_ends_only_its_own_drafts(small: Any, run: Run) -> None:
    drafts, model = small("words", "halves", n_max=4)
    drafts.begin(0, model.tokenize("".join(WORDS[:6])))
    drafts.begin(1, model.tokenize("".join(WORDS[:6])))
    replace, calls = drafts._texts[1].translation.replace, list[int]()

    def failing(data: bytes) -> int:
        calls.append(len(data))
        if len(calls) < 2:
            raise BackendError("no token for it")
        return replace(data)

    drafts._texts[1].translation.replace = failing
    with pytest.raises(BackendError, match="no token for it"):
        drafts.propose([0, 1], [4, 4])
    for slot in (0, 1):
        assert text_of(model, drafts.propose([slot], [4])[0]) == "".join(WORDS[6:10])


def test_vocabularies_that_change_texts_are_refused(paths: Paths, tmp_path: Path, run: Run) -> None:
    paths = {**paths, "lower": word_piece_model(tmp_path / "lower.gguf")}
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(LlamaModel(paths["words"]))
        target = stack.enter_context(LlamaTarget(model, slots=1, context_size=64, threads=1))
        with pytest.raises(
            BackendError,
            match=r"token 5 is .*, the target's .*, and the draft model's vocabulary changes "
            r"texts, such as .*: no draft can go from one model to the other; use a draft",
        ):
            open_draft_model(DraftModelSettings(path=paths["lower"]), target, stack)
        settings = DraftModelSettings(path=paths["halves"], replace=(("", "x"),))
        with pytest.raises(InputError, match="a string that is to be replaced is empty"):
            open_draft_model(settings, target, stack)
        nothing = no_vocabulary(tmp_path / "none.gguf")
        with pytest.raises(FormatError, match="the file has no vocabulary, only token ids"):
            open_draft_model(DraftModelSettings(path=nothing), target, stack)


def test_a_replacement_for_the_same_vocabulary_does_nothing(paths: Paths) -> None:
    settings = DraftModelSettings(path=paths["words"], replace=MARKERS)
    with LLM(paths["words"], draft_model=settings, threads=1, calibrate=0) as llm:
        drafting = llm.engine.drafting()
        assert drafting.notes == (NO_EXCHANGE,)
        assert drafting.draft_model is not None
        assert drafting.draft_model.as_json()["vocabulary"] == "same"
        assert "draft model words.gguf of up to 16 (" in drafting_line(drafting)


def test_it_tells_that_it_drafts_through_text(paths: Paths) -> None:
    settings = DraftModelSettings(path=paths["halves, marked"], replace=MARKERS)
    options: dict[str, Any] = {"threads": 1, "calibrate": 0, "policy": "fixed", "slots": 2}
    with LLM(paths["words"], None, draft_model=settings, **options) as llm:
        answer = llm.generate(PROMPTS[0], max_tokens=50, temperature=0)
        assert answer.timings.num_accepted_tokens > 40
        drafting = llm.engine.drafting()
        assert json.loads(json.dumps(drafting.as_json()))["draft_model"]["vocabulary"] == "another"
        assert drafting.notes == ()
        assert "draft model marked.gguf of up to 16, of another vocabulary (" in drafting_line(
            drafting
        )
        bounded = Speculation(p_min=1.0)
        answer = llm.generate(PROMPTS[0], max_tokens=20, temperature=0, speculation=bounded)
        assert answer.timings.num_draft_tokens == 0
