"""When the model fails, the client is told, and the next request is answered."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from helpers.failing import fail_after
from helpers.serving import Serving
from ngramspec.errors import BackendError, CapacityError
from ngramspec.server.errors import INTERNAL
from ngramspec.server.openai.chat_events import ChatEvents


@pytest.mark.parametrize(
    ("decodes", "error", "status"),
    [(3, CapacityError("the cache has no room"), 503), (0, ZeroDivisionError("a secret"), 500)],
)
def test_a_full_cache_and_a_bug_are_told_as_such(
    server: Serving, monkeypatch: pytest.MonkeyPatch, decodes: int, error: Exception, status: int
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, decodes, error)
        reply = server.post("/completion", prompt="x", n_predict=100, speculative=False)
    assert reply.status_code == status
    assert ("retry-after" in reply.headers) == (status == 503)
    assert "secret" not in reply.text
    assert server.chat(max_tokens=4).usage.completion_tokens == 4


def test_one_failed_choice_ends_the_others(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 5, BackendError("the device is gone"))
        with pytest.raises(openai.InternalServerError, match="the device is gone"):
            server.chat(n=3, max_tokens=60, extra={"speculative": False})
    server.wait_idle()
    assert server.busy_slots() == 0


def test_a_bug_in_a_stream_is_its_last_event_and_frees_the_slot(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, seen = ChatEvents.encode, []

    def failing(self: ChatEvents, items: Any) -> bytes:
        seen.append(items)
        if len(seen) == 3:
            raise ZeroDivisionError
        return encode(self, items)

    with monkeypatch.context() as patch:
        patch.setattr(ChatEvents, "encode", failing)
        with pytest.raises(openai.APIError, match=INTERNAL):
            list(server.chat(stream=True, max_tokens=400))
    server.wait_idle()
    assert server.chat(max_tokens=4).usage.completion_tokens == 4
