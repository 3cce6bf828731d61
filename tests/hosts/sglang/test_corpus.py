"""The corpus that stands in for SGLang's, called as its NGRAM worker calls it."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.replays import tokens
from ngramspec import create_drafter
from ngramspec.drafting.slot_pool import SlotPool
from ngramspec.engine.sources.pools import Pools
from ngramspec.errors import FormatError, InputError
from ngramspec.files.cache_file import Origin
from ngramspec.files.suffix_file import write_suffix_index
from ngramspec.hosts.sglang.corpus import Corpus, within_vocabulary
from ngramspec.hosts.sglang.documents import SEPARATOR
from ngramspec.hosts.sglang.request import SlotRequest
from ngramspec.hosts.sglang.settings import CorpusSettings, read_settings

LONG = list(range(100, 180))
DEPTH = 18


def corpus(rows: int = 6, environment: dict[str, str] | None = None, **options: Any) -> Corpus:
    options = {"vocab_size": 1 << 21, **options}
    return Corpus(DEPTH, draft_token_num=rows, settings=read_settings(environment or {}), **options)


def request(name: str, prompt: Any, output: Any = ()) -> Any:
    return SimpleNamespace(rid=name, origin_input_ids_unpadded=prompt, output_ids=output)


def drafted(ngrams: Corpus, name: str, text: list[int]) -> list[int]:
    """The rows of one request behind its newest token."""
    ids, mask = ngrams.batch_get([name], [text[-DEPTH:]], [len(text)])
    d = ngrams.draft_token_num
    assert (ids.shape, mask.shape) == ((d,), (d * d,))
    assert ids.dtype == mask.dtype == np.int64
    assert ids[0] == text[-1]
    return ids[1:].tolist()


def test_whole_prompts_are_drafted_from_when_they_are_shown() -> None:
    text = [*LONG, 3, *LONG[:4]]
    for shown in (True, False):
        ngrams = corpus()
        if shown:
            ngrams.meet([request("a", text[:-1], text[-1:])])
        assert drafted(ngrams, "a", text) == (LONG[4:9] if shown else [0] * 5)


def test_texts_are_followed_from_their_ends() -> None:
    ngrams, text = corpus(), [*LONG, 3]
    ngrams.meet([request("a", text)])
    for at in (2, 5, 9):
        text = [*LONG, 3, *LONG[:at]]
        ngrams.meet([request("a", text)])  # known: not looked at again
        assert drafted(ngrams, "a", text)[:2] == LONG[at : at + 2]
        assert drafted(ngrams, "a", text)[:2] == LONG[at : at + 2]  # the same again
        ngrams.batch_put([text[-DEPTH:]])
        ngrams.synchronize()
    stats = ngrams.stats()["suffix"]
    assert stats.begin_calls == 1
    assert stats.num_accepted_tokens == 2 + 3  # of 3 and 4 new tokens, all but the last


def test_a_text_may_grow_by_more_than_the_end_that_is_shown() -> None:
    ngrams, text = corpus(40), [*LONG, 3, *LONG[:4]]
    ngrams.meet([request("a", text)])
    assert drafted(ngrams, "a", text)[:30] == LONG[4:34]
    text += LONG[4:34]
    assert drafted(ngrams, "a", text)[:30] == LONG[34:64]
    drafter, slot = ngrams._requests["a"].lease
    assert drafter.history(slot).tolist() == text
    stats = ngrams.stats()["suffix"]
    assert (stats.begin_calls, stats.num_accepted_tokens) == (1, 29)


def test_the_path_through_the_branches_is_found_from_its_end() -> None:
    followed = SlotRequest(SlotPool(lambda slots: create_drafter("suffix", slots=slots)), 2)
    followed._ids, followed._parents = [7, 8, 9, 9, 6, 5], [-1, -1, 0, 1, 3, 3]
    assert followed._completed(int32([5, 1]), 4).tolist() == [8, 9, 5, 1]
    assert followed._completed(int32([4, 1]), 4).tolist() == [4, 1]
    assert followed._completed(int32([5, 1]), 9).tolist() == [5, 1]


def test_more_rows_than_a_tree_has_tokens_are_padded() -> None:
    params = '{"ngram-simple": {"size_m": 400}}'
    ngrams = corpus(300, {"NGRAMSPEC_DRAFTER": "ngram-simple", "NGRAMSPEC_PARAMS": params})
    text = [*range(500), *range(12)]
    ngrams.meet([request("a", text)])
    assert drafted(ngrams, "a", text) == [*range(12, 268), *[0] * 43]


def test_what_another_sibling_goes_on_with_was_not_drafted_right() -> None:
    followed = SlotRequest(SlotPool(lambda slots: create_drafter("suffix", slots=slots)), DEPTH)
    followed._ids, followed._parents = [7, 8, 9], [-1, -1, 0]  # 9 comes after 7
    assert followed._right(int32([7, 9, 1])) == 2
    assert followed._right(int32([8, 9, 1])) == 1


def test_a_batch_has_rows_in_the_order_of_its_requests() -> None:
    ngrams, d = corpus(), 6
    ngrams.meet([request(str(i), [*LONG[i:], 3, *LONG[i : i + 4]]) for i in range(70)])
    texts = [[*LONG[i:], 3, *LONG[i : i + 4]] for i in range(70)]
    names = [str(i) for i in range(70)]
    ids, mask = ngrams.batch_get(names, [t[-DEPTH:] for t in texts], [len(t) for t in texts])
    assert (ids.shape, mask.shape) == ((70 * d,), (70 * d * d,))
    firsts = ids.reshape(70, d)[:, :2].tolist()
    assert firsts == [[LONG[i + 3], LONG[i + 4]] for i in range(70)]
    assert (mask.reshape(70, d, d)[:, :, 0] == 1).all()


def test_trees_have_branches() -> None:
    ngrams = corpus(4)
    text = [1, 2, 3, 4, 9, 6, 1, 2, 3, 5, 8, 7, 1, 2, 3]
    ids, mask = ngrams.batch_get(["a"], [text], [len(text)])
    assert set(ids[1:3]) == {4, 5}
    assert mask.reshape(4, 4)[2].tolist() == [1, 0, 1, 0]
    ngrams = corpus(4, max_bfs_breadth=1)
    ids, mask = ngrams.batch_get(["a"], [text], [len(text)])
    assert mask.reshape(4, 4)[3].tolist() == [1, 1, 1, 1]


def test_a_text_that_does_not_go_on_is_taken_anew() -> None:
    ngrams, text = corpus(), [*LONG, 3, *LONG[:4]]
    ngrams.meet([request("a", text)])
    changed = [*LONG, 3, *LONG[:2], 7, *LONG[:9]]
    for other in (changed, changed[:-4], [*changed, *range(40, 60), *range(40, 44)]):
        drafted(ngrams, "a", other)
        drafter, slot = ngrams._requests["a"].lease
        assert drafter.history(slot).tolist() == other[-DEPTH:]
    assert len(ngrams._requests["a"]._end) == 4 * DEPTH


def test_what_a_request_said_is_drafted_for_others_after_it() -> None:
    ngrams = corpus()
    ngrams.meet([request("a", [1, 2], LONG)])
    ngrams.erase_match_state(["a", "unknown"])
    ngrams.meet([request("b", [5, *LONG[:4]])])
    assert drafted(ngrams, "b", [5, *LONG[:4]]) == LONG[4:9]
    ngrams.reset()
    assert drafted(ngrams, "b", [5, *LONG[:4]]) == [0] * 5


def test_a_slot_serves_many_requests() -> None:
    ngrams = corpus()
    for i in range(200):
        ngrams.meet([request(str(i), [i, 1, 2])])
        ngrams.erase_match_state([str(i)])
    ngrams.batch_get(["never shown"], [[1]], [1])
    assert [drafter.slots for drafter in ngrams._slots.drafters] == [64]


@pytest.mark.parametrize("bad", [-5, 1 << 40])
def test_a_request_with_other_ids_has_no_drafts_and_harms_no_other(
    bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    ngrams, text = corpus(), [*LONG, 3, *LONG[:4]]
    with caplog.at_level(logging.WARNING, "ngramspec"):
        ngrams.meet([request("bad", [1, bad]), request("a", text)])
        assert drafted(ngrams, "bad", [1, 2]) == [0] * 5
        ngrams.batch_get(["tail"], [[bad, 4]], [2])
    assert drafted(ngrams, "a", text) == LONG[4:9]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    ngrams.erase_match_state(["bad", "tail", "a"])


def test_a_request_whose_text_there_is_no_room_for_harms_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ngrams, text = corpus(), [*LONG, 3, *LONG[:4]]
    ngrams.meet([request("a", text), request("large", text)])

    def fail(*_: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(ngrams._requests["large"], "follow", fail)
    with caplog.at_level(logging.WARNING, "ngramspec"):
        for _ in range(3):
            assert drafted(ngrams, "large", text) == [0] * 5
            assert drafted(ngrams, "a", text) == LONG[4:9]
    assert [one.getMessage() for one in caplog.records] == [
        "request large has no drafts: none left"
    ]
    ngrams.erase_match_state(["large", "a"])


def test_a_failure_is_logged_once_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ngrams, text = corpus(), [*LONG, 3, *LONG[:4]]
    ngrams.meet([request("a", text)])

    def fail(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(ngrams._requests["a"], "propose", fail)
    with caplog.at_level(logging.ERROR, "ngramspec"):
        for _ in range(3):
            assert drafted(ngrams, "a", text) == [0] * 5
            ngrams.meet([request("b", text)])
            ngrams.erase_match_state(["a"])
    assert len(caplog.records) == 1
    assert "no such thing" in caplog.text


def test_what_meet_cannot_read_breaks_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    ngrams = corpus()
    ngrams.meet([object()])
    assert "drafts nothing from now on" in caplog.text
    assert drafted(ngrams, "a", LONG) == [0] * 5


def test_external_corpora_are_drafted_from() -> None:
    ngrams = corpus(external_corpus_max_tokens=100)
    with pytest.raises(InputError, match="external corpus 'x' is empty"):
        ngrams.load_external_corpus_named("x", [[]])
    with pytest.raises(InputError, match="holds a negative token id"):
        ngrams.load_external_corpus_named("x", [[3, -4]])
    with pytest.raises(InputError, match="holds a negative token id"):
        ngrams.load_external_corpus_named("x", [[3, -1, 4]])
    with pytest.raises(InputError, match="more than the 100 tokens left"):
        ngrams.load_external_corpus_named("x", [LONG, LONG])
    assert ngrams.load_external_corpus_named("x", [LONG[:40], [SEPARATOR, *range(20, 40)]]) == 61
    ngrams.meet([request("early", [5, *LONG[:4]])])
    ngrams.commit_external_corpus_load("x", 61)
    ngrams._documents.wait()
    assert (ngrams.list_external_corpora(), ngrams.remaining_token_budget) == ({"x": 61}, 39)
    with pytest.raises(InputError, match="external corpus 'x' already exists"):
        ngrams.load_external_corpus_named("x", [[1]])
    text = [5, *LONG[:4]]
    ngrams.meet([request("late", text)])
    assert drafted(ngrams, "late", text) == LONG[4:9]
    assert drafted(ngrams, "early", text) == [0] * 5
    assert ngrams.load_external_corpus_named("y", [[*range(60, 70)]]) == 10
    ngrams.commit_external_corpus_load("y", 10)
    ngrams._documents.wait()
    ngrams.remove_external_corpus("x")
    ngrams._documents.wait()
    ngrams.remove_external_corpus("x")
    ngrams.meet([request("third", text), request("fourth", [1, 60, 61, 62])])
    assert drafted(ngrams, "third", text) == [0] * 5
    assert drafted(ngrams, "fourth", [1, 60, 61, 62]) == [63, 64, 65, 66, 67]
    ngrams.remove_external_corpus("y")
    assert ngrams.list_external_corpora() == {}
    ngrams.meet([request("last", [1, 60, 61, 62])])
    assert drafted(ngrams, "last", [1, 60, 61, 62]) == [0] * 5


def test_corpora_that_cannot_be_indexed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    ngrams = corpus()
    ngrams.load_external_corpus_named("x", [[*LONG, 2**31 - 1]])  # the vocabulary is too large
    ngrams.commit_external_corpus_load("x", 81)
    ngrams._documents.wait()
    assert "external corpora cannot be indexed" in caplog.text
    text = [5, *LONG[:4]]
    ngrams.meet([request("a", text)])
    assert drafted(ngrams, "a", text) == [0] * 5


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ngs"
    write_suffix_index(path, tokens(*LONG, -1), Origin(None, 1000))
    ngrams = corpus(environment={"NGRAMSPEC_STATIC": str(path)})
    assert drafted(ngrams, "a", LONG[:4]) == LONG[4:9]
    with pytest.raises(InputError, match="need the drafter suffix, without a static file"):
        ngrams.load_external_corpus_named("x", [[1]])
    other = tmp_path / "b.ngs"
    other.write_bytes(b"no index")
    with pytest.raises(FormatError):
        read_settings({"NGRAMSPEC_STATIC": str(other)}).make(Pools({}), 1)


@pytest.mark.parametrize("spec", ["ngram-mod", "ngram-mod,suffix", "ngram-cache,ngram-simple"])
def test_other_drafters_give_chains(spec: str) -> None:
    params = '{"ngram-mod": {"n_match": 2, "n_min": 1}}' if "mod" in spec else ""
    ngrams = corpus(environment={"NGRAMSPEC_DRAFTER": spec, "NGRAMSPEC_PARAMS": params})
    text = [*LONG, 3, *LONG[:40]]
    ngrams.meet([request("a", text)])
    assert drafted(ngrams, "a", text)[:3] == LONG[40:43]
    if "suffix" not in spec:
        with pytest.raises(InputError, match="need the drafter suffix"):
            ngrams.load_external_corpus_named("x", [[1]])


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"DRAFTER": "sufix"}, "suffix"),
        ({"DRAFTER": "ngram-simple", "STATIC": "x"}, "ngram-simple read no statistics"),
        ({"PARAMS": "{"}, "NGRAMSPEC_PARAMS"),
        ({"PARAMS": "[1]"}, "parameters by drafter name"),
        ({"PARAMS": '{"ngram-mod": {}}'}, "names 'ngram-mod', which is not in suffix"),
        ({"DRAFTER": "ngram-mod", "PARAMS": '{"ngram-mod": {"pool": "x"}}'}, "pool changes"),
        ({"DRAFTER": "ngram-cache", "PARAMS": '{"ngram-cache": {"dynamic": "x"}}'}, "dynamic"),
        ({"DRAFTER": "suffix,recycle"}, "logits, which SGLang never shows"),
    ],
)
def test_wrong_settings_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_settings({f"NGRAMSPEC_{name}": text for name, text in environment.items()})


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings({}) == CorpusSettings(params={"suffix": {"min_probability": 0.0}})
    monkeypatch.setenv("NGRAMSPEC_ANY_TOKENIZER", "1")
    monkeypatch.setenv("NGRAMSPEC_PARAMS", '{"suffix": {"capacity": 8192}}')
    expected = {"min_probability": 0.0, "any_tokenizer": True, "capacity": 8192}
    assert read_settings().params == {"suffix": expected}


@pytest.mark.parametrize("name", ["max_trie_depth", "max_bfs_breadth", "draft_token_num"])
def test_bounds_are_checked(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be >= 1, got 0"):
        Corpus(**{name: 0}, settings=read_settings({}))


def test_ids_beyond_the_targets_vocabulary_are_never_drafted(tmp_path: Path) -> None:
    """As of a file that was built for a larger vocabulary: an engine would end on its GPU."""
    path = tmp_path / "large.ngx"
    text = [1, 2, 3, 4, 5000, 6, -1, 2, 3, 4, 7, 8, -1]
    write_suffix_index(path, int32(text), Origin(vocab_size=10_000))
    for vocab_size, others in ((10_000, {5000, 7}), (5001, {5000, 7}), (5000, {7}), (7, set())):
        ngrams = corpus(8, {"NGRAMSPEC_STATIC": str(path)}, vocab_size=vocab_size)
        drafted_ids = drafted(ngrams, "a", [1, 2, 3])
        assert 4 in drafted_ids
        assert {token for token in drafted_ids if token in (5000, 7)} == others
        assert max(drafted_ids) < vocab_size


def test_what_hangs_below_a_foreign_id_goes_with_it() -> None:
    ids, parents = int32([4, 90, 7, 6, 8, 91]), int32([-1, -1, 0, 1, 2, 4])
    parts = within_vocabulary(ids, parents, 90)
    assert [part.tolist() for part in parts] == [[4, 7, 8], [-1, 0, 1]]
    assert [part.tolist() for part in within_vocabulary(ids, parents, 4)] == [[], []]
    assert within_vocabulary(ids, parents, 92)[0] is ids


def test_nothing_is_drafted_before_the_vocabulary_is_known(caplog: Any) -> None:
    ngrams, text = corpus(vocab_size=0), [*LONG, 3, *LONG[:4]]
    ngrams.meet([request("a", text)], 180)
    assert drafted(ngrams, "a", text) == LONG[4:9]
    unknown = corpus(vocab_size=0)
    unknown.meet([request("a", text)])
    assert drafted(unknown, "a", text) == [0] * 5
    assert "the target's vocabulary size is not known" in caplog.text
