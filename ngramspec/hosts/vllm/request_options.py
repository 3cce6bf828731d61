"""RequestOptions: a request's draft options, from extra_args of its sampling parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ngramspec.drafting.names import nearest
from ngramspec.errors import InputError
from ngramspec.hosts.vllm.counters import log
from ngramspec.hosts.vllm.settings import KEY

MAX_NAMESPACE = 256  # characters
HELD_AT = "_ngramspec_options"  # attribute of an InputBatch: asks by request id


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Draft options of a request: SamplingParams(extra_args={"ngramspec": {...}}).

    Or flat, {"ngramspec.namespace": ...}: vllm_xargs of an HTTP request cannot be nested.
    """

    speculate: bool = True
    namespace: str = ""  # requests of different namespaces share no pool
    n_max: int | None = None  # longest draft in tokens, None = num_speculative_tokens

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InputError: A value is of the wrong type or out of its bounds.
        """
        if not isinstance(self.speculate, bool):
            raise InputError(f"speculate must be true or false, got {self.speculate!r}")
        if not isinstance(self.namespace, str) or len(self.namespace) > MAX_NAMESPACE:
            raise InputError(f"namespace must be a text of at most {MAX_NAMESPACE} characters")
        if self.n_max is not None and (type(self.n_max) is not int or self.n_max < 0):
            raise InputError(f"n_max must be an integer >= 0, got {self.n_max!r}")


DEFAULT = RequestOptions()


def read_options(sampling_params: Any) -> RequestOptions:
    """Return the draft options in a request's sampling parameters.

    Raises:
        InputError: A field is unknown, of the wrong type or out of its bounds.
    """
    extra = getattr(sampling_params, "extra_args", None)
    if not isinstance(extra, Mapping) or not any(str(name).startswith(KEY) for name in extra):
        return DEFAULT
    own = extra.get(KEY, {})
    if not isinstance(own, Mapping):
        raise InputError(f"extra_args[{KEY!r}] must hold options by name, got {own!r}")
    flat = f"{KEY}."
    own = {**own, **{n[len(flat) :]: v for n, v in extra.items() if str(n).startswith(flat)}}
    names = [one.name for one in fields(RequestOptions)]
    for name in own:
        if name not in names:
            raise InputError(f"unknown option {name!r} of a request; {nearest(str(name), names)}")
    if type(own.get("speculate")) is int and own["speculate"] in (0, 1):
        own["speculate"] = bool(own["speculate"])  # vllm_xargs has no booleans
    return RequestOptions(**own)


def hold_options(add_request: Callable[..., Any]) -> Callable[..., Any]:
    """Return InputBatch.add_request, wrapped to also keep the request's draft options.

    A batch holds no sampling parameters, and a proposer sees only the batch.
    """

    @functools.wraps(add_request)
    def add_and_hold(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ask = read_options(getattr(request, "sampling_params", None))
        except InputError as error:
            name = getattr(request, "req_id", "?")
            log.warning("ngramspec: request %s gets no drafts: %s", name, error)
            ask = RequestOptions(speculate=False)  # the wrong one may be its namespace
        held = self.__dict__.setdefault(HELD_AT, {})
        _forget_gone(held, self.req_id_to_index)  # a rank that drafts nothing never looks at them
        if ask is not DEFAULT:
            held[request.req_id] = ask
        else:
            held.pop(getattr(request, "req_id", None), None)
        return add_request(self, request, *args, **kwargs)

    add_and_hold.holds_options = True  # type: ignore[attr-defined]
    return add_and_hold


def held_options(input_batch: Any) -> dict[str, RequestOptions]:
    """Return the asks of a batch's requests that differ from the default; drop those of others."""
    held: dict[str, RequestOptions] = getattr(input_batch, HELD_AT, None) or {}
    _forget_gone(held, input_batch.req_id_to_index)
    return held


def _forget_gone(held: dict[str, RequestOptions], present: Collection[str]) -> None:
    """Drop what requests asked that have left the batch, once there are more than it has."""
    if len(held) > len(present):
        for req_id in [one for one in held if one not in present]:
            del held[req_id]
