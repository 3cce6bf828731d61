"""The parameters of Ollama: their names, types and what they may be."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ngramspec.errors import InputError

Parameter: TypeAlias = int | float | bool | tuple[str, ...]

_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MOST_INTEGER = (1 << 63) - 1


@dataclass(frozen=True)
class Kind:
    """What a parameter is.

    type: int, float, bool or tuple (texts, one per line).
    least, most: Of a number.
    """

    type: type
    least: float = -math.inf
    most: float = math.inf


_COUNT, _SWITCH, _SHARE = Kind(int, 0), Kind(bool), Kind(float, 0, 1)
KINDS: Mapping[str, Kind] = {
    # Of the model when it is loaded.
    "num_ctx": Kind(int, 1),
    "num_batch": Kind(int, 1),
    "num_gpu": Kind(int, -1),
    "main_gpu": _COUNT,
    "num_thread": _COUNT,
    "use_mmap": _SWITCH,
    "draft_num_predict": _COUNT,
    # Of an answer.
    "num_keep": Kind(int, -1),
    "seed": Kind(int),
    "num_predict": Kind(int, -2),
    "top_k": Kind(int),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": _SHARE,
    "repeat_last_n": Kind(int, -1),
    "temperature": Kind(float, 0),
    "repeat_penalty": Kind(float, 0),
    "presence_penalty": Kind(float),
    "frequency_penalty": Kind(float),
    "stop": Kind(tuple),
    # Of older versions.
    "mirostat": Kind(int, 0, 2),
    "mirostat_eta": Kind(float, 0),
    "mirostat_tau": Kind(float, 0),
    "tfs_z": Kind(float, 0),
    "penalize_newline": _SWITCH,
    "numa": _SWITCH,
    "low_vram": _SWITCH,
    "f16_kv": _SWITCH,
    "logits_all": _SWITCH,
    "vocab_only": _SWITCH,
    "use_mlock": _SWITCH,
    "num_gqa": _COUNT,
    "rope_frequency_base": Kind(float, 0),
    "rope_frequency_scale": Kind(float, 0),
}
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")


def kind_of(name: str) -> Kind:
    """Return what a parameter is.

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
    """Check a value of JSON or of Python.

    Args:
        name: Of the parameter.
        value: A number without fraction counts as an integer; texts may be one or a list.

    Raises:
        InputError: An unknown name, a value of another type, or out of range.
    """
    kind = kind_of(name)
    found = _converted(kind, value)
    if found is None:
        raise InputError(f"{name}: expected {_described(kind)}, found {value!r:.80}")
    return found


def check_parameters(values: Mapping[str, object]) -> dict[str, Parameter]:
    """Check several; None means that a parameter is not set.

    Raises:
        InputError: As check_parameter.
    """
    return {name: check_parameter(name, v) for name, v in values.items() if v is not None}


def _converted(kind: Kind, value: object) -> Parameter | None:
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


def _described(kind: Kind) -> str:
    if kind.type is tuple:
        return "texts"
    if kind.type is bool:
        return "true or false"
    name = "an integer" if kind.type is int else "a number"
    if kind.most < math.inf:
        return f"{name} from {kind.least:g} to {kind.most:g}"
    return f"{name} of at least {kind.least:g}" if kind.least > -math.inf else name
