"""A progress bar on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(title: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr while the block runs; nothing where that is no terminal.

    Args:
        title: What is done.
        total: Steps in all.
        done: Steps before the block.

    Returns:
        What moves it by a step.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        shown = bar.add_task(title, total=total, completed=done)
        yield lambda: bar.advance(shown)
