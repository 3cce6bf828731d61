"""Progress on stderr: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

LINE_SECONDS = 10.0  # between two lines


class Steps:
    """Steps(title, total): how much is done; calling it adds a step, or several.

    title: What is being done; may change. total: Steps in all, 0 = unknown.
    """

    def __init__(self, title: str, total: int, bar: Any = None) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self._begun = time.monotonic()
        self._bar = bar
        self._task = None if bar is None else bar.add_task(title, total=total or None)

    def __call__(self, number: int = 1) -> None:
        """Count some more steps."""
        self.done += number
        if self._bar is not None:
            self._bar.update(self._task, description=self.title, completed=self.done)

    def name(self, title: str) -> None:
        """Say what is being done from now on."""
        self.title = title
        self(0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bar away while the block prints."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()

    def line(self) -> str:
        """Return the progress as a line."""
        from ngramspec.cli.output import duration_text

        count = f"{self.done:,} of {self.total:,}, " if self.total else ""
        return f"{self.title}: {count}{duration_text(time.monotonic() - self._begun)}"


@contextmanager
def progress(title: str, total: int = 0) -> Iterator[Steps]:
    """Show a bar on stderr while the block runs; without a terminal a line now and then.

    Args:
        title: What is being done.
        total: Steps in all, 0 = unknown.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        steps = Steps(title, total)
        with lines_of(steps.line):
            yield steps
        return
    text = TextColumn("{task.description}", markup=False)
    count = [MofNCompleteColumn()] if total else []
    columns = (text, BarColumn(), *count, TimeElapsedColumn())
    # What goes to stdout stays there.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        yield Steps(title, total, bar)


@contextmanager
def lines_of(line: Callable[[], str]) -> Iterator[None]:
    """Print `line()` to stderr every LINE_SECONDS while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(LINE_SECONDS):
            click.echo(line(), err=True)

    thread = threading.Thread(target=run, name="ngramspec-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
