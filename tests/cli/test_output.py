"""What commands print while they work."""

from __future__ import annotations

import pytest

from ngramspec.cli import output


def test_progress_without_a_terminal_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with output.progress("measuring", 9, 3) as advance:
        advance()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "LINE_SECONDS", 0.0)
    with output.progress("measuring", 9, 3) as advance:
        advance()
        advance()
    assert capsys.readouterr().err == "measuring: 4 of 9\nmeasuring: 5 of 9\n"
