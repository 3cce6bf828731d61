"""Runs what `ngramspec serve` has set up, from the first line to the last."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ngramspec.cli.options import DraftChoice
from ngramspec.cli.serve_setup import (
    make_settings,
    model_names,
    open_engine,
    served_defaults,
)
from ngramspec.cli.target import open_model, open_target
from ngramspec.engine import Engine, EngineThread
from ngramspec.server import Served, create_app
from ngramspec.server.run import bind, run_server, url_of

LAST_SECONDS = 5.0  # for the engine after the server's own drain


def run(options: Mapping[str, Any], choice: DraftChoice) -> None:
    """Serve until a signal ends it.

    Raises:
        NgramspecError, OSError: Something cannot be set up; see serve_setup and bind.
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
        sock = stack.enter_context(bind(settings.host, settings.port))  # fails before the loading
        model = stack.enter_context(open_model(options))
        target = stack.enter_context(open_target(options, model))
        engine = open_engine(options, choice, target, stack)
        name, *aliases = model_names(options, model)
        served = Served(name=name, aliases=tuple(aliases), model=model, engine=engine, **defaults)
        app = create_app(served, settings)
        worker = EngineThread(engine)
        stack.callback(worker.close, drain=True, timeout=LAST_SECONDS)
        stack.enter_context(_reporting(engine, options["stats_interval"]))
        _greet(options, choice, engine, served.name)
        if settings.isolates:
            _say("each key learns for itself; with --share-between-keys they share")
        url = url_of(sock, bool(settings.ssl_key_file))
        run_server(app, sock, lambda: report(engine), lambda: _say(f"listening on {url}"))
    report(engine)


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
            thread.join()
