"""Parameters: names, types and ranges, from text and from JSON."""

from __future__ import annotations

from typing import Any

import pytest

from ngramspec.errors import InputError
from ngramspec.models.ollama.parameters import check_parameter, clamp_parameter, parse_parameter


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_ctx", "4096", 4096),
        ("seed", "-7", -7),
        ("seed", "+0012", 12),
        ("num_predict", "-2", -2),
        ("temperature", "0.8", 0.8),
        ("temperature", "1", 1.0),
        ("top_p", ".5", 0.5),
        ("repeat_penalty", "1.", 1.0),
        ("presence_penalty", "-1.5e-1", -0.15),
        ("use_mmap", "true", True),
        ("use_mmap", "F", False),
        ("numa", "0", False),
        ("stop", "<|im_end|>", ("<|im_end|>",)),
        ("mirostat", "2", 2),
    ],
)
def test_text_becomes_the_type_of_the_parameter(name: str, text: str, value: object) -> None:
    parsed = parse_parameter(name, text)
    assert parsed == value
    assert type(parsed) is type(value)
    assert check_parameter(name, parsed) == parsed


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("num_ctx", "4k", "an integer of at least 1"),
        ("num_ctx", "4096.0", "an integer of at least 1"),
        ("num_ctx", "0", "an integer of at least 1"),
        ("num_ctx", "", "an integer of at least 1"),
        ("num_ctx", "1_000", "an integer"),
        ("num_ctx", "\u0663", "an integer"),
        ("seed", "9" * 20, "an integer, found 9"),
        ("seed", "9" * 40, "an integer, found '9"),
        ("top_p", "1.5", "a number from 0 to 1"),
        ("top_p", "1.2.3", "a number from 0 to 1"),
        ("temperature", "hot", "a number of at least 0"),
        ("temperature", "nan", "a number"),
        ("temperature", "1e999", "a number"),
        ("frequency_penalty", "-inf", "a number, found"),
        ("mirostat", "3", "an integer from 0 to 2"),
        ("use_mmap", "yes", "true or false"),
    ],
)
def test_other_text_is_refused(name: str, text: str, expected: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected {expected}"):
        parse_parameter(name, text)


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("num_ctx", 8192.0, 8192),
        ("temperature", 0, 0.0),
        ("stop", "END", ("END",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", [], ()),
        ("use_mmap", False, False),
    ],
)
def test_values_of_json_are_converted(name: str, value: object, checked: object) -> None:
    parsed = check_parameter(name, value)
    assert parsed == checked
    assert type(parsed) is type(checked)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_ctx", 0.5),
        ("num_ctx", "8192"),
        ("num_ctx", True),
        ("seed", 1e300),
        ("seed", 10**400),
        ("presence_penalty", 10**400),
        ("seed", float("nan")),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("use_mmap", 1),
        ("stop", [1]),
        ("stop", None),
        ("stop", {"a": 1}),
    ],
)
def test_values_of_other_types_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{name}: expected"):
        check_parameter(name, value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", r"did you mean temperature\?"),
        ("Temperature", r"did you mean temperature\?"),
        ("numctx", r"did you mean num_ctx\?"),
        ("zzz", "known are num_ctx, "),
        ("", "known are num_ctx, "),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"unknown parameter '{name}': {hint}"):
        parse_parameter(name, "1")
    with pytest.raises(InputError, match=hint):
        check_parameter(name, 1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("top_p", 1.5, 1.0), ("top_p", -1, 0.0), ("temperature", -0.5, 0.0), ("top_k", 40.7, 40),
        ("top_k", -3.9, -3), ("num_ctx", 0, 1), ("num_gpu", -5, -1), ("num_predict", -10, -2),
        ("seed", 1 << 80, (1 << 63) - 1), ("seed", -(1 << 80), 1 - (1 << 63)), ("mirostat", 9, 2),
        ("num_batch", 1e300, (1 << 63) - 1), ("stop", "x", ("x",)), ("use_mmap", False, False),
        ("presence_penalty", 9, 9.0),
    ],
)  # fmt: skip
def test_numbers_of_requests_are_brought_into_range(name: str, value: Any, expected: Any) -> None:
    assert clamp_parameter(name, value) == expected
    assert type(clamp_parameter(name, value)) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", "40"), ("top_k", True), ("temperature", "0.5"), ("use_mmap", 1), ("stop", [1]),
        ("stop", {}), ("temperature", float("nan")), ("num_ctx", float("inf")), ("seed", None),
        ("temperature", 1 << 70),
    ],
)  # fmt: skip
def test_values_of_another_type_are_not_brought_into_range(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected "):
        clamp_parameter(name, value)
