"""Runs `ngramspec serve`: builds model, engine and server from the options, serves, shuts down."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ngramspec.cli.command import Failure
from ngramspec.cli.drafting import drafting_line, gain_line
from ngramspec.cli.drafts import NO_DRAFTS
from ngramspec.cli.llama_cpp.lora import adapters_of
from ngramspec.cli.llama_cpp.threads import prepare_process
from ngramspec.cli.llama_cpp.words import names_in
from ngramspec.cli.options import read_utf8
from ngramspec.cli.serve.embeddings import open_embedder
from ngramspec.cli.serve.keys import KeyWatch, check_files, keys_of, take_keys
from ngramspec.cli.serve.log import Log, logging_to
from ngramspec.cli.serve.memory import loading_line, memory_line, memory_of, sharing_line
from ngramspec.cli.serve.ollama import names_of
from ngramspec.cli.serve.recording import open_recorder
from ngramspec.cli.serve.sampling import default_sampling, default_stops
from ngramspec.cli.target import context_settings, exact_line, looking, model_settings
from ngramspec.cli.told import tell
from ngramspec.costs import CostTable
from ngramspec.engine import Engine, EngineThread
from ngramspec.errors import InputError
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.saved_costs import find_costs, overload
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.runtime import DraftSettings, Runtime, Settings, open_runtime
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.adapters import ServedAdapter, ServedAdapters
from ngramspec.server.http.run import LAST_SECONDS, HttpServer, bind, url_of
from ngramspec.server.http.shutdown import Shutdown
from ngramspec.text.templates.builtin import builtin_names
from ngramspec.text.tokenizers import fingerprint_of
from ngramspec.text.tokenizers.llama_library import load_library

# Seconds for the parts of the shutdown, after --drain-timeout.
SERVER_SECONDS = LAST_SECONDS + 15.0
REQUEST_SECONDS = 5.0  # for requests that still run after the server's own drain
STEP_SECONDS = 30.0  # for the step that runs after that
SAVE_SECONDS = 60.0
PREPARE_SECONDS = 15.0  # for threads that prepare requests
FREE_SECONDS = 60.0
REPORT_SECONDS = 1.0
# When passes are remarkably slow: times as long as measured, over at least so many.
SLOW, FEWEST_PASSES, LOOK_SECONDS = 4.0, 20, 10.0
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PATHS = ("ssl_key_file", "ssl_cert_file", "slot_save_path")
_SAME_NAME = (
    *("host", "port", "pool_per_key", "metrics", "slots", "props", "max_prompt_tokens"),
    *("max_generations", "queue_timeout", "slow_client_timeout", "drain_timeout", "access_log"),
    *("max_connections", "stall_timeout", "verbose"),
)


def run(options: Mapping[str, Any], drafts: DraftSettings) -> None:
    """Serve until a signal ends it.

    Args:
        options: Those of `serve`.
        drafts: What drafts.

    Raises:
        NgramspecError, OSError: Something cannot be set up, or the address cannot be bound.
        Failure: The engine has failed.
    """
    with logging_to(options) as log:
        _serve(options, drafts, log)


def _serve(
    options: Mapping[str, Any],
    drafts: DraftSettings,
    log: Log,
) -> None:
    """Serve until a signal ends it; arguments and errors as run."""
    settings, defaults = make_settings(options, drafts), served_defaults(options)
    with contextlib.ExitStack() as stack:
        shutdown = stack.enter_context(Shutdown(log.note))
        # fails before loading
        sockets = bind(settings.hosts, settings.port, reuse_port=options["reuse_port"])
        for sock in sockets:
            stack.enter_context(sock)
        opening = runtime_settings(options, drafts)
        path = Path(opening.model.file)
        name, *aliases = model_names(options, path)
        recorder = open_recorder(
            options,
            settings,
            stack,
            model=name,
            tokenizer=lambda: fingerprint_of(path),
            drafter=",".join(drafts.drafter or ()) or NO_DRAFTS,
        )
        with contextlib.suppress(OSError):  # whatever it is, loading says it better
            names = names_of(options["recipe"])
            tell(loading_line(path, *names[:1]))
        runtime = open_served(options, opening)
        model, target, engine = runtime.model, runtime.target, runtime.engine
        stack.enter_context(runtime.models)
        stack.callback(shutdown.part, "freeing the model", FREE_SECONDS)
        stack.push(shutdown.leave)
        preparing = stack.enter_context(contextlib.ExitStack())
        saves = stack.enter_context(runtime.saves)
        target.sampler(defaults["sampling"], 0)  # a grammar or a token may not fit the model
        served = ServedModel(
            name=name,
            aliases=tuple(aliases),
            model=model,
            engine=engine,
            memory=memory_of(target, runtime.placement),
            embedder=open_embedder(options, model, runtime.models),
            embedding_norm=options["embd_normalize"],
            draft_notes=draft_notes(options, runtime),
            recorder=recorder,
            adapters=served_adapters(options, model),
            **defaults,
        )

        def begin_end() -> None:
            shutdown.part("answering requests", settings.drain_timeout + SERVER_SECONDS)
            saves.save_soon()  # whoever waits for the end may lose patience before it

        urls = [url_of(sock, bool(settings.ssl_key_file)) for sock in sockets]
        app = create_app(served, settings)
        key_file = options["api_key_file"]
        if key_file is not None:
            take = functools.partial(take_keys, options, drafts, app.state.service)
            stack.enter_context(KeyWatch(key_file, take))
        page = f"page: {settings.api_prefix}/, " if settings.page else ""
        where = f"listening on {', '.join(urls)} ({page}API: {settings.api_prefix}/v1)"
        http = HttpServer(app, lambda: tell(where), begin_end)
        preparing.callback(http.workers.join)
        preparing.callback(app.state.service.bridge.intake.join)
        preparing.callback(shutdown.part, "preparing requests", PREPARE_SECONDS)
        stack.callback(shutdown.part, "saving what was learned", SAVE_SECONDS)
        stack.callback(_close, EngineThread(engine), shutdown)
        tell_figures = functools.partial(report, engine, verbose=options["verbose"])
        stack.enter_context(_repeating(tell_figures, options["stats_interval"]))
        costs = find_costs(model, target.settings)
        if costs is not None and target.settings.num_threads[0] > 1:
            stack.enter_context(_repeating(SpeedWatch(engine, costs).look, LOOK_SECONDS))
        _greet(options, served, target)
        if settings.open_hosts:
            tell(
                f"every machine that reaches {', '.join(settings.open_hosts)} can send requests, "
                "as there are no API keys: --api-key-file FILE asks for keys"
            )
        if settings.isolates:
            tell("each key learns for itself; --share-between-keys lets keys share")

        def stop() -> None:
            if not http.should_exit:
                begin_end()  # here too: the event loop may be what hangs
            http.stop()

        shutdown.take_signals(stop, tell_figures)
        http.run(sockets=sockets)
    tell_figures()
    if http.failure:
        raise Failure(http.failure)


def report(engine: Engine, *, verbose: bool = False) -> None:
    """Print the engine's figures to stderr; verbose: with llama-server's statistics lines."""
    stats = engine.stats()
    drafted, accepted = stats.num_draft_tokens, stats.num_accepted_tokens
    share = accepted / drafted if drafted else 0.0
    # As Generation counts them: without the passes that read prompts.
    passes = stats.num_slot_steps - stats.time_to_first_token.count
    mean = 1.0 + accepted / passes if passes > 0 else 0.0
    lines = [
        f"requests = {stats.num_requests}, prompt tokens = {stats.num_prompt_tokens} "
        f"(+ {stats.num_cached_tokens} cached), emitted tokens = {stats.num_emitted_tokens}, "
        f"decodes = {stats.num_steps}",
        f"draft acceptance = {share:.1%} ({accepted} accepted / {drafted} drafted), "
        f"mean accepted length = {mean:5.2f}",
        *engine.stats_lines(verbose=verbose),
    ]
    tell("\n".join(lines))


def _close(worker: EngineThread, shutdown: Shutdown) -> None:
    """End the engine's thread, or note that it hangs."""
    shutdown.part("stopping the engine", REQUEST_SECONDS + STEP_SECONDS + 5.0)
    worker.close(drain=True, timeout=REQUEST_SECONDS, last=STEP_SECONDS)
    if worker.alive:
        shutdown.hang("a step of the engine does not end")


def _greet(options: Mapping[str, Any], served: ServedModel, target: LlamaTarget) -> None:
    """Print what is served and what drafts."""
    engine, trained = served.engine, served.model.n_ctx_train
    name = served.name if options["model"] else f"{served.name}, the embedded model"
    each, cells = engine.context_size, target.cells
    shared = cells is not None and cells < engine.num_slots * each
    tell(
        f"model {name}, {engine.num_slots} slot{'s' * (engine.num_slots > 1)}, "
        + (
            f"{cells} tokens of context shared by all"
            if shared
            else f"{each} tokens of context each"
        )
    )
    if served.memory is not None:
        tell(memory_line(served.memory, engine.num_slots))
    if line := sharing_line(target):
        tell(line)
    tell(drafting_line(served.drafting))
    costs = find_costs(target.model, target.settings) if served.drafting.active else None
    if costs is not None and (line := gain_line(costs, served.drafting.longest)):
        tell(line)
    if engine.context_size > trained > 0:
        tell(
            f"a slot has {engine.context_size} tokens of context, but the model was trained with "
            f"{trained}: longer texts may get poor answers"
        )


class SpeedWatch:
    """Tells once that passes take many times as long as they did when their costs were measured.

    llama.cpp's threads spin until all of them are there: one that waits for a core holds up all.

    costs: Of passes, in seconds.
    """

    def __init__(self, engine: Engine, costs: CostTable) -> None:
        self._engine, self._costs = engine, costs
        self._before = (0, 0.0, 0)
        self._warned = False

    def look(self) -> None:
        """Look at the passes since the last look."""
        stats = self._engine.stats()
        rejected = stats.num_draft_tokens - stats.num_accepted_tokens
        now = (stats.num_steps, stats.decode_seconds, stats.num_emitted_tokens + rejected)
        passes, tokens = now[0] - self._before[0], now[2] - self._before[2]
        seconds = now[1] - self._before[1]
        self._before = now
        if self._warned or passes < FEWEST_PASSES:
            return
        times = seconds / passes / self._costs.cost(max(1, round(tokens / passes)))
        if times >= SLOW and (busy := overload()):
            self._warned = True
            tell(
                f"passes take {times:.0f} times as long as when they were measured, as other "
                f"programs use the cores ({busy}): -t with as many threads as cores are idle is "
                "faster"
            )


@contextlib.contextmanager
def _repeating(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Act at intervals in the block; 0 = never."""
    stopped = threading.Event()

    def repeat() -> None:
        while not stopped.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, name="ngramspec-report", daemon=True)
    if seconds:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        if seconds:
            thread.join(REPORT_SECONDS)


def runtime_settings(options: Mapping[str, Any], drafts: DraftSettings) -> Settings:
    """Return what the server runs on.

    A draft model that a user named must work. One that came with a model of Ollama's store need
    not: it may be of a kind that only Ollama itself can use.

    Args:
        options: Those of `serve`.
        drafts: What drafts.

    Raises:
        InputError: An option is out of its bounds.
    """
    small, stored = drafts.second, options["recipe"].stored
    came_along = (
        isinstance(small, DraftModelSettings)
        and stored is not None
        and stored.draft == Path(small.path)
    )
    return Settings(
        model=model_settings(options),
        context=context_settings(options),
        drafts=replace(drafts, optional=came_along),
        exact=options["exact"],
        max_queue=options["max_queue"],
        kept_bytes=options["kept_memory"],
        context_shift=options["context_shift"],
    )


def open_served(options: Mapping[str, Any], settings: Settings) -> Runtime:
    """Open the model with its engine, and tell on stderr how far it is.

    Raises:
        As open_runtime.
    """
    prepare_process(options)
    with contextlib.ExitStack() as testing:
        runtime = open_runtime(settings, tell, lambda: looking(testing))
    if runtime.exact_setting:
        tell(exact_line(runtime.target, runtime.exact_setting))
    return runtime


def draft_notes(options: Mapping[str, Any], runtime: Runtime) -> tuple[str, ...]:
    """Return notes on what does not draft and why."""
    if runtime.refusal is None:
        return ()
    name = options["recipe"].stored.name.short()
    return (f"the draft model that came with {name} is not used: {runtime.refusal}",)


def served_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults for requests, as fields of ServedModel.

    Raises:
        InputError: A default is out of its bounds, or the template variables are not JSON.
        OSError: The template's file cannot be read.
    """
    return {
        "sampling": default_sampling(options),
        "max_tokens": options["predict"],
        "num_keep": options["keep"],
        "reasoning_budget": options["reasoning_budget"],
        "reasoning_message": options["reasoning_budget_message"],
        "stop": default_stops(options),
        "system": options["system_prompt"],
        "recipe": options["recipe"],
        "template": _template(options),
        "template_variables": _variables(options),
        "prefill": options["prefill_assistant"],
        "special": options["special"],
        "tags": tuple(names_in(options["tags"])),
        "cache_prompt": options["cache_prompt"],
        "batch_size": options["batch_size"],
        "spm_infill": options["spm_infill"],
    }


def served_adapters(options: Mapping[str, Any], model: LlamaModel) -> ServedAdapters:
    """Return the LoRA adapters and the scales that the options give."""
    loaded = [
        ServedAdapter(str(one.path), one.task_name, one.prompt_prefix) for one in model.adapters
    ]
    return ServedAdapters(loaded, [scale for _, scale in adapters_of(options)])


def model_names(options: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the model's names for clients, sorted as llama-server's: the first is its id."""
    names = {name.strip() for text in options["alias"] for name in text.split(",")}
    return tuple(sorted(names - {""}) or [path.stem])


def make_settings(options: Mapping[str, Any], drafts: DraftSettings) -> ServerSettings:
    """Return the settings of the HTTP side.

    Raises:
        InputError: --pool-per-key is given without keys, or each key learns for itself and a file
            would hold what all of them said.
        OSError: The file with keys cannot be read.
    """
    keys = keys_of(options)
    if options["pool_per_key"] and not keys:
        raise InputError("--pool-per-key needs keys: give --api-key or --api-key-file")
    paths = {name: options[name] and os.fspath(options[name]) for name in _PATHS}
    settings = ServerSettings(
        **{name: options[name] for name in _SAME_NAME},
        **paths,
        api_keys=keys,
        cors_origins=names_in(options["cors_origins"]),
        allowed_hosts=tuple(n for text in options["allow_host"] for n in text.split(",") if n),
        max_body_bytes=options["max_body"],
        request_timeout=options["timeout"],
        sse_ping_interval=max(0.0, options["sse_ping_interval"]),
        reasoning_format="none" if options["reasoning_format"] == "none" else "auto",
        page=options["ui"],
        api_prefix=f"/{prefix}" if (prefix := options["api_prefix"].strip("/")) else "",
    )
    check_files(settings, drafts)
    return settings


def _template(options: Mapping[str, Any]) -> str | None:
    if options["chat_template_file"] is not None:
        return read_utf8(options["chat_template_file"])
    text = options["chat_template"]
    if text == "chatml":
        return CHATML
    if text and "{" not in text and text not in (names := builtin_names(load_library())):
        raise InputError(
            f"--chat-template {text!r} is no template: give its text, use --chat-template-file, or "
            f"name one of llama.cpp's: {', '.join(sorted(names))}"
        )
    return text or None


def _variables(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables of the chat template; --chat-template-kwargs win over other options."""
    try:
        kwargs = json.loads(options["chat_template_kwargs"] or "{}")
    except ValueError as error:
        raise InputError(f"--chat-template-kwargs must be JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise InputError("--chat-template-kwargs must be a JSON object")
    variables: dict[str, Any] = {}
    if options["reasoning"] != "auto":
        variables["enable_thinking"] = options["reasoning"] == "on"
    if options["reasoning_effort"] not in (None, "default"):
        variables["reasoning_effort"] = options["reasoning_effort"]
    if options["reasoning_preserve"] is not None:
        variables["preserve_reasoning"] = options["reasoning_preserve"]
    return {**variables, **kwargs}
