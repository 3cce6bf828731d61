"""Runs `ngramspec serve`: builds model, engine and server from the options, serves, shuts down."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ngramspec.cli.command import Failure
from ngramspec.cli.drafts import NO_DRAFTS
from ngramspec.cli.options import names_in
from ngramspec.cli.output import drafting_line, gain_line, size_text, tell
from ngramspec.cli.serve.defaults import served_defaults
from ngramspec.cli.serve.keys import KeyWatch, check_files, keys_of, take_keys
from ngramspec.cli.serve.log import Log, logging_to
from ngramspec.cli.serve.memory import loading_line, memory_line, memory_of, sharing_line
from ngramspec.cli.serve.ollama import names_of
from ngramspec.cli.serve.options import RecordingOptions, ServeOptions
from ngramspec.cli.target import context_settings, exact_line, looking, model_settings
from ngramspec.costs import CostTable
from ngramspec.engine import DecisionTrace, Engine, EngineThread
from ngramspec.engine.info import shadow_json, shadow_line
from ngramspec.errors import InputError
from ngramspec.lab.recordings.record import Head
from ngramspec.lab.recordings.writer import RecordFile
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.embeddings import Embedder
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.saved_costs import find_costs, overload
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.runtime import DraftSettings, Runtime, Settings, open_runtime, settle
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.adapters import ServedAdapter, ServedAdapters
from ngramspec.server.http.run import LAST_SECONDS, HttpServer, bind, url_of
from ngramspec.server.http.shutdown import Shutdown
from ngramspec.server.recorder import Recorder
from ngramspec.text.tokenizers import fingerprint_of

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


def run(options: ServeOptions, drafts: DraftSettings) -> None:
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


def _serve(options: ServeOptions, drafts: DraftSettings, log: Log) -> None:
    """Serve until a signal ends it; arguments and errors as run."""
    settings, defaults = make_settings(options, drafts), served_defaults(options)
    with contextlib.ExitStack() as stack:
        shutdown = stack.enter_context(Shutdown(log.note))
        # fails before loading
        sockets = bind(settings.hosts, settings.port, reuse_port=options.reuse_port)
        for sock in sockets:
            stack.enter_context(sock)
        opening = runtime_settings(options, drafts)
        path = Path(opening.model.file)
        names = model_names(options, path)
        drafter = ",".join(drafts.drafter or ()) or NO_DRAFTS
        recorder = open_recorder(options, stack, path, names[0], drafter, apart=settings.isolates)
        with contextlib.suppress(OSError):  # whatever it is, loading says it better
            tell(loading_line(path, *names_of(options.recipe)[:1]))
        runtime = open_served(options, opening)
        target, engine = runtime.target, runtime.engine
        if recorder is not None and recorder.trace is not None:
            engine.trace_to(recorder.trace)
        stack.enter_context(runtime.models)
        stack.callback(shutdown.part, "freeing the model", FREE_SECONDS)
        stack.push(shutdown.leave)
        preparing = stack.enter_context(contextlib.ExitStack())
        saves = stack.enter_context(runtime.saves)
        served = _served(options, runtime, names, recorder, defaults)

        def begin_end() -> None:
            shutdown.part("answering requests", settings.drain_timeout + SERVER_SECONDS)
            saves.save_soon()  # whoever waits for the end may lose patience before it

        urls = [url_of(sock, bool(settings.ssl_key_file)) for sock in sockets]
        app = create_app(served, settings)
        key_file = options.api_key_file
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
        tell_figures = functools.partial(report, engine, verbose=options.verbose)
        stack.enter_context(_repeating(tell_figures, options.stats_interval))
        costs = find_costs(runtime.model, target.settings)
        if costs is not None and target.settings.num_threads[0] > 1:
            stack.enter_context(_repeating(SpeedWatch(engine, costs).look, LOOK_SECONDS))
        _greet(options, served, target, settings)

        def stop() -> None:
            if not http.should_exit:
                begin_end()  # here too: the event loop may be what hangs
            http.stop()

        shutdown.take_signals(stop, tell_figures)
        http.run(sockets=sockets)
    tell_figures()
    if http.failure:
        raise Failure(http.failure)


def _served(
    options: ServeOptions,
    runtime: Runtime,
    names: Sequence[str],
    recorder: Recorder | None,
    defaults: dict[str, Any],
) -> ServedModel:
    """Return what routes know of the model.

    names: Of the model; requests can use each, answers the first.
    defaults: Those of requests.

    Raises:
        As Target.sampler, open_embedder and served_adapters: it does not fit the model.
    """
    runtime.target.sampler(defaults["sampling"], 0)  # a grammar or a token may not fit the model
    return ServedModel(
        name=names[0],
        aliases=tuple(names[1:]),
        model=runtime.model,
        engine=runtime.engine,
        memory=memory_of(runtime.target, runtime.placement),
        embedder=open_embedder(options, runtime.model, runtime.models),
        embedding_norm=options.embd_normalize,
        draft_notes=draft_notes(options, runtime),
        recorder=recorder,
        adapters=served_adapters(options, runtime.model),
        **defaults,
    )


def report(engine: Engine, *, verbose: bool = False) -> None:
    """Print the engine's figures to stderr; verbose: with llama-server's statistics lines."""
    stats = engine.stats()
    drafted, accepted = stats.num_draft_tokens, stats.num_accepted_tokens
    share = accepted / drafted if drafted else 0.0
    # As Generation counts them: without the passes that read prompts.
    passes = stats.num_slot_steps - stats.time_to_first_token.count
    mean = f", mean accepted length = {1.0 + accepted / passes:.2f}" if passes > 0 else ""
    lines = [
        f"requests = {stats.num_requests}, prompt tokens = {stats.num_prompt_tokens} "
        f"(+ {stats.num_cached_tokens} cached), emitted tokens = {stats.num_emitted_tokens}, "
        f"passes = {stats.num_steps}",
        f"draft acceptance = {share:.1%} ({accepted} accepted / {drafted} drafted){mean}",
        *(shadow_line(shadow_json(shadow)) for shadow in engine.shadows()),
        *engine.stats_lines(verbose=verbose),
    ]
    tell("\n".join(lines))


def _close(worker: EngineThread, shutdown: Shutdown) -> None:
    """End the engine's thread, or note that it hangs."""
    shutdown.part("stopping the engine", REQUEST_SECONDS + STEP_SECONDS + 5.0)
    worker.close(drain=True, timeout=REQUEST_SECONDS, last=STEP_SECONDS)
    if worker.alive:
        shutdown.hang("a step of the engine does not end")


def _greet(
    options: ServeOptions, served: ServedModel, target: LlamaTarget, settings: ServerSettings
) -> None:
    """Print what is served, what drafts, and who can ask."""
    engine, trained = served.engine, served.model.n_ctx_train
    name = served.name if options.model else f"{served.name}, the embedded model"
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
    if settings.open_hosts:
        tell(
            f"every machine that reaches {', '.join(settings.open_hosts)} can send requests, "
            "as there are no API keys: --api-key-file FILE asks for keys"
        )
    if settings.isolates:
        tell("each key learns for itself; --share-between-keys lets keys share")


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


def runtime_settings(options: ServeOptions, drafts: DraftSettings) -> Settings:
    """Return what the server runs on.

    A draft model that a user named must work. One that came with a model of Ollama's store need
    not: it may be of a kind that only Ollama itself can use.

    Args:
        options: Those of `serve`.
        drafts: What drafts.

    Raises:
        InputError: An option is out of its bounds.
    """
    small, stored = drafts.second, options.recipe.stored
    came_along = (
        isinstance(small, DraftModelSettings)
        and stored is not None
        and stored.draft == Path(small.path)
    )
    return Settings(
        model=model_settings(options),
        context=served_context(options),
        drafts=replace(drafts, optional=came_along),
        exact=options.exact,
        max_queue=options.max_queue,
        kept_bytes=options.kept_memory,
        context_shift=options.context_shift,
    )


def open_recorder(
    options: RecordingOptions,
    stack: contextlib.ExitStack,
    model: Path,
    name: str,
    drafter: str,
    *,
    apart: bool,
) -> Recorder | None:
    """Return the recorder that the options ask for, None without --record and --spec-trace.

    Args:
        options: Those of `serve`.
        stack: Closes it.
        model: The model's file, for its tokenizer.
        name: Of the model.
        drafter: What drafts for requests that ask for nothing else.
        apart: Each key learns for itself.

    Raises:
        As fingerprint_of and RecordFile.
        click.UsageError: They ask for two files.
    """
    path = options.spec_trace or options.record
    if path is None:
        return None
    if options.record not in (None, path):
        raise click.UsageError("--spec-trace records requests, too: leave out --record")
    fingerprint = fingerprint_of(model)
    head = Head(
        model=name,
        tokenizer=str(fingerprint),
        vocab_size=fingerprint.vocab_size,
        drafter=drafter,
        started=round(time.time(), 3),
        apart=apart,
    )
    trace = None if options.spec_trace is None else DecisionTrace()
    recorder = Recorder(RecordFile(path, head, options.record_max), drafter, trace=trace)

    def close() -> None:
        if not recorder.close():
            tell(f"{path}: the last requests could not be written in time")

    stack.callback(close)
    most = size_text(options.record_max)
    tell(
        f"recording all requests and answers to {path}, {most} at most: it holds what users write, "
        "and only its owner can read it"
    )
    return recorder


def served_context(options: ServeOptions) -> ContextSettings:
    """Return the settings of the target.

    Raises:
        InputError: A setting is out of its bounds.
    """
    slots, total, each = options.num_slots, options.ctx_size or 0, options.kv_unified_per_slot or 0
    if 0 < total < slots:
        raise InputError(f"--ctx-size {total} is less than a token for each of {slots} slots")
    shared = bool(options.kv_unified or (each and not options.exact))
    return context_settings(options, total, slots, each, shared=shared)


def open_embedder(
    options: ServeOptions, model: LlamaModel, models: contextlib.ExitStack
) -> Embedder | None:
    """Return what makes vectors, None unless it is asked for.

    Args:
        options: Those of `serve`.
        model: The model whose weights it uses.
        models: Closes it.

    Raises:
        InputError: The pooling is for ranking.
        BackendError: llama.cpp cannot make the context.
    """
    if not options.embeddings:
        return None
    if options.pooling == "rank":
        raise InputError("--pooling rank: this server does not rank texts, keep llama-server")
    settings = settle(model_settings(options), served_context(options))
    return models.enter_context(Embedder(model, settings, options.pooling))


def open_served(options: ServeOptions, settings: Settings) -> Runtime:
    """Open the model with its engine, and tell on stderr how far it is.

    Raises:
        As open_runtime.
    """
    options.prepare_process()
    with contextlib.ExitStack() as testing:
        runtime = open_runtime(settings, tell, lambda: looking(testing))
    if runtime.exact_setting:
        tell(exact_line(runtime.target, runtime.exact_setting))
    return runtime


def draft_notes(options: ServeOptions, runtime: Runtime) -> tuple[str, ...]:
    stored = options.recipe.stored
    if runtime.refusal is None or stored is None:
        return ()
    note = f"the draft model that came with {stored.name.short()} is not used: {runtime.refusal}"
    return (note,)


def served_adapters(options: ServeOptions, model: LlamaModel) -> ServedAdapters:
    loaded = [
        ServedAdapter(str(one.path), one.task_name, one.prompt_prefix) for one in model.adapters
    ]
    return ServedAdapters(loaded, [scale for _, scale in options.adapters()])


def model_names(options: ServeOptions, path: Path) -> tuple[str, ...]:
    """Return the model's names for clients, sorted as llama-server's: the first is its id."""
    names = {name.strip() for text in options.alias for name in text.split(",")}
    return tuple(sorted(names - {""}) or [path.stem])


def make_settings(options: ServeOptions, drafts: DraftSettings) -> ServerSettings:
    """Return the settings of the HTTP side.

    Raises:
        InputError: --pool-per-key is given without keys, or each key learns for itself and a file
            would hold what all of them said.
        OSError: The file with keys cannot be read.
    """
    keys = keys_of(options)
    if options.pool_per_key and not keys:
        raise InputError("--pool-per-key needs keys: give --api-key or --api-key-file")
    same = {
        name: os.fspath(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name in ServerSettings.model_fields
    }
    changed = {
        "api_keys": keys,
        "cors_origins": names_in(options.cors_origins),
        "allowed_hosts": tuple(n for text in options.allow_host for n in text.split(",") if n),
        "max_body_bytes": options.max_body,
        "request_timeout": options.timeout,
        "sse_ping_interval": max(0.0, options.sse_ping_interval),
        "reasoning_format": "none" if options.reasoning_format == "none" else "auto",
        "page": options.ui,
        "api_prefix": f"/{prefix}" if (prefix := options.api_prefix.strip("/")) else "",
    }
    settings = ServerSettings.model_validate(same | changed)
    check_files(settings, drafts)
    return settings
