"""Options for long sessions: contexts that shift, slots that are saved, reasoning that ends."""

from __future__ import annotations

from pathlib import Path

import click

from ngramspec.cli.options import Decorator, option, options

SECTION = "Long sessions"


def session_options() -> Decorator:
    """Return the options."""
    return options(
        option(SECTION, "--context-shift/--no-context-shift", env="CONTEXT_SHIFT", default=False,
               help="When a slot's context is full, discard the older half of it and go on, "
               "instead of ending the answer."),
        option(SECTION, "--slot-save-path", metavar="FOLDER",
               type=click.Path(exists=True, file_okay=False, path_type=Path),
               help="Folder for slots that clients save: POST /slots/0?action=save, restore or "
               "erase.  [default: slots cannot be saved]"),
        option(SECTION, "--keep", type=click.IntRange(-1), default=0,
               help="Tokens at the start of the prompt that are never discarded; -1: all of it."),
        option(SECTION, "--reasoning-budget", env="THINK_BUDGET", type=click.IntRange(-1),
               default=-1,
               help="Tokens of reasoning in a chat, after which its end is written for the model; "
               "0: no reasoning; -1: any number."),
        option(SECTION, "--reasoning-budget-message", env="THINK_BUDGET_MESSAGE", metavar="TEXT",
               default="", help="Text to write before that end."),
    )  # fmt: skip
