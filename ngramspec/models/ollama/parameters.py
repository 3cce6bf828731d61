"""The parameters of Ollama: their names, types and ranges."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from ngramspec.errors import InputError

Parameter: TypeAlias = int | float | bool | tuple[str, ...]

_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MOST_INTEGER = (1 << 63) - 1


@dataclass(frozen=True)
class ParameterKind:
    """The type and range of a parameter.

    type: int, float, bool or tuple (texts, one per line).
    least, most: Of a number.
    """

    type: type
    least: float = -math.inf
    most: float = math.inf


_COUNT, _SWITCH, _SHARE = ParameterKind(int, 0), ParameterKind(bool), ParameterKind(float, 0, 1)
KINDS: Mapping[str, ParameterKind] = {
    # Of the model when it is loaded.
    "num_ctx": ParameterKind(int, 1),
    "num_batch": ParameterKind(int, 1),
    "num_gpu": ParameterKind(int, -1),
    "main_gpu": _COUNT,
    "num_thread": _COUNT,
    "use_mmap": _SWITCH,
    "draft_num_predict": _COUNT,
    # Of drafts, by the names of llama.cpp's options; Ollama itself has only the one above.
    "draft_max": ParameterKind(int, 1),
    "draft_min": _COUNT,
    "draft_p_min": _SHARE,
    "ctx_size_draft": _COUNT,
    # Of an answer.
    "num_keep": ParameterKind(int, -1),
    "seed": ParameterKind(int),
    "num_predict": ParameterKind(int, -2),
    "top_k": ParameterKind(int),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": _SHARE,
    "repeat_last_n": ParameterKind(int, -1),
    "temperature": ParameterKind(float, 0),
    "repeat_penalty": ParameterKind(float, 0),
    "presence_penalty": ParameterKind(float),
    "frequency_penalty": ParameterKind(float),
    "stop": ParameterKind(tuple),
    # Of older versions.
    "mirostat": ParameterKind(int, 0, 2),
    "mirostat_eta": ParameterKind(float, 0),
    "mirostat_tau": ParameterKind(float, 0),
    "tfs_z": ParameterKind(float, 0),
    "penalize_newline": _SWITCH,
    "numa": _SWITCH,
    "low_vram": _SWITCH,
    "f16_kv": _SWITCH,
    "logits_all": _SWITCH,
    "vocab_only": _SWITCH,
    "use_mlock": _SWITCH,
    "num_gqa": _COUNT,
    "rope_frequency_base": ParameterKind(float, 0),
    "rope_frequency_scale": ParameterKind(float, 0),
}
# What is settled when a model is loaded, besides num_ctx.
OF_LOADING = frozenset(
    (
        *("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa"),
        *("low_vram", "f16_kv", "logits_all", "vocab_only", "num_gqa", "rope_frequency_base"),
        *("rope_frequency_scale", "draft_num_predict", "ctx_size_draft"),
    )
)
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")


def kind_of(name: str) -> ParameterKind:
    """Return the kind of a parameter.

    Raises:
        InputError: Unknown; the message has the nearest name.
    """
    if name in KINDS:
        return KINDS[name]
    near = difflib.get_close_matches(name.lower(), KINDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KINDS)}"
    raise InputError(f"unknown parameter {name!r}: {hint}")


def parse_parameter(name: str, text: str) -> Parameter:
    """Read the value of a parameter, as it is written in a Modelfile.

    Raises:
        InputError: An unknown name, a value of another type, or out of range.
    """
    kind = kind_of(name)
    if kind.type is tuple:
        return check_parameter(name, (text,))
    if kind.type is bool and text in (*_TRUE, *_FALSE):
        return text in _TRUE
    if kind.type is int and re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        return check_parameter(name, int(text))
    if kind.type is float and _REAL.fullmatch(text):
        return check_parameter(name, float(text))
    raise InputError(f"{name}: expected {_described(kind)}, found {text!r:.80}")


def check_parameter(name: str, value: object) -> Parameter:
    """Check a value from JSON or Python.

    Args:
        name: Of the parameter.
        value: A number without fraction counts as an integer; texts may be one or a list.

    Raises:
        InputError: An unknown name, a value of another type, or out of range.
    """
    kind = kind_of(name)
    converted = _converted(kind, value)
    if converted is None:
        raise InputError(f"{name}: expected {_described(kind)}, found {value!r:.80}")
    return converted


def clamp_parameter(name: str, value: object) -> Parameter:
    """Check a value of a request as check_parameter does, but bring a number into its range.

    Ollama itself cuts the fraction of a number that should be whole, and hands numbers that are out
    of range to a runner, which takes the nearest that it knows.

    Raises:
        InputError: An unknown name, a value of another type, or a number that is not finite.
    """
    kind = kind_of(name)
    if kind.type not in (int, float) or not _is_finite(value):
        return check_parameter(name, value)
    if kind.type is float:
        return check_parameter(name, min(max(value, kind.least), kind.most))
    least, most = max(kind.least, -_MOST_INTEGER), min(kind.most, _MOST_INTEGER)
    return check_parameter(name, min(max(int(value), least), most))


def _is_finite(value: object) -> TypeGuard[int | float]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, float) and math.isfinite(value))


def _converted(kind: ParameterKind, value: object) -> Parameter | None:
    if kind.type is tuple:
        texts = (value,) if isinstance(value, str) else value
        if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
            return tuple(texts)
        return None
    if kind.type is bool or isinstance(value, bool):
        return value if isinstance(value, bool) and kind.type is bool else None
    if not isinstance(value, int | float) or not kind.least <= value <= kind.most:
        return None
    exact = isinstance(value, int) or kind.type is int
    if not (abs(value) <= _MOST_INTEGER if exact else math.isfinite(value)):
        return None
    if kind.type is float:
        return float(value)
    return int(value) if value == int(value) else None


def _described(kind: ParameterKind) -> str:
    if kind.type is tuple:
        return "texts"
    if kind.type is bool:
        return "true or false"
    name = "an integer" if kind.type is int else "a number"
    if kind.most < math.inf:
        return f"{name} from {kind.least:g} to {kind.most:g}"
    return f"{name} of at least {kind.least:g}" if kind.least > -math.inf else name
