"""Options for long sessions: contexts that shift."""

from __future__ import annotations

import click

from ngramspec.cli.options import Decorator, option, options

SECTION = "Long sessions"


def session_options() -> Decorator:
    """Return the options."""
    return options(
        option(SECTION, "--context-shift/--no-context-shift", env="CONTEXT_SHIFT", default=False,
               help="When a slot's context is full, discard the older half of it and go on, "
               "instead of ending the answer."),
        option(SECTION, "--keep", type=click.IntRange(-1), default=0,
               help="Tokens at the start of the prompt that are never discarded; -1: all of it."),
    )  # fmt: skip
