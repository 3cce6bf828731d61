"""install: make `from arctic_inference.suffix_decoding import SuffixDecodingCache` import ours."""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

from ngramspec.drafting.names import nearest
from ngramspec.errors import InputError
from ngramspec.hosts.arctic.cache import SuffixDecodingCache, SuffixDecodingDraft

PACKAGE = "arctic_inference"
MODULE = f"{PACKAGE}.suffix_decoding"
SWITCH = "NGRAMSPEC_ARCTIC"
_OURS = "__ngramspec__"  # attribute of modules made here: the module that was there before

log = logging.getLogger("ngramspec")


class ConfiguredCache(SuffixDecodingCache):
    """SuffixDecodingCache with other defaults for what engines do not pass."""

    settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, max_tree_depth: int = 64, max_cached_requests: int = -1, **own: Any) -> None:
        super().__init__(max_tree_depth, max_cached_requests, **{**self.settings, **own})


def install(*, replace: bool = False, **settings: Any) -> bool:
    """Make imports of arctic_inference.suffix_decoding get our SuffixDecodingCache.

    Call it before the engine makes its proposer; that is when vLLM and TensorRT-LLM
    import the module.

    Args:
        replace: Do so even if the real package is installed. Its other modules stay.
        **settings: Keyword arguments of SuffixDecodingCache that engines do not pass: capacity,
            pool, pool_prompts, static.

    Returns:
        bool: Whether the module is ours now; False where the real one stays.

    Raises:
        InputError: A setting is unknown.

    Acts on this process only. A second call replaces the settings of the first.
    """
    cache = _with(settings)
    there = sys.modules.get(MODULE)
    ours = hasattr(there, _OURS)
    real = _is_real()
    if real and not replace and not ours:
        return False
    if not real and not hasattr(sys.modules.get(PACKAGE), _OURS):
        _put(PACKAGE, sys.modules.get(PACKAGE), is_package=True)
    module: Any = _put(MODULE, getattr(there, _OURS) if ours else there, is_package=False)
    module.SuffixDecodingCache, module.SuffixDecodingDraft = cache, SuffixDecodingDraft
    module.__all__ = ["SuffixDecodingCache", "SuffixDecodingDraft"]
    _hang(module)
    return True


def uninstall() -> None:
    """Take back what install() did; a real package is found again."""
    for name in (MODULE, PACKAGE):
        module = sys.modules.get(name)
        if hasattr(module, _OURS):
            before = getattr(module, _OURS)
            del sys.modules[name]
            if before is not None:
                sys.modules[name] = before
            if name == MODULE:
                _hang(before)


def plugin() -> None:
    """Install if the environment asks for it: the entry point vllm.general_plugins.

    NGRAMSPEC_ARCTIC is 1 or a JSON object with settings of install(); the real package is replaced.
    If its value is wrong, that is logged and nothing is installed. Safe to call more than once.
    """
    text = os.environ.get(SWITCH, "")
    if text in ("", "0"):
        return
    try:
        settings = {} if text == "1" else json.loads(text)
        if not isinstance(settings, Mapping):
            raise InputError(f"expected 1 or a JSON object, got {text!r}")
        install(**{"replace": True, **settings})
    except (ValueError, TypeError) as error:
        log.error("%s: %s; the suffix method is left as it is", SWITCH, error)


def _is_real() -> bool:
    """Return whether the real package can be found, without importing it."""
    package = sys.modules.get(PACKAGE)
    if hasattr(package, _OURS):
        return False
    try:
        return importlib.util.find_spec(PACKAGE) is not None
    except ValueError:  # it is loaded and has no spec
        return package is not None


def _with(settings: Mapping[str, Any]) -> type[SuffixDecodingCache]:
    parameters = inspect.signature(SuffixDecodingCache).parameters.values()
    names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    for name in settings:
        if name not in names:
            raise InputError(f"unknown setting {name!r}; {nearest(name, names)}")
    if not settings:
        return SuffixDecodingCache

    configured: type[SuffixDecodingCache] = type(
        "ConfiguredCache", (ConfiguredCache,), {"settings": dict(settings)}
    )
    return configured


def _hang(module: ModuleType | None) -> None:
    """Set the module as an attribute of the package, if that is loaded."""
    package = sys.modules.get(PACKAGE)
    if package is not None:
        vars(package).pop("suffix_decoding", None)
        if module is not None:
            vars(package)["suffix_decoding"] = module


def _put(name: str, before: ModuleType | None, *, is_package: bool) -> ModuleType:
    module = ModuleType(name, "ngramspec's suffix drafter with the surface of arctic-inference.")
    # Engines look for the package by its spec, which sys.modules alone does not give them.
    module.__spec__ = ModuleSpec(name, None, origin=__file__, is_package=is_package)
    if is_package:
        module.__path__ = []
    setattr(module, _OURS, before)
    sys.modules[name] = module
    return module
