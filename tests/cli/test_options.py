"""Fields of dataclasses become options, and what was given becomes an instance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ngramspec.cli.options import SizeType, argument, command, flag

seen: list[CutOptions] = []


@dataclass
class LengthOptions:
    """How long."""

    section = "Length"
    longest: int = flag("-n --longest", "Longest text.", default=80, low=1, high=99)
    share: float | None = flag("--share", "Part of it.", low=0, high=1, min_open=True)
    size: int = flag("--size", "Most bytes.", default=32 << 20, type=SizeType(), metavar="SIZE")


@dataclass
class ModeOptions:
    """How."""

    section = "Mode"
    mode: str = flag("--mode", "Where.", default="both", choices=("left", "both"))
    trim: bool = flag("--trim/--no-trim -t/", "Blanks too.", default=True, env="TRIM")
    quiet: bool | None = flag("--quiet/--loud", "Say nothing.")


@dataclass
class CutOptions(LengthOptions, ModeOptions):
    """All of them."""

    source: Path = argument(metavar="SOURCE", required=True)
    names: tuple[str, ...] = flag("--name", "Names.", default=(), env="NAME LLAMA_NAME")
    mode: str = flag("--mode", "Which side.", default="left", choices=("left", "both"))
    num_runs: int = 3  # no option


@command("cut", "Examples: cut a", any_hyphens=True)
def cut(options: CutOptions) -> None:
    """Cut a text."""
    seen.append(options)


def run(*words: str, **environment: str) -> Any:
    seen.clear()
    return CliRunner().invoke(cut, words, env=environment)


def test_without_options_the_defaults_hold() -> None:
    assert run("a").exit_code == 0
    assert seen == [CutOptions(source=Path("a"))]
    assert (seen[0].longest, seen[0].share, seen[0].size) == (80, None, 32 << 20)
    assert (seen[0].mode, seen[0].trim, seen[0].quiet, seen[0].num_runs) == ("left", True, None, 3)


def test_values_have_the_types_of_the_fields() -> None:
    line = "a -n 7 --share .5 --size 1K --mode both --no-trim --loud --name x --name y"
    assert run(*line.split()).exit_code == 0
    assert vars(seen[0]) == {
        "source": Path("a"), "longest": 7, "share": 0.5, "size": 1024, "mode": "both",
        "trim": False, "quiet": False, "names": ("x", "y"), "num_runs": 3,
    }  # fmt: skip


def test_variables_set_options() -> None:
    assert run("a", LLAMA_ARG_TRIM="off", LLAMA_NAME="b c").exit_code == 0
    assert (seen[0].trim, seen[0].names) == (False, ("b c",))
    assert run("a", "-t", LLAMA_ARG_TRIM="off", LLAMA_ARG_NAME="d").exit_code == 0
    assert (seen[0].trim, seen[0].names) == (True, ("d",))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("a", "-n", "0"), "0 is not in the range 1<=x<=99"),
        (("a", "--share", "0"), "0.0 is not in the range 0<x<=1"),
        (("a", "--mode", "right"), "'right' is not one of 'left', 'both'"),
        (("a", "--size", "much"), "expected a size"),
        ((), "Missing argument 'SOURCE'"),
    ],
)
def test_what_a_field_does_not_allow_is_an_error(words: tuple[str, ...], reason: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert reason in done.output
    assert not seen


def test_help_has_a_heading_per_class_and_says_defaults() -> None:
    text = run("--help").output
    assert text.index("Length:") < text.index("Mode:") < text.index("--name TEXT")
    assert "-n, --longest N" in text
    assert "[default: 80; 1<=x<=99]" in text
    assert "[default: 32M]" in text
    assert "Which side.  [default: left]" in text
    assert "Where." not in text
    assert "Cut a text." in text
