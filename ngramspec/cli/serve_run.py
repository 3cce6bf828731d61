"""Runs what `ngramspec serve` has set up, from the first line to the last."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ngramspec.cli.group import Failure
from ngramspec.cli.options import DraftChoice
from ngramspec.cli.serve_end import Ending
from ngramspec.cli.serve_setup import (
    make_settings,
    model_names,
    open_engine,
    served_defaults,
)
from ngramspec.cli.target import open_model, open_target
from ngramspec.engine import Engine, EngineThread
from ngramspec.server import Served, create_app
from ngramspec.server.http.run import LAST_SECONDS, HttpServer, bind, url_of

# Seconds for the parts of the end, after --drain-timeout.
SERVER_SECONDS = LAST_SECONDS + 15.0
REQUEST_SECONDS = 5.0  # for requests that the server's own drain has left
STEP_SECONDS = 30.0  # for the step that runs then
SAVE_SECONDS = 60.0
PREPARE_SECONDS = 15.0  # for threads that prepare requests
FREE_SECONDS = 60.0
REPORT_SECONDS = 1.0


def run(options: Mapping[str, Any], choice: DraftChoice) -> None:
    """Serve until a signal ends it.

    Raises:
        NgramspecError, OSError: Something cannot be set up; see serve_setup and bind.
        Failure: The engine has failed.
    """
    logging.basicConfig(
        level=options["log_level"].upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if not options["access_log"]:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    settings, defaults = make_settings(options, choice), served_defaults(options)
    with contextlib.ExitStack() as stack:
        ending = stack.enter_context(Ending())
        sock = stack.enter_context(bind(settings.host, settings.port))  # fails before the loading
        models = stack.enter_context(contextlib.ExitStack())
        stack.callback(ending.part, "freeing the model", FREE_SECONDS)
        stack.push(ending.leave)
        preparing = stack.enter_context(contextlib.ExitStack())
        saves = stack.enter_context(contextlib.ExitStack())
        model = models.enter_context(open_model(options))
        target = models.enter_context(open_target(options, model))
        engine = open_engine(options, choice, target, models, saves)
        name, *aliases = model_names(options, model)
        served = Served(name=name, aliases=tuple(aliases), model=model, engine=engine, **defaults)

        def begin_end() -> None:
            ending.part("answering requests", settings.drain_timeout + SERVER_SECONDS)

        url = url_of(sock, bool(settings.ssl_key_file))
        app = create_app(served, settings)
        http = HttpServer(app, lambda: _say(f"listening on {url}"), begin_end)
        preparing.callback(http.workers.join)
        preparing.callback(app.state.service.bridge.join)
        preparing.callback(ending.part, "preparing requests", PREPARE_SECONDS)
        stack.callback(ending.part, "saving what was learned", SAVE_SECONDS)
        stack.callback(_close, EngineThread(engine), ending)
        stack.enter_context(_reporting(engine, options["stats_interval"]))
        _greet(options, choice, engine, served.name)
        if settings.isolates:
            _say("each key learns for itself; with --share-between-keys they share")

        def stop() -> None:
            if not http.should_exit:
                begin_end()  # here too: the event loop may be what hangs
            http.stop()

        ending.take_signals(stop, lambda: report(engine))
        http.run(sockets=[sock])
    report(engine)
    if http.failure:
        raise Failure(http.failure)


def report(engine: Engine) -> None:
    """Print the engine's figures to stderr."""
    stats = engine.stats()
    drafted, accepted = stats.num_draft_tokens, stats.num_accepted_tokens
    share = accepted / drafted if drafted else 0.0
    mean = 1 + accepted / stats.num_drafts if stats.num_drafts else 1.0
    lines = [
        f"requests = {stats.num_requests}, prompt tokens = {stats.num_prompt_tokens} "
        f"(+ {stats.num_cached_tokens} cached), emitted tokens = {stats.num_emitted_tokens}, "
        f"decodes = {stats.num_steps}",
        f"draft acceptance = {share:.5f} ({accepted:5d} accepted / {drafted:5d} generated), "
        f"mean len = {mean:5.2f}",
        *engine.stats_lines(),
    ]
    _say("\n".join(lines))


def _close(worker: EngineThread, ending: Ending) -> None:
    """End the engine's thread, or note that it hangs."""
    ending.part("the engine's end", REQUEST_SECONDS + STEP_SECONDS + 5.0)
    worker.close(drain=True, timeout=REQUEST_SECONDS, last=STEP_SECONDS)
    if worker.alive:
        ending.hang("a step of the engine does not end")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _greet(options: Mapping[str, Any], choice: DraftChoice, engine: Engine, name: str) -> None:
    """Say what is served."""
    if options["model"] is None:
        _say("no --model given: using the embedded model")
    drafters = choice.label
    if options["model_draft"] is not None:
        drafters = f"{drafters}, then {options['model_draft'].name}"
    _say(
        f"model {name}, {engine.num_slots} slots, {engine.context_size} tokens of context each, "
        f"drafters {drafters}"
    )


@contextlib.contextmanager
def _reporting(engine: Engine, seconds: float) -> Iterator[None]:
    """Print the figures at intervals in the block; 0 = never."""
    stopped = threading.Event()

    def repeat() -> None:
        while not stopped.wait(seconds):
            report(engine)

    thread = threading.Thread(target=repeat, name="ngramspec-report", daemon=True)
    if seconds:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        if seconds:
            thread.join(REPORT_SECONDS)
