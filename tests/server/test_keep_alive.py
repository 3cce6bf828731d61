"""Which keep_alive of Ollama's API lets go of the model, read in linear time."""

from __future__ import annotations

import time

import pytest

from ngramspec.server.ollama.bodies import OllamaBody

ZEROS = ["0", "+0", "-0", "00", "0s", "0m0s", "0h0.0m0ms", "0.", "0.000µs", "0us0ns", "0s0"]
OTHERS = ["", "s", "5m", "-1", "0x", "0s5", "1s0m", "00s1", ".0s", "+", "0 s", "0s ", "0..0", "--0"]


def unloads(keep_alive: str) -> bool:
    return OllamaBody(keep_alive=keep_alive).unloads


@pytest.mark.parametrize("text", ZEROS)
def test_no_time_unloads(text: str) -> None:
    assert unloads(text)


@pytest.mark.parametrize("text", OTHERS)
def test_any_other_text_does_not(text: str) -> None:
    assert not unloads(text)


@pytest.mark.parametrize("part", ["0", "0s", "0.0", "0.0s"])
def test_long_texts_take_linear_time(part: str) -> None:
    """A text that can be split in many ways would stop the process for days: re holds the GIL."""
    started = time.process_time()
    assert not unloads(part * 100_000 + "x")
    assert time.process_time() - started < 5.0
