"""Several keys: no counter tells one key what another said, and none takes the others' share."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from helpers.fake_target import FakeTarget
from helpers.serving import Serving, Start, wait_until
from ngramspec import HashPool, NgramCache
from ngramspec.engine import AutoPolicy, Engine
from ngramspec.engine.sources.drafters import MAX_KINDS
from ngramspec.errors import InputError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.http.guard import ApiKeys

ALICE, BOB = "key-of-alice", "key-of-bob"
KEYS = (ALICE, BOB)
IDS = {key: ApiKeys(KEYS).find(key) or "" for key in KEYS}
SECRET = "The vault opens with seven turns left."
SUFFIX = {"speculative": {"types": "suffix", "spans": True}}
MOD = {"speculative": {"types": "ngram-mod", "spans": True,
                       "ngram_mod": {"n_match": 4, "n_min": 1, "n_max": 16}}}  # fmt: skip
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": SECRET}],
    "max_tokens": 4,
    "temperature": 0,
    "stream": False,
}
FORCED = json.dumps(SECRET)
# What differs between any two answers.
PASSING = ("_ms", "_per_second", "id", "id_slot", "created", "id_task", "created_at", "duration")


def server_of(start: Start, slots: int = 1, **settings: Any) -> Serving:
    defaults = {
        "api_keys": KEYS,
        "drafter": "ngram-mod,ngram-cache,suffix",
        # Small enough for a short text, and no length that is learned from what drafts brought.
        "params": {"ngram-mod": {"n_match": 4, "n_min": 1, "n_max": 16}},
        "policy": AutoPolicy(fixed=16),
        "expose_slots": None,
        "slots": slots,
    }
    return start(**{**defaults, **settings})


def post(server: Serving, key: str, path: str, **body: Any) -> httpx.Response:
    return server.client.post(path, json=body, headers={"authorization": f"Bearer {key}"})


def forced(**more: Any) -> dict[str, Any]:
    """Return a request whose grammar lets the model say the secret only."""
    own: dict[str, Any] = {"prompt": "Tell me: ", "grammar": f"root ::= {FORCED}", "seed": 1}
    return {**own, "temperature": 0, "cache_prompt": True, **more}


def say_the_secret(server: Serving, key: str) -> None:
    """Let a key send the secret and get it in an answer, in all the ways that are learned from."""
    assert post(server, key, "/v1/chat/completions", **CHAT).status_code == 200
    assert post(server, key, "/api/chat", **CHAT).status_code == 200
    for more in (SUFFIX, MOD, {}):
        for prompt in ("Tell me: ", f"{SECRET} {SECRET}"):
            reply = post(server, key, "/completion", **forced(**more, prompt=prompt))
            assert SECRET in reply.json()["content"]


def asked(server: Serving, key: str) -> Iterator[Any]:
    """Yield all that a key sees when it tries to find out whether the secret was said."""
    names = ("", "x", f"{IDS[ALICE]}:", f"{IDS[ALICE]}:x", IDS[ALICE])
    for more in (SUFFIX, MOD, {}):
        yield post(server, key, "/completion", **forced(**more, prompt=SECRET)).json()
        yield post(server, key, "/completion", **forced(**more, n_probs=1)).json()
        text = post(server, key, "/completion", **forced(**more, stream=True)).text
        yield [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    for name in names:
        drafts = {"types": "suffix,ngram-mod", "namespace": name}
        yield post(server, key, "/completion", **forced(speculative=drafts)).json()
    yield post(server, key, "/v1/chat/completions", **CHAT).json()
    yield post(server, key, "/api/chat", **CHAT).json()
    yield post(server, key, "/v1/completions", **{**CHAT, "prompt": SECRET}).json()
    for path in ("/metrics", "/slots", "/v1/ngramspec/live", "/props", "/v1/models", "/health"):
        reply = server.client.get(path, headers={"authorization": f"Bearer {key}"})
        yield reply.status_code, reply.text if path == "/metrics" else reply.json()


def lasting(value: Any) -> Any:
    """Return an answer without its times and ids."""
    if isinstance(value, dict):
        members = {name: lasting(one) for name, one in value.items()}
        return {name: one for name, one in members.items() if not name.endswith(PASSING)}
    return [lasting(one) for one in value] if isinstance(value, (list, tuple)) else value


def seen_by_bob(start: Start, after: bool, **settings: Any) -> list[Any]:
    server = server_of(start, **settings)
    if after:
        say_the_secret(server, ALICE)
        server.wait_idle()
    return [lasting(one) for one in asked(server, BOB)]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_key_sees_what_it_would_see_on_a_fresh_server(start: Start, slots: int) -> None:
    fresh = seen_by_bob(start, False, slots=slots)
    assert seen_by_bob(start, True, slots=slots) == fresh


def test_keys_that_share_see_what_others_said(start: Start) -> None:
    """What the test above looks at does tell it, where nothing is kept apart."""
    fresh = seen_by_bob(start, False, pool_per_key=False)
    shared = seen_by_bob(start, True, pool_per_key=False)
    assert sum(one != other for one, other in zip(fresh, shared, strict=True)) >= 4
    assert shared[0]["timings"]["cache_n"] > fresh[0]["timings"]["cache_n"]
    # Those requests come after prompts that hold the secret; this one is a fresh server's first.
    accepted = []
    for after in (False, True):
        server = server_of(start, pool_per_key=False)
        if after:
            say_the_secret(server, ALICE)
            server.wait_idle()
        answer = post(server, BOB, "/completion", **forced(**SUFFIX)).json()
        accepted.append(answer["timings"].get("draft_n_accepted", 0))
    assert accepted[1] > accepted[0]


def test_keys_share_where_there_is_one_or_they_are_told_to() -> None:
    for keys, apart, isolates in (
        ((), None, False),
        ((), False, False),
        ((ALICE,), None, False),
        ((ALICE,), True, False),  # there is nobody to keep apart from
        (KEYS, None, True),
        (KEYS, True, True),
        (KEYS, False, False),
    ):
        settings = ServerSettings(api_keys=keys, pool_per_key=apart)
        assert settings.isolates is isolates
        assert settings.tells_keys_apart is (len(keys) > 1)
        exposes = bool(keys) and not isolates
        assert settings.exposes_metrics is settings.exposes_slots is exposes
        open_ = ServerSettings(api_keys=keys, pool_per_key=apart, metrics=True, slots=True)
        assert open_.exposes_metrics is open_.exposes_slots is True
        shut = ServerSettings(api_keys=keys, pool_per_key=apart, metrics=False, slots=False)
        assert shut.exposes_metrics is shut.exposes_slots is False


def test_pools_per_key_need_keys() -> None:
    with pytest.raises(ValueError, match="pool_per_key needs api_keys"):
        ServerSettings(pool_per_key=True)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"ngram-mod": {"pool": HashPool(4096)}}, "pool of ngram-mod"),
        ({"ngram-cache": {"dynamic": NgramCache()}}, "dynamic of ngram-cache"),
    ],
)
def test_a_pool_for_all_keys_is_not_left_unused(model: LlamaModel, params: Any, name: str) -> None:
    engine = Engine(FakeTarget(), "ngram-mod,ngram-cache", params=params)
    served = ServedModel(name="tiny", model=model, engine=engine)
    with pytest.raises(InputError, match=name):
        create_app(served, ServerSettings(api_keys=KEYS))
    for settings in ({"api_keys": KEYS, "pool_per_key": False}, {"api_keys": KEYS[:1]}, {}):
        assert create_app(served, ServerSettings(**settings))


def test_one_key_does_not_drop_what_another_keeps(start: Start) -> None:
    server = server_of(start, slots=2, drafter="suffix")
    body = {"prompt": SECRET, "max_tokens": 2, "temperature": 0, "cache_prompt": False}
    assert post(server, BOB, "/v1/completions", **body).status_code == 200
    pool = server.engine.drafters.suffix_pool(f"{IDS[BOB]}:")
    assert pool is not None
    for number in range(MAX_KINDS + 3):
        drafts = {"namespace": f"n{number}"}
        assert post(server, ALICE, "/v1/completions", **body, speculative=drafts).status_code == 200
    names = list(server.engine.drafters.suffix_pools())
    assert sum(name.startswith(IDS[ALICE]) for name in names) == MAX_KINDS
    assert server.engine.drafters.suffix_pool(f"{IDS[BOB]}:") is pool


LONG: dict[str, Any] = {"prompt": "def area(", "ignore_eos": True, "temperature": 1.0}


def test_one_key_does_not_fill_the_queue(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_of(start, drafter=None, max_queue=4)
    answers: list[tuple[str, int]] = []
    looked, decode = threading.Event(), LlamaTarget.decode

    def wait_and_decode(self: LlamaTarget, *arguments: Any) -> None:
        assert looked.wait(20)
        decode(self, *arguments)

    monkeypatch.setattr(LlamaTarget, "decode", wait_and_decode)

    def ask(key: str) -> None:
        most = 150 if key == ALICE else 1  # answers come one after the other
        answers.append((key, post(server, key, "/completion", **LONG, n_predict=most).status_code))

    threads = [threading.Thread(target=ask, args=(ALICE,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.busy_slots() == 1 and server.engine.queue_length == 2)
    refused = post(server, ALICE, "/v1/completions", prompt="x", max_tokens=1)
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "2 requests of this client are waiting" in refused.json()["error"]["message"]
    threads.append(threading.Thread(target=ask, args=(BOB,)))
    threads[-1].start()
    wait_until(lambda: server.engine.queue_length == 3)
    looked.set()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == [*3 * [(ALICE, 200)], (BOB, 200)]
    assert answers[-1] == (ALICE, 200)  # Bob's came last, and before one of Alice's


def test_where_there_is_one_key_it_may_fill_the_queue(start: Start) -> None:
    server = server_of(start, drafter=None, max_queue=2, api_keys=KEYS[:1])

    def ask() -> None:
        post(server, ALICE, "/completion", **LONG)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.busy_slots() + server.engine.queue_length == 3)
    refused = post(server, ALICE, "/v1/completions", prompt="x", max_tokens=1)
    assert refused.status_code == 503
    server.bridge.cancel_all()
    for thread in threads:
        thread.join(60)
