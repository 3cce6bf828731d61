"""What the server's start decides: a prefix, the page, prefilled answers, special tokens, tags."""

from __future__ import annotations

import httpx
import pytest

from helpers.serving import Serving, serving
from ngramspec.engine import Sampling
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server import ServerSettings

BEGUN = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "def area("},
]


def test_a_prefix_is_before_every_path(model: LlamaModel) -> None:
    with serving(model, slots=1, api_prefix="/a/b", api_keys=("k",)) as server:
        base = server.url
        assert httpx.get(f"{base}/a/b/health").json() == {"status": "ok"}
        assert httpx.get(f"{base}/a/b/").status_code == 200
        assert httpx.get(f"{base}/a/b/v1/nothing").status_code == 401  # keys are asked for as ever
        head = {"authorization": "Bearer k"}
        body = {"prompt": "x", "n_predict": 1}
        answer = httpx.post(f"{base}/a/b/completion", json=body, headers=head, timeout=60)
        assert answer.json()["tokens_predicted"] == 1
        slash = httpx.post(f"{base}/a/b/completion/", json=body, headers=head)
        assert slash.status_code == 404  # a redirect would lead out of the prefix
        for path in ("/health", "/a/bc/health", "/a/b", "/v1/models"):
            answer = httpx.get(f"{base}{path}", headers=head)
            assert answer.status_code == 404
            assert "paths begin with /a/b/" in answer.text


@pytest.mark.parametrize("prefix", ["a", "/a/", "/"])
def test_other_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="api_prefix must begin with /"):
        ServerSettings(api_prefix=prefix)


@pytest.mark.parametrize(
    ("host", "open_hosts"),
    [
        ("127.0.0.1", ()),
        ("localhost, ::1, 127.8.9.1, /run/server.sock", ()),
        ("0.0.0.0", ("0.0.0.0",)),
        ("localhost,10.0.0.3,::", ("10.0.0.3", "::")),
    ],
)
def test_addresses_are_open_that_other_machines_reach_without_a_key(
    host: str, open_hosts: tuple[str, ...]
) -> None:
    assert ServerSettings(host=host).open_hosts == open_hosts
    assert ServerSettings(host=host, api_keys=("k",)).open_hosts == ()


def test_the_page_can_be_left_out(model: LlamaModel) -> None:
    with serving(model, slots=1, page=False) as server:
        assert server.client.get("/").text == "ngramspec is running"
        assert server.client.head("/").status_code == 200
        assert server.client.get("/page/page.js").status_code == 404
        assert server.client.get("/health").status_code == 200


def prompt_of(server: Serving) -> str:
    answer = server.post("/apply-template", messages=BEGUN)
    return str(answer.json()["prompt"])


def test_a_begun_answer_is_continued_or_a_whole_message(model: LlamaModel) -> None:
    with serving(model, slots=1) as server:
        assert prompt_of(server).endswith("def area(")
    with serving(model, slots=1, served={"prefill": False}) as server:
        assert not prompt_of(server).endswith("def area(")
        assert "def area(" in prompt_of(server)


def test_special_tokens_are_shown_where_asked_for(model: LlamaModel) -> None:
    shown = model.piece(1, special=True).decode()
    assert model.piece(1) == b""
    only = {"logit_bias": [[1, 1000]], "n_predict": 2, "prompt": "x", "temperature": 0}
    for special, expected in ((False, ""), (True, shown * 2)):
        with serving(model, slots=1, served={"special": special}) as server:
            assert server.post("/completion", **only).json()["content"] == expected


def test_a_default_grammar_gives_way_to_a_requests_own(model: LlamaModel) -> None:
    sampling = Sampling(temperature=0.0, grammar='root ::= "yes"')
    with serving(model, slots=1, served={"sampling": sampling, "tags": ("b", "a")}) as server:
        contents = [
            server.post("/completion", prompt="x", n_predict=8, **more).json()["content"]
            for more in ({}, {"grammar": 'root ::= "no"'}, {"json_schema": {"const": 5}})
        ]
        assert contents == ["yes", "no", "5"]
        assert server.chat(max_tokens=8).choices[0].message.content == "yes"
        assert server.client.get("/v1/models").json()["data"][0]["tags"] == ["a", "b"]
