"""The shipped model loads, speaks ChatML and copies; its tools are deterministic."""

from __future__ import annotations

import functools
import itertools
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ngramspec.models
from helpers.paths import ROOT
from helpers.programs import load_program
from ngramspec.models import embedded_model

TOOLS = ROOT / "tools" / "embedded_model"
CODE = """```python
def area(width, height):
    total = width * height
    if total < 0:
        raise ValueError('negative')
    return total
```"""


def load_tool(name: str) -> ModuleType:
    return load_program(TOOLS / f"{name}.py")


@pytest.fixture(scope="module")
def tools() -> Iterator[tuple[ModuleType, ModuleType]]:
    """Yield the modules `corpus` and `tasks`, and forget them afterwards."""
    before = {name: sys.modules.get(name) for name in ("copies", "corpus", "names", "tasks")}
    loaded = {name: load_tool(name) for name in before}
    yield loaded["corpus"], loaded["tasks"]
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small library of 400 functions, so that both splits get some."""
    root = tmp_path_factory.mktemp("library")
    body = "    total = first + second\n    for index in range(total):\n        print(index, {i})\n"
    source = "\n\n".join(
        f"def function_{i}(first, second):\n{body.format(i=i)}    return total" for i in range(400)
    )
    prose = "This module adds numbers. " * 10
    (root / "sums.py").write_text(f'"""{prose}"""\n\n{source}\n', "utf-8")
    for folder in ("test", "site-packages"):
        (root / folder).mkdir()
        (root / folder / "skipped.py").write_text(source.replace("function", "other"), "utf-8")
    return root


@pytest.fixture(scope="module")
def llama() -> Any:
    """Load the shipped model."""
    binding = pytest.importorskip("llama_cpp")
    return binding.Llama(
        str(embedded_model()), n_ctx=2048, n_threads=1, flash_attn=True, verbose=False
    )


def test_file_is_small() -> None:
    """The file exists and is at most 8 MB."""
    path = embedded_model()
    assert path.suffix == ".gguf"
    assert 1_000_000 < path.stat().st_size <= 8_000_000


def test_missing_file_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file raises an error that says what to do."""
    monkeypatch.setattr(ngramspec.models, "FILE_NAME", "absent.gguf")
    with pytest.raises(FileNotFoundError, match=r"absent\.gguf.*rebuild"):
        embedded_model()


def test_metadata(llama: Any) -> None:
    """The file holds a ChatML template, and the end of a turn ends the text."""
    assert "<|im_start|>" in llama.metadata["tokenizer.chat_template"]
    assert llama.token_eos() == llama.tokenize(b"<|im_end|>", add_bos=False, special=True)[0]
    assert llama.n_vocab() == 4096


@pytest.mark.parametrize(
    "text", [CODE, "plain words, 123 + 4.5e-6", "Grüße 你好 🙂", "\ttabs\n\n\n   and spaces  "]
)
def test_tokenizer_round_trip(llama: Any, text: str) -> None:
    """Tokens decode to the same bytes."""
    tokens = llama.tokenize(text.encode(), add_bos=False, special=False)
    assert llama.detokenize(tokens) == text.encode()


@pytest.mark.parametrize(
    ("text", "kind", "options"),
    [
        (CODE, "code", {}),
        # Its tokens are bytes and parts of words that the training text hardly has.
        *(
            (text, "text", {"repeat_penalty": 1.0})
            for text in (
                "Grüße aus München: der Käse ist gut – 5 € für 100 g, “très bon” à Noël.",
                "Привет, мир! Это проверка.",
                "東京は日本の首都です。",
            )
        ),
    ],
)
def test_repeats_code_and_text_of_any_script(
    llama: Any, text: str, kind: str, options: dict[str, Any]
) -> None:
    """The greedy answer repeats it exactly."""
    messages = [{"role": "user", "content": f"Repeat this {kind}:\n\n{text}"}]
    reply = llama.create_chat_completion(
        messages=messages, temperature=0.0, max_tokens=200, **options
    )
    choice = reply["choices"][0]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"


def test_splits_are_disjoint(tools: tuple[ModuleType, ModuleType], library: Path) -> None:
    """Every function is in one split, decided by its text; skipped folders are left out."""
    corpus, _ = tools
    train = {f.source for f in corpus.load_corpus("train", library).functions}
    held = {f.source for f in corpus.load_corpus("eval", library).functions}
    assert train
    assert held
    assert not train & held
    assert len(train | held) == 400
    assert all(corpus.held_out(source) for source in held)
    assert not any("other_" in source for source in train | held)
    with pytest.raises(ValueError, match="unknown split"):
        corpus.load_corpus("test", library)


def test_tasks_are_deterministic(tools: tuple[ModuleType, ModuleType], library: Path) -> None:
    """Equal seeds give equal samples of every task, other seeds others."""
    corpus, tasks = tools
    first = tasks.TaskMaker(corpus.load_corpus("train", library))
    second = tasks.TaskMaker(corpus.load_corpus("train", library))
    if not first.corpus.prose:
        first.corpus.prose = second.corpus.prose = ["some words " * 20]
    for task in first.makers:
        assert first.make("seed", task) == second.make("seed", task)
    assert [first.make(f"{i}") for i in range(9)] == [second.make(f"{i}") for i in range(9)]
    assert first.make("one", "rename") != first.make("two", "rename")


def test_answers_are_right(tools: tuple[ModuleType, ModuleType], library: Path) -> None:
    """The wanted answers follow from the questions."""
    corpus, tasks = tools
    names_in = sys.modules["names"].NAME.findall
    maker = tasks.TaskMaker(corpus.load_corpus("eval", library), varied=False)
    for seed in "abcdef":
        ((question, answer),) = maker.make(seed, "repeat_code").turns
        assert question.endswith(answer)
        ((question, answer),) = maker.make(seed, "show").turns
        assert answer.removeprefix("```python\n").removesuffix("\n```") in question
        ((question, answer),) = maker.make(seed, "rename").turns
        old, new = question.split("`")[1], question.split("`")[3]
        names = names_in(answer)
        assert old not in names
        assert new in names


@pytest.mark.parametrize(("again", "least"), [(False, 1.3), (True, 1.2)])
def test_texts_to_learn_from_have_more_to_rename(
    tools: tuple[ModuleType, ModuleType],
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: bool,
    least: float,
) -> None:
    """In training one name stands in for others, and every answer still follows from its code.

    Lines that are said again have other names too, which makes the share smaller.
    """
    corpus, tasks = tools
    if not again:
        monkeypatch.setattr(tasks.TaskMaker, "_echoed", lambda _, code, rng: code)
    names_in = sys.modules["names"].NAME.findall
    shares = []
    for varied in (False, True):
        maker = tasks.TaskMaker(corpus.load_corpus("eval", library), varied=varied)
        places = renamed = 0
        for seed in range(240):
            ((question, answer),) = maker.make(f"{seed}", "rename").turns
            asked, code = question.split("\n\n", 1)
            before, after = names_in(code), names_in(answer)
            changed = {pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]}
            assert len(changed) == 1
            old, new = changed.pop()
            assert old in asked
            assert new in asked
            assert old not in after
            places += len(before)
            renamed += before.count(old)
        shares.append(renamed / places)
    assert shares[1] > least * shares[0], shares


def test_texts_to_learn_from_say_lines_again_with_another_name(
    tools: tuple[ModuleType, ModuleType], library: Path
) -> None:
    """Much of a text is then told apart by what was long before alone."""
    corpus, tasks = tools
    name = sys.modules["names"].NAME
    shares = []
    for varied in (False, True):
        maker = tasks.TaskMaker(corpus.load_corpus("eval", library), varied=varied)
        alike = count = 0
        for seed in range(240):
            ((_, answer),) = maker.make(f"{seed}", "repeat_code").turns
            lines = [line.strip() for line in answer.splitlines()[1:-1] if line.strip()]
            shapes = Counter(name.sub("x", line) for line in set(lines))
            alike += sum(shapes[name.sub("x", line)] > 1 for line in lines)
            count += len(lines)
        shares.append(alike / count)
    assert shares[1] > 1.3 * shares[0], shares


def test_texts_to_learn_from_have_every_token(
    tools: tuple[ModuleType, ModuleType], library: Path
) -> None:
    """A tokenizer's tokens are words of names, each as often as any other."""
    corpus, tasks = tools
    pieces = [f"Zq{first}{second}x" for first in "abcdefgh" for second in "abcdefgh"]
    library_of_names = corpus.load_corpus("train", library)
    maker = tasks.TaskMaker(library_of_names, pieces=[*pieces, " + ", "\n"])
    plain = tasks.TaskMaker(library_of_names)
    texts = [
        " ".join(one.make(f"{seed}", "repeat_code").turns[0][1].lower() for seed in range(300))
        for one in (maker, plain)
    ]
    assert all(piece.lower() in texts[0] for piece in pieces)
    assert not any(piece.lower() in texts[1] for piece in pieces)


def test_names_that_begin_alike_are_told_apart(tools: tuple[ModuleType, ModuleType]) -> None:
    names = sys.modules["names"].NameMaker(["def area(width): return width"])
    rng = random.Random(0)
    text = "area = area_width + areas + area0"
    alike = {names.like("area", text, rng) for _ in range(200)}
    assert not alike & {"area", "area_width", "areas", "area0"}
    assert sum(name.startswith("area") for name in alike) > 5


def test_later_turns_follow_from_earlier_ones(
    tools: tuple[ModuleType, ModuleType], library: Path
) -> None:
    """In training a turn may ask once more of the same text; its answer follows from the last."""
    corpus, tasks = tools
    names_in = sys.modules["names"].NAME.findall
    maker = tasks.TaskMaker(corpus.load_corpus("train", library))
    counts = {"again": set[int](), "show": set[int]()}
    for seed in range(60):
        turns = maker.make(f"{seed}", "again").turns
        counts["again"].add(len(turns))
        for (_, before), (question, answer) in itertools.pairwise(turns):
            changed = set(zip(names_in(before), names_in(answer), strict=True))
            changed = {(old, new) for old, new in changed if old != new}
            asked = question.split("`")[1::2]
            assert changed == ({tuple(asked)} if asked else set())
        turns = maker.make(f"{seed}", "show").turns
        counts["show"].add(len(turns))
        for _, answer in turns:
            assert answer.split("\n", 1)[1].removesuffix("\n```") in turns[0][0]
        assert len({answer for _, answer in turns}) == len(turns)
    assert counts["again"] == {2, 3, 4, 5}
    assert len(counts["show"]) > 2


def test_a_copy_is_followed_over_what_is_different(tools: tuple[ModuleType, ModuleType]) -> None:
    follow = sys.modules["copies"].follow
    text = list(range(100, 150))
    assert follow(text, text) == list(range(50))
    assert follow(text, [1, 2, *text[10:30]]) == [-1, -1, *range(10, 30)]
    replaced = [*text[:20], 7, 8, *text[21:]]
    assert follow(text, replaced) == [*range(20), 20, -1, *range(21, 50)]
    left_out = [*text[:20], *text[25:]]
    assert follow(text, left_out) == [*range(20), *range(25, 50)]
    turned = [*text[30:], *text[:30]]
    assert follow(text, turned) == [*range(30, 50), *range(30)]
    assert follow(text, [7] * 9) == [-1] * 9
    assert follow([], text) == [-1] * 50


def pieces_of(sample: Any) -> tuple[list[Any], list[str]]:
    """Cut a conversation into words and signs; return its pieces and their texts in a row."""
    ids: dict[str, int] = {}
    pieces, words = list[Any](), list[str]()
    for turn in sample.turns:
        for answer, text in enumerate(turn):
            matches = [*re.finditer(r"\w+|\W", text + ("<|im_end|>" if answer else "\n"))]
            pieces.append(
                sys.modules["copies"].Piece(
                    text,
                    [ids.setdefault(one[0], len(ids)) for one in matches],
                    [one.span() for one in matches],
                    len(words),
                    bool(answer),
                )
            )
            words += [one[0] for one in matches]
    return pieces, words


def test_what_is_to_be_changed_is_told_from_what_begins_alike(
    tools: tuple[ModuleType, ModuleType],
) -> None:
    """Here each character is a token."""
    copies = sys.modules["copies"]
    request = "Rename `ab` to `xyz`:\n```python\ndo_ab = abc + (ab)  # ab, other words\n```\n"
    answer = "```python\ndo_ab = abc + (xyz)  # xyz, other words\n```"
    texts, pieces = request + answer, []
    for start, text in ((0, request), (len(request), answer)):
        offsets = [(at, at + 1) for at in range(len(text))]
        pieces.append(copies.Piece(text, [*map(ord, text)], offsets, start, bool(start)))
    all_places = copies.find_places(pieces)
    end = request.index("` to")
    marked = {texts[at - 3 : at + 1]: places for at, places in all_places.marked.items()}
    assert marked == {"_ab ": [0], " abc": [0], "(ab)": [end], " ab,": [end]}
    asked = {texts[at - 3 : at + 2]: places for at, places in all_places.asked.items()}
    assert asked == {" + (x": [end], "  # x": [end], "\ndo_a": [0], "b = a": [0]}
    back = {texts[at - 3 : at + 2]: places for at, places in all_places.back.items()}
    assert back == {"(xyz)": [end], " xyz,": [end]}
    resumed = {
        texts[at - 3 : at + 2]: texts[places[0] : places[0] + 2]
        for at, places in all_places.resumed.items()
    }
    assert resumed == {"(xyz)": ") ", " xyz,": ", "}
    new = request.index("xyz")
    assert {texts[at - 3 : at + 2]: places for at, places in all_places.put_in.items()} == {
        " + (x": [new], "  # x": [new],
    }  # fmt: skip
    put_in = [at for at in all_places.same if texts[at + 1] in "xyz" and new in all_places.same[at]]
    assert len(put_in) == 2
    for at in put_in:
        assert [all_places.same[at + k] for k in range(3)] == [[new], [new + 1], [new + 2]]
        assert [all_places.quoted[at + k] for k in range(3)] == [[new], [new + 1], [new + 2]]
    assert all_places.quoted.keys() == all_places.within.keys()
    assert len(all_places.quoted) == 6
    assert set(map(tuple, all_places.within.values())) == {(end,)}


def test_what_is_no_task_has_one_answer(
    tools: tuple[ModuleType, ModuleType], library: Path
) -> None:
    """It is not looked for in the request, and requests of the measurement are not learned."""
    corpus, tasks = tools
    assert not {*tasks.NO_TASK} & {*tasks.HELD_OUT_NO_TASK}
    asked = []
    for split, varied in (("train", True), ("eval", False)):
        maker = tasks.TaskMaker(corpus.load_corpus(split, library), varied)
        maker.corpus.prose = ["It is able to rename a name, and to lose it. " * 5]
        samples = [maker.make(f"{seed}", "other") for seed in range(60)]
        asked.append({sample.turns[-1][0] for sample in samples})
        assert {sample.turns[-1][1] for sample in samples} == {tasks.CANNOT}
        for sample in samples:
            pieces, _ = pieces_of(sample)
            places = sys.modules["copies"].find_places(pieces)
            assert not {at for at in places.copied if at >= pieces[-1].start - 1}
        assert not any(re.search("{[a-z]+}", ask) for ask in asked[-1])
    assert not asked[0] & asked[1]


def test_copied_tokens_have_places(tools: tuple[ModuleType, ModuleType], library: Path) -> None:
    """A place lies before its token and, where nothing was replaced, holds the same."""
    corpus, tasks = tools
    maker = tasks.TaskMaker(corpus.load_corpus("train", library))
    if not maker.corpus.prose:
        maker.corpus.prose = ["some words and others " * 20]
    for task in maker.makers:
        copied = replaced = answers = 0
        for seed in range(20):
            pieces, words = pieces_of(maker.make(f"{seed}", task))
            found_places = sys.modules["copies"].find_places(pieces)
            places = found_places.copied
            assert bool(found_places.ended) == (task == "json")
            for by_position in (found_places.same, found_places.put_in):
                for position, origins in by_position.items():
                    assert {words[place] for place in origins} == {words[position + 1]}
            assert found_places.cell.keys() == found_places.ended.keys()
            for position, (begin,) in found_places.cell.items():
                assert words[begin] in words[position + 1 : position + 3]
            for position, (end,) in found_places.ended.items():
                assert end < position
                assert re.fullmatch(r"[^\s,]+", words[end].strip())
                assert words[end + 1] in {",", "\n", '"'}
            parts = [one for one in pieces if one.answer]
            answered = {i for one in parts for i in range(one.start, one.start + len(one.ids))}
            assert {position + 1 for position in places} <= answered
            answers += len(parts)
            for position, origins in places.items():
                assert max(origins) <= position
                same = any(words[place] == words[position + 1] for place in origins)
                same = same or (position in found_places.ended and words[position + 1] in ' "')
                copied, replaced = copied + same, replaced + (not same)
        assert copied > 5 * replaced, task
        if task in {"repeat_code", "repeat_text", "json"}:
            assert replaced <= answers  # the end of an answer stands where the text goes on


def test_attention_and_its_gradient_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    attention = load_tool("model").attention
    torch.manual_seed(0)
    shapes = {"query": 8, "key": 4, "value": 4}
    for length in (7, 128, 300):
        inputs = {name: torch.randn(2, heads, length, 16) for name, heads in shapes.items()}
        outputs = []
        theirs = functools.partial(
            torch.nn.functional.scaled_dot_product_attention, is_causal=True, enable_gqa=True
        )
        for function in (attention, theirs):
            leaves = [one.clone().requires_grad_() for one in inputs.values()]
            mixed = function(*leaves)
            mixed.square().sum().backward()
            outputs.append([mixed, *(leaf.grad for leaf in leaves)])
        for ours, expected in zip(*outputs, strict=True):
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield the module `train`, and forget it and what it imports afterwards."""
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    monkeypatch.syspath_prepend(str(TOOLS))
    names = [path.stem for path in TOOLS.glob("*.py")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield load_tool("train")
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_the_loss_of_looking_is_that_of_its_definition(train: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8)
    positions = torch.tensor([[3, 5, 8], [0, 0, 0]])
    # The last one's place, one ahead, is yet to come; the second row has none.
    places = torch.tensor([[[1, -1], [0, 4], [8, -1]], [[-1, -1]] * 3])
    looks = train.Looks(positions, places)
    lost = []
    for head in (1, 2):
        for at, columns in ((3, [2]), (5, [1, 5])):
            scores = key[0, head // 2, : at + 1] @ query[0, head, at] / 8**0.5
            lost.append(-scores.softmax(0)[columns].sum().log())
    loss = train.look_loss(query, key, train.Taught(0, (1, 2), ahead=1), looks)
    torch.testing.assert_close(loss, torch.stack(lost).mean())
    nowhere = train.Looks(positions[1:], places[1:])
    assert train.look_loss(query[1:], key[1:], train.Taught(0, (1, 2)), nowhere) == 0
    empty = train.Looks(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0, 0, dtype=torch.long))
    assert train.look_loss(query[1:], key[1:], train.Taught(0, (1, 2)), empty) == 0


def test_a_file_can_be_the_mean_of_two(
    train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("gguf")
    file, out = tmp_path / "given.pt", tmp_path / "mean.gguf"
    model = train.load_gguf(str(embedded_model()))
    state = {name: 3 * tensor for name, tensor in model.state_dict().items()}
    torch.save({"model": state, "config": vars(model.config)}, file)
    path = str(embedded_model())
    command = ["export.py", str(file), "--tokenizer", path, "--mean-with", path, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    load_tool("export").main()
    tensors = train.load_gguf(str(out)).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensors[name], 2 * tensor)
