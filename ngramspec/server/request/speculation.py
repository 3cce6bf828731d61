"""The speculative.* fields of a request: Speculation, and whether the stream reports drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

from ngramspec.drafting.config import CONFIGS
from ngramspec.drafting.names import MAX_SHOWN, REQUEST_NAMES, nearest, parse_names
from ngramspec.engine.request import MAX_COUNT, Speculation
from ngramspec.engine.sources.drafters import OWNED
from ngramspec.errors import InputError
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel

PREFIX = "speculative"
MAX_NAMESPACE = 256  # characters
OWN = ("types", "type", "enabled", "n_max", "n_min", "p_min", "namespace", "spans", "shadow")
DRAFTERS = {name.replace("-", "_"): name for name in CONFIGS}


@dataclass(frozen=True)
class SpeculationFields:
    """A request's settings for drafts."""

    speculation: Speculation
    spans: bool  # stream events mark the text that accepted drafts made


def speculation_of(extra: Mapping[str, Any] | None, namespace: str) -> SpeculationFields:
    """Return the settings for drafts from the extra members of a body.

    Both shapes are accepted: flat, as in {"speculative.ngram_mod.n_match": 16}, and nested, as in
    {"speculative": {"ngram_mod": {"n_match": 16}}}.

    Args:
        extra: Members of the body that are not fields of its class.
        namespace: Of the request's key; the body's lies in it.

    Raises:
        ApiError: An unknown name, a value of the wrong type, or a parameter of a drafter that the
            request does not name, although it names others.
    """
    options: dict[str, Any] = {}
    params: dict[str, dict[str, Any]] = {}
    for path, value in _flat(extra or {}):
        first, _, rest = path.partition(".")
        drafter = DRAFTERS.get(first.replace("-", "_"))
        if drafter and rest:
            _check_known(rest, drafter)
            params.setdefault(drafter, {})[rest] = (
                tuple(value) if isinstance(value, list) else value
            )
        elif path in OWN:
            options[path] = value
        else:
            names = [*OWN, *(f"{name}.*" for name in DRAFTERS)]
            name = f"{PREFIX}.{path[:MAX_SHOWN]}"
            raise bad_request(f"unknown field {name}; {nearest(path, names)}", name)
    for drafter, own in params.items():
        _check_values(drafter, own)
    types, enabled = _types(options.get("types", options.get("type")))
    enabled = enabled and _typed(options, "enabled", bool, True)
    if enabled and types is not None:
        _check_used(params, types)
    speculation = Speculation(
        enabled=enabled,
        types=types,
        params=params,
        max_draft=_length(options, "n_max"),
        min_draft=_length(options, "n_min"),
        p_min=_share(options, "p_min"),
        namespace=_namespace(_typed(options, "namespace", str, ""), namespace),
        shadow=_typed(options, "shadow", bool, False),
    )
    return SpeculationFields(speculation, _typed(options, "spans", bool, False))


def check_draft_model(draft_model: Any, served: ServedModel) -> None:
    """Refuse a draft model that is not the loaded one; None and "" ask for none in particular.

    draft_model: LM Studio's field: a name, with or without ":latest", or a file's name with or
    without its suffix.

    Raises:
        ApiError: It names another, or there is none.
    """
    if draft_model is None or draft_model == "":
        return
    small = served.engine.draft_model
    if small is None:
        raise bad_request(
            "this server has no draft model: start it with --model-draft", "draft_model"
        )
    file = PurePath(small.path)
    names = {_without_tag(name) for name in (small.name, file.name, file.stem)}
    if not isinstance(draft_model, str) or _without_tag(draft_model) not in names:
        raise bad_request(
            f"draft_model {draft_model!r:.80} is not loaded: this server has {small.name!r}",
            "draft_model",
        )


def _without_tag(name: str) -> str:
    return name.lower().removesuffix(":latest")


def _flat(extra: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (path after "speculative.", value) of every member, with nested objects flattened."""
    for name, value in extra.items():
        if name == PREFIX and isinstance(value, bool):
            yield "enabled", value
        elif name == PREFIX and isinstance(value, dict):
            yield from _unfold("", value)
        elif name == PREFIX and value is not None:
            raise bad_request(f"{PREFIX} must be an object or a boolean", PREFIX)
        elif name.startswith(f"{PREFIX}."):
            path = name[len(PREFIX) + 1 :]
            if isinstance(value, dict):
                yield from _unfold(f"{path}.", value)
            elif value is not None:
                yield path, value


def _unfold(prefix: str, members: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in members.items():
        if isinstance(value, dict) and not prefix:
            yield from _unfold(f"{name}.", value)
        elif value is not None:
            yield prefix + name, value


def _check_known(param: str, drafter: str) -> None:
    names = [field.name for field in fields(CONFIGS[drafter]) if field.name not in OWNED]
    if param not in names:
        name = _name_of(drafter, param[:MAX_SHOWN])
        owned = " belongs to the server" if param in OWNED else " is unknown"
        raise bad_request(f"{name}{owned}; {nearest(param, names)}", name)


def _check_used(params: Mapping[str, Mapping[str, Any]], types: Sequence[str]) -> None:
    for drafter, own in params.items():
        if drafter not in types:
            name = _name_of(drafter, next(iter(own)))
            chosen = ",".join(types)
            raise bad_request(f"{name} needs {drafter}, but {PREFIX}.types is {chosen}", name)


def _check_values(drafter: str, own: Mapping[str, Any]) -> None:
    try:
        CONFIGS[drafter](**own)
    except (TypeError, ValueError, OverflowError) as error:  # an InputError is a ValueError
        name = _name_of(drafter)
        raise bad_request(f"{name}: {error}", name) from error


def _name_of(drafter: str, *param: str) -> str:
    """Return the name of the field for a drafter, or for a parameter of it."""
    return ".".join([PREFIX, drafter.replace("-", "_"), *param])


def _types(value: Any) -> tuple[tuple[str, ...] | None, bool]:
    """Return the requested drafters, None = the server's, and False if drafts are off."""
    if value is None:
        return None, True
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = ",".join(value)
    if not isinstance(value, str):
        raise bad_request(f"{PREFIX}.types must be names of drafters", f"{PREFIX}.types")
    if value.strip() in ("", "none"):
        return None, False
    try:
        return parse_names(value, "priority", REQUEST_NAMES), True
    except InputError as error:
        raise bad_request(str(error), f"{PREFIX}.types") from error


def _length(options: Mapping[str, Any], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise bad_request(
            f"{PREFIX}.{name} must be an integer in 0..{MAX_COUNT}", f"{PREFIX}.{name}"
        )
    return value


def _share(options: Mapping[str, Any], name: str) -> float | None:
    """Return a probability; others are brought into 0..1, as llama-server does."""
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        raise bad_request(f"{PREFIX}.{name} must be a number", f"{PREFIX}.{name}")
    return float(min(max(value, 0), 1))


def _namespace(own: str, of_key: str) -> str:
    if len(own) > MAX_NAMESPACE:
        raise bad_request(
            f"{PREFIX}.namespace has more than {MAX_NAMESPACE} characters", f"{PREFIX}.namespace"
        )
    return f"{of_key}:{own}" if of_key else own


def _typed(options: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = options.get(name, default)
    if not isinstance(value, kind):
        raise bad_request(f"{PREFIX}.{name} must be of type {kind.__name__}", f"{PREFIX}.{name}")
    return value
