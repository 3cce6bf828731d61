"""Progress on stderr: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from ngramspec.cli.command import Interrupt
from ngramspec.cli.output import duration_text, size_text

LINE_SECONDS = 10.0  # between two lines
REFRESH = 0.05  # seconds between updates of the bar of a build
MEGA = 1e6
FINISHING = ("writing", "measuring")  # phases of a build on this machine that go on to their end
TOO_LATE = "all input is read, finishing the file; Ctrl-C again quits at once"


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
        self.done += number
        if self._bar is not None:
            self._bar.update(self._task, description=self.title, completed=self.done)

    def name(self, title: str) -> None:
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


class BuildProgress:
    """BuildProgress(interrupt, bar): shows the progress that the build reports; bar: None = none.

    finishing: Phases that Ctrl-C does not stop. Rates are those of this run, without the part that
    a resumed build had done before.
    """

    def __init__(
        self, interrupt: Interrupt, bar: Any, finishing: Collection[str] = FINISHING
    ) -> None:
        self.amount = 0
        self.rates = (0.0, 0.0)  # bytes and tokens per second
        self.begun = 0.0  # when the phase began
        self._interrupt = interrupt
        self._note = interrupt.note
        self._finishing = finishing
        self._bar = bar
        self._name, self._total = "starting", 0
        self._first: tuple[int, int] | None = None
        self._shown = 0.0
        self._task = bar.add_task("starting", total=None) if bar is not None else None

    @property
    def stopped(self) -> bool:
        return self._interrupt.requested

    @property
    def note(self) -> str:
        """The text to show instead of figures, "" = none."""
        return self._interrupt.note if self._interrupt.requested else ""

    def phase(self, name: str, total: int) -> None:
        """Begin a phase with its size in bytes, 0 = unknown."""
        self._interrupt.note = TOO_LATE if name in self._finishing else self._note
        self._name, self._total = name, total
        self.amount, self._first = 0, None
        self._shown = self.begun = time.monotonic()
        self.rates = (0.0, 0.0)
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(name, total=total or None)

    def done(self, amount: int, tokens: int) -> None:
        """Show the progress of the phase: bytes done, and tokens so far."""
        now = time.monotonic()
        if self._first is None:
            self._first = amount, tokens
        self.amount = amount
        if now - self._shown < REFRESH:
            return
        self._shown = now
        seconds = now - self.begun
        self.rates = (amount - self._first[0]) / seconds, (tokens - self._first[1]) / seconds
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=amount)

    def figures(self) -> str:
        """Return bytes, rates and time left, as far as they are known."""
        seconds = time.monotonic() - self.begun if self.begun else 0.0
        if not self.amount:
            return duration_text(seconds)
        parts = [size_text(self.amount)]
        if self._total:
            parts = [f"{min(1.0, self.amount / self._total):.0%} of {size_text(self._total)}"]
        bytes_rate, tokens_rate = self.rates
        if bytes_rate > 0:
            parts += [f"{bytes_rate / MEGA:.1f} MB/s", f"{tokens_rate / MEGA:.2f} Mtok/s"]
            if self._total:
                left = max(0.0, self._total - self.amount) / bytes_rate
                parts.append(f"{duration_text(left)} left")
        return ", ".join(parts)

    def line(self) -> str:
        return f"{self._name}: {self.figures()}"


@contextmanager
def build_progress(
    interrupt: Interrupt, *, visible: bool, finishing: Collection[str] = FINISHING
) -> Iterator[BuildProgress]:
    """Show what a build reports on stderr while the block runs, if wanted."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    console = Console(stderr=True)
    if not (visible and console.is_terminal):
        shown = BuildProgress(interrupt, None, finishing)
        with lines_of(shown.line) if visible else nullcontext():
            yield shown
        return

    class Figures(ProgressColumn):
        """The figures of the build, or a note."""

        max_refresh = 0.2

        def render(self, task: Task) -> Text:
            if shown.note:
                return Text(shown.note, style="yellow")
            return Text(shown.figures() if shown.begun else "")

    columns = (TextColumn("{task.description}"), BarColumn(20), Figures())
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
    shown = BuildProgress(interrupt, bar, finishing)
    with bar:
        interrupt.quiet = True  # the bar shows it
        yield shown


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
