"""Speculation per request: switches and sizes change the speed, never the text."""

from __future__ import annotations

import difflib
from typing import Any

import openai
import pytest

from helpers.serving import CODE, REPEAT, Serving, Start
from ngramspec.drafting.names import DRAFTER_NAMES
from ngramspec.engine import AutoPolicy
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server.errors import ApiError
from ngramspec.server.request.speculation import speculation_of

WAYS: list[dict[str, Any]] = [
    {"speculative.enabled": False},
    {"speculative": False},
    {"speculative.types": "none"},
    {"speculative.types": "ngram-simple"},
    {"speculative.types": ["ngram-map-k", "ngram-cache"]},
    {"speculative.type": "ngram-mod", "speculative.ngram_mod.n_min": 2},
    {"speculative": {"types": "ngram-simple", "ngram_simple": {"size_n": 3, "size_m": 7}}},
    {"speculative": {"ngram-cache.n_draft": 2}, "speculative.n_max": 3},
    {"speculative.n_max": 0},
    {"speculative.namespace": "mine"},
]


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_the_text_is_the_same_in_every_way(server: Serving, temperature: float) -> None:
    settings: dict[str, Any] = {"temperature": temperature, "seed": 4, "max_tokens": 40}
    plain = server.chat(**settings).choices[0].message.content
    texts = {server.chat(extra=way, **settings).choices[0].message.content for way in WAYS}
    assert texts == {plain}


@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[2], WAYS[8]], ids=str)
def test_drafts_can_be_switched_off(server: Serving, way: dict[str, Any]) -> None:
    assert "draft_n" not in server.chat(max_tokens=40, extra=way).model_extra["timings"]


def test_none_in_a_request_ends_the_drafts_of_a_draft_model_too(
    start: Start, model: LlamaModel
) -> None:
    small = DraftModelSettings(path=model.path)
    alone = start(slots=1, drafter=None, exact=False, draft_model=small, policy=AutoPolicy(fixed=4))

    def drafted(**more: Any) -> int:
        timings = alone.chat(max_tokens=40, extra=more).model_extra["timings"]
        return int(timings.get("draft_n", 0))

    assert drafted() > 0  # though the server has no n-gram drafter
    assert drafted(speculative={"types": "none"}) == 0


def test_a_draft_model_is_told_and_may_be_named(
    start: Start, model: LlamaModel, server: Serving
) -> None:
    small = DraftModelSettings(path=model.path)
    alone = start(
        slots=1, drafter="suffix", exact=False, draft_model=small, policy=AutoPolicy(fixed=4)
    )
    props = alone.client.get("/props").json()
    settings = props["default_generation_settings"]["params"]
    assert settings["speculative.types"] == "suffix,draft-simple"
    shown = alone.post("/api/show", model="tiny").json()["speculative"]
    assert shown["types"] == props["speculative"]["types"] == [*DRAFTER_NAMES, "draft-simple"]

    def drafted(**more: Any) -> tuple[str, set[str]]:
        """Return the types that a request was told, and those that were asked for drafts."""
        before = {name: one.propose_calls for name, one in alone.engine.source_stats().items()}
        fresh = {"speculative.namespace": str(before)}  # where nothing is learnt
        answer = alone.post("/completion", prompt="def area(", n_predict=12, **fresh, **more).json()
        after = alone.engine.source_stats().items()
        asked = {name for name, one in after if one.propose_calls > before.get(name, 0)}
        return answer["generation_settings"]["speculative.types"], asked

    both = "suffix,draft-simple"
    assert drafted() == (both, {"suffix", "draft-simple"})
    assert drafted(**{"speculative.types": both}) == (both, {"suffix", "draft-simple"})
    assert drafted(**{"speculative.types": "draft-simple"}) == ("draft-simple", {"draft-simple"})
    assert drafted(**{"speculative.types": ["suffix"]}) == ("suffix", {"suffix"})
    assert drafted(speculative=False) == ("none", set())
    for names, place in (("draft-mtp", alone), ("suffix,draft-simple", server)):
        reply = place.post("/completion", prompt="x", n_predict=2, **{"speculative.types": names})
        assert reply.status_code == 400
        assert "but there is no such draft model" in reply.json()["error"]["message"]


def test_n_max_bounds_every_draft(server: Serving) -> None:
    def drafted(most: int) -> float:
        before = server.engine.stats().draft_lengths.total, server.engine.stats().num_drafts
        server.chat(max_tokens=40, extra={"speculative.n_max": most})
        after = server.engine.stats().draft_lengths.total, server.engine.stats().num_drafts
        assert after[1] > before[1]
        return (after[0] - before[0]) / (after[1] - before[1])

    assert drafted(1) == 1 < drafted(3) <= 3 < drafted(30)


def test_n_min_bounds_every_draft(server: Serving) -> None:
    def num_drafts(extra: dict[str, Any]) -> int:
        before = server.engine.stats().num_drafts
        server.chat(max_tokens=40, extra=extra)
        return server.engine.stats().num_drafts - before

    assert num_drafts({"speculative.n_max": 4}) > 0
    assert num_drafts({"speculative.n_max": 4, "speculative.n_min": 5}) == 0


@pytest.mark.parametrize(("number", "taken"), [(0.25, 0.25), (1, 1.0), (7, 1.0), (-3.5, 0.0)])
def test_p_min_is_brought_into_its_bounds(number: float, taken: float) -> None:
    assert speculation_of({"speculative.p_min": number}, "").speculation.p_min == taken


def test_sizes_are_those_of_the_named_drafter() -> None:
    speculation = speculation_of(
        {
            "speculative.types": "ngram-mod,ngram-cache",
            "speculative.ngram_mod.n_match": 16,
            "speculative": {"ngram_cache": {"lax_min_sample": [1, 1, 1, 1]}, "n_max": 9},
            "other": 1,
        },
        "",
    ).speculation
    assert speculation.types == ("ngram-mod", "ngram-cache")
    assert speculation.params == {
        "ngram-mod": {"n_match": 16},
        "ngram-cache": {"lax_min_sample": (1, 1, 1, 1)},
    }
    assert speculation.max_draft == 9


def test_namespaces_share_no_pool(server: Serving) -> None:
    extra = {"speculative.types": "ngram-mod", "speculative.ngram_mod.n_min": 2,
             "speculative.ngram_mod.n_match": 6, "cache_prompt": False}  # fmt: skip

    def complete(namespace: str) -> None:
        own = {**extra, "speculative.namespace": namespace}
        server.complete(prompt=f"{REPEAT}\n", max_tokens=4, extra=own)

    complete("one")
    first = server.engine.drafters.pool("one")
    assert first is not None
    used = first.num_used
    assert used > 0
    assert server.engine.drafters.pool("two") is None
    complete("two")
    second = server.engine.drafters.pool("two")
    assert second is not None
    assert second is not first
    assert first.num_used == used


@pytest.mark.parametrize(
    ("extra", "param", "hint"),
    [
        ({"speculative.typ": "x"}, "speculative.typ", "types"),
        ({"speculative.types": "ngram-mud"}, "speculative.types", "ngram-mod"),
        ({"speculative.types": 5}, "speculative.types", "names"),
        ({"speculative": {"ngram_mod": {"n_mach": 3}}}, "speculative.ngram_mod.n_mach", "n_match"),
        ({"speculative.ngram_mod.capacity": 3}, "speculative.ngram_mod.capacity", "server"),
        ({"speculative.ngram_cache.static": "/etc/x"}, "speculative.ngram_cache.static", "server"),
        ({"speculative.enabled": "no"}, "speculative.enabled", "bool"),
        ({"speculative.n_max": -1}, "speculative.n_max", "in 0..2147483647"),
        ({"speculative.n_max": (1 << 63) - 1}, "speculative.n_max", "in 0..2147483647"),
        ({"speculative.namespace": "x" * 300}, "speculative.namespace", "256"),
        ({"speculative": 5}, "speculative", "object"),
        ({"speculative.n_min": -1}, "speculative.n_min", "in 0..2147483647"),
        ({"speculative.p_min": "x"}, "speculative.p_min", "number"),
        ({"speculative.p_max": 0.5}, "speculative.p_max", "unknown"),
        (
            {"speculative": {"types": "suffix", "ngram_mod": {"n_min": 2}}},
            "speculative.ngram_mod.n_min",
            "needs ngram-mod, but speculative.types is suffix",
        ),
    ],
)
def test_unknown_and_bad_fields_are_refused(
    server: Serving, extra: dict[str, Any], param: str, hint: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=hint) as caught:
        server.chat(max_tokens=2, extra=extra)
    assert caught.value.param == param


def test_a_size_of_a_drafter_adds_it_to_the_servers(server: Serving) -> None:
    def names(**more: Any) -> str:
        body = {"prompt": "def area(", "n_predict": 2, **more}
        answer = server.post("/completion", **body).json()
        return str(answer["generation_settings"]["speculative.types"])

    assert names() == "ngram-mod,ngram-cache"
    size = {"speculative.ngram_simple.size_n": 3}
    assert names(**size) == "ngram-simple,ngram-mod,ngram-cache"
    assert server.engine.source_stats()["ngram-simple"].begin_calls > 0
    assert names(**size, speculative=False) == "none"  # nothing drafts, so nothing is missing


LONG = "n_mud" * 100_000


@pytest.mark.parametrize(
    "extra",
    [
        {f"speculative.{LONG}": 1},
        {f"speculative.ngram_mod.{LONG}": 1},
        {"speculative.types": LONG},
        {"speculative.types": ["suffix"] * 100_000},
    ],
    ids=["field", "parameter", "drafter", "drafters"],
)
def test_long_names_are_compared_and_told_cut(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    plain = difflib.get_close_matches

    def close(word: str, *arguments: Any, **named: Any) -> list[str]:
        compared.append(len(word))
        return plain(word, *arguments, **named)

    monkeypatch.setattr(difflib, "get_close_matches", close)
    with pytest.raises(ApiError) as caught:
        speculation_of(extra, "")
    assert max(compared, default=0) <= 80
    assert len(caught.value.message) < 500
    assert len(str(caught.value.param)) < 200


def test_null_asks_for_nothing_in_any_shape() -> None:
    plain = speculation_of({}, "")
    for extra in (
        {"speculative": None},
        {"speculative": {"enabled": None, "ngram_mod": {"n_match": None}}},
        {"speculative.enabled": None, "speculative.ngram_mod.n_match": None},
        {"speculative.ngram_mod": {"n_match": None}},
    ):
        assert speculation_of(extra, "") == plain


def test_values_out_of_bounds_are_refused(server: Serving) -> None:
    with pytest.raises(openai.BadRequestError, match="n_match"):
        server.chat(max_tokens=2, extra={"speculative.ngram_mod.n_match": 0})


def test_a_key_comes_before_the_clients_namespace() -> None:
    assert speculation_of({}, "").speculation.namespace == ""
    assert speculation_of({}, "abc").speculation.namespace == "abc:"
    parsed = speculation_of({"speculative.namespace": "mine"}, "abc")
    assert parsed.speculation.namespace == "abc:mine"
    with pytest.raises(ApiError):
        speculation_of({"speculative.namespace": 5}, "abc")


def test_a_prediction_is_drafted_from_and_counted(server: Serving) -> None:
    answer = f"```python\n{CODE}```"
    off = {"speculative.types": "none"}
    plain = server.chat(max_tokens=64, extra={"speculative.enabled": False})
    for content in (answer, [{"type": "text", "text": answer}]):
        chat = server.chat(max_tokens=64, prediction={"type": "content", "content": content})
        details = chat.usage.completion_tokens_details
        assert chat.choices[0].message.content == plain.choices[0].message.content
        assert details.accepted_prediction_tokens > 5
        assert chat.model_extra["timings"]["draft_n_accepted"] >= details.accepted_prediction_tokens
    wrong = server.chat(max_tokens=64, prediction={"type": "content", "content": "nothing like it"})
    details = wrong.usage.completion_tokens_details
    assert wrong.choices[0].message.content == plain.choices[0].message.content
    assert details.accepted_prediction_tokens == 0
    none = server.chat(max_tokens=9, prediction={"type": "content", "content": answer}, extra=off)
    assert none.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_a_prediction_with_an_edit_counts_both_sides(server: Serving) -> None:
    edited = f"```python\n{CODE.replace('width * height', 'height * width')}```"
    events = server.chat(
        max_tokens=64,
        prediction={"type": "content", "content": edited},
        extra={"speculative.namespace": "of nobody"},  # no other request has said it
        stream=True,
        stream_options={"include_usage": True},
    )
    details = list(events)[-1].usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.rejected_prediction_tokens > 0


def test_completions_take_predictions_too(server: Serving) -> None:
    text = server.complete(max_tokens=20).choices[0].text
    extra = {"prediction": {"type": "content", "content": text}}
    answer = server.complete(max_tokens=20, extra=extra)
    assert answer.choices[0].text == text
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0
