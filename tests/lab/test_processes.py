"""What a command cost, as the benchmarks read it."""

from __future__ import annotations

import sys

import pytest

from processes import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell it so")


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_memory_is_that_of_the_command_and_not_of_who_starts_it() -> None:
    held = b"x" * (256 << 20)
    bare, larger = (run(python(f"print(len(b'x' * {size}))")) for size in (1, 100 << 20))
    assert [int(ran.stdout) for ran in (bare, larger)] == [1, 100 << 20]
    assert bare.peak_mb < 60
    assert 100 < larger.peak_mb < 160
    assert len(held) == 256 << 20  # it was there all the time


def test_lines_have_the_time_since_the_start() -> None:
    ran = run(python("import sys; print('one\\ntwo', file=sys.stderr); print('three')"))
    assert [line for _, line in ran.marks] == ["one", "two"]
    assert 0 < ran.mark("one") <= ran.mark("two")
    assert ran.stdout == "three\n"
    assert ran.seconds > 0
    assert ran.cpu_seconds > 0


def test_a_command_that_fails_says_its_last_lines() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        run(python("import sys; sys.exit('no such thing')"))
    with pytest.raises(RuntimeError, match=r"absent-program: .*FileNotFoundError"):
        run(["absent-program"])
