"""The entry point sglang.srt.plugins: SGLang's NGRAM algorithm uses our drafters if asked to.

A new release of SGLang may rename or add something that we rely on: `differences` compares its
Python files, without importing them, before anything is replaced.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ngramspec.engine.sources.pools import Pools
from ngramspec.hosts.sglang.corpus import Corpus
from ngramspec.hosts.sglang.settings import read_settings

SWITCH = "NGRAMSPEC_SGLANG"
log = logging.getLogger("ngramspec")
CORPUS = "sglang.srt.speculative.cpp_ngram.ngram_corpus"
WORKER = "sglang.srt.speculative.ngram_worker"
HOOKS = "sglang.srt.plugins.hook_registry"
RUNNER = "sglang.srt.model_executor.model_runner"
CONFIG = "sglang.srt.configs.model_config"
CLASS, METHOD = "NgramCorpus", "_prepare_draft_tokens"
READ_OF_REQUESTS = ("rid", "origin_input_ids_unpadded", "output_ids")
# Methods of SGLang's class that only its own file calls.
DEBUG_ONLY = ("debug_result", "leaf_paths_from_mask")
Read = Callable[[str], str]


def plugin() -> None:
    """Replace SGLang's corpus by ours, if NGRAMSPEC_SGLANG is set to 1.

    If SGLang is not as expected or the settings are wrong, that is logged and SGLang drafts by
    itself. SGLang calls this in each of its processes.
    """
    if os.environ.get(SWITCH, "") in ("", "0"):
        return
    try:
        changed = differences(_read, Corpus)
        if changed:
            log.warning(
                "%s is set, but this SGLang differs from what ngramspec expects: %s. It drafts by "
                "itself", SWITCH, "; ".join(changed),
            )  # fmt: skip
            return
        settings = read_settings()
        settings.make(Pools(settings.params), 1)  # raises before anything is replaced
        hooks: Any = importlib.import_module(HOOKS)
        register, kinds = hooks.HookRegistry.register, hooks.HookType
        register(f"{CORPUS}.{CLASS}", Corpus, kinds.REPLACE)
        register(f"{WORKER}.NGRAMWorker.{METHOD}", meet, kinds.BEFORE)
        log.info("SGLang's NGRAM algorithm drafts with ngramspec: %s", settings.spec)
    except Exception:
        log.exception("%s: SGLang drafts by itself", SWITCH)


def meet(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Pass the whole texts of new requests to our corpus, before the worker passes their ends."""
    corpus = getattr(worker, "ngram_corpus", None)
    if isinstance(corpus, Corpus):
        config = getattr(getattr(worker, "model_runner", None), "model_config", None)
        corpus.meet(getattr(batch, "reqs", ()), getattr(config, "vocab_size", 0))


def _read(module: str) -> str:
    """Return the source of a module of SGLang, without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("sglang is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return (folder.joinpath(*module.split(".")[1:]).with_suffix(".py")).read_text("utf-8")


def differences(read: Read, ours: type) -> list[str]:
    """Return where SGLang differs from what `ours` expects, a line each; [] if nowhere.

    Args:
        read: Returns the source of a module by its dotted name; raises OSError or ImportError.
        ours: The class that stands in for NgramCorpus.
    """
    lines: list[str] = []
    checks = (
        (CORPUS, _corpus), (WORKER, _worker), (HOOKS, _hooks),
        (RUNNER, _assigns("ModelRunner", "model_config")),
        (CONFIG, _assigns("ModelConfig", "vocab_size")),
    )  # fmt: skip
    for module, check in checks:
        try:
            tree = ast.parse(read(module))
        except (OSError, ImportError, SyntaxError) as error:
            lines.append(f"{module}: {error}")
            continue
        lines += [f"{module}: {line}" for line in check(tree, ours)]
    return lines


def _corpus(tree: ast.Module, ours: type) -> Iterator[str]:
    theirs = _class(tree, CLASS)
    if theirs is None:
        yield f"no class {CLASS}"
        return
    for node in theirs.body:
        if not isinstance(node, ast.FunctionDef) or node.name in DEBUG_ONLY:
            continue
        if node.name.startswith("_") and node.name != "__init__":
            continue
        own = inspect.getattr_static(ours, node.name, None)
        if own is None:
            yield f"{CLASS}.{node.name} is new"
        elif not isinstance(own, property):
            parameters = list(inspect.signature(own).parameters)
            names = [arg.arg for arg in node.args.args + node.args.kwonlyargs]
            if names != parameters[: len(names)]:
                yield f"{CLASS}.{node.name} takes {', '.join(names)}"


def _worker(tree: ast.Module, ours: type) -> Iterator[str]:
    theirs = _class(tree, "NGRAMWorker")
    if theirs is None:
        yield "no class NGRAMWorker"
        return
    names = [a.asname or a.name for n in ast.walk(tree)
             if isinstance(n, ast.ImportFrom) and n.module == CORPUS for a in n.names]  # fmt: skip
    if CLASS not in names:
        yield f"it does not import {CLASS}"
    parameters = set(inspect.signature(ours).parameters)
    for node in ast.walk(theirs):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == CLASS:
            for keyword in node.keywords:
                if keyword.arg not in parameters:
                    yield f"it makes a {CLASS} with {keyword.arg}"
        name = _of_corpus(node)
        if name and not hasattr(ours, name) and name not in parameters:
            yield f"it uses {CLASS}.{name}"
    if "model_runner" not in _assigned(theirs):
        yield "NGRAMWorker has no model_runner"
    prepare = next((n for n in theirs.body if getattr(n, "name", "") == METHOD), None)
    if not isinstance(prepare, ast.FunctionDef):
        yield f"no method NGRAMWorker.{METHOD}"
        return
    if [arg.arg for arg in prepare.args.args] != ["self", "batch"]:
        yield f"NGRAMWorker.{METHOD} takes other arguments than a batch"
    used = {node.attr for node in ast.walk(prepare) if isinstance(node, ast.Attribute)}
    for name in (*READ_OF_REQUESTS, "reqs", "batch_get"):
        if name not in used:
            yield f"NGRAMWorker.{METHOD} does not use {name}"


def _hooks(tree: ast.Module, ours: type) -> Iterator[str]:
    registry, kinds = _class(tree, "HookRegistry"), _class(tree, "HookType")
    register = next((n for n in registry.body if getattr(n, "name", "") == "register"), None) \
        if registry else None  # fmt: skip
    if not isinstance(register, ast.FunctionDef):
        yield "no HookRegistry.register"
    elif [arg.arg for arg in register.args.args] != ["cls", "target", "hook", "hook_type"]:
        yield "HookRegistry.register takes other arguments than target, hook and hook_type"
    names = [t.id for node in (kinds.body if kinds else []) if isinstance(node, ast.Assign)
             for t in node.targets if isinstance(t, ast.Name)]  # fmt: skip
    for name in ("BEFORE", "REPLACE"):
        if name not in names:
            yield f"no HookType.{name}"


def _assigns(name: str, attribute: str) -> Callable[[ast.Module, type], Iterator[str]]:
    def check(tree: ast.Module, ours: type) -> Iterator[str]:
        node = _class(tree, name)
        if node is None or attribute not in _assigned(node):
            yield f"{name} has no {attribute}"

    return check


def _assigned(node: ast.ClassDef) -> set[str]:
    """Return the attributes of self that a class assigns."""
    return {
        target.attr
        for assign in ast.walk(node)
        if isinstance(assign, ast.Assign)
        for target in assign.targets
        if isinstance(target, ast.Attribute)
    }


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)


def _of_corpus(node: ast.AST) -> str:
    """Return NAME of self.ngram_corpus.NAME, "" for everything else."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute):
        return ""
    return node.attr if node.value.attr == "ngram_corpus" else ""
