"""API keys: who may ask what, and whose drafts are whose."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from helpers.serving import CHAT, Serving, serving
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server.http.guard import ApiKeys, presented_key

KEYS = ("first-key", "second-key-é")


@pytest.fixture(scope="module")
def locked(model: LlamaModel) -> Iterator[Serving]:
    with serving(model, slots=2, api_keys=KEYS, pool_per_key=True) as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/tokenize", "/nowhere"])
def test_without_a_key_nothing_is_answered(locked: Serving, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "first-ke"}):
        reply = httpx.post(locked.url + path, json={"messages": CHAT}, headers=headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["type"] == "authentication_error"
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/"])
def test_some_paths_are_open(locked: Serving, path: str) -> None:
    assert httpx.get(locked.url + path).status_code == 200


@pytest.mark.parametrize("path", ["/slots", "/props", "/v1/models", "/models", "/v1/models/tiny"])
def test_others_need_a_key(locked: Serving, path: str) -> None:
    assert httpx.get(locked.url + path).status_code == 401
    assert locked.client.get(path).status_code == 200


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_every_key_is_taken_in_both_headers(locked: Serving, key: str, header: str) -> None:
    value = f"Bearer {key}" if header == "authorization" else key
    headers = {header: value.encode()}
    reply = httpx.post(f"{locked.url}/tokenize", json={"content": "x"}, headers=headers)
    assert reply.status_code == 200


def test_openais_client_sees_its_own_error(locked: Serving) -> None:
    client = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(model="tiny", messages=CHAT)
    assert caught.value.code == "invalid_api_key"
    client.close()


def test_each_key_has_a_pool_of_its_own(locked: Serving) -> None:
    assert locked.chat(max_tokens=8).choices[0].message.content
    keys = ApiKeys(KEYS)
    first, second = (keys.find(key) for key in KEYS)
    assert first != second
    assert locked.engine.drafters.pool(f"{first}:") is not None
    assert locked.engine.drafters.pool(f"{second}:") is None


def test_keys_are_found_by_all_of_their_text() -> None:
    keys = ApiKeys(KEYS)
    assert keys
    assert not ApiKeys(())
    assert keys.find("first-key")
    for wrong in ("", "first-ke", "first-key ", "First-key", "first-key,second-key-é"):
        assert keys.find(wrong) is None
    assert "first-key" not in repr(vars(keys))


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"authorization": "abc"}, "abc"),
        ({"x-api-key": "abc"}, "abc"),
        ({"authorization": "Bearer abc", "x-api-key": "other"}, "abc"),
        ({}, ""),
    ],
)
def test_a_key_is_read_from_either_header(headers: dict[str, str], key: str) -> None:
    assert presented_key(headers) == key
