"""How commands look and fail: sections in --help, one line per error, exit code 1 or 2."""

from __future__ import annotations

import errno
from typing import Any

import click

from ngramspec.errors import InputError, NgramspecError

EXIT_FAILED = 1
EXIT_USAGE = 2
TROUBLE_IS_2 = "ngramspec.trouble"  # in ctx.meta: 1 means something else for this command


class Failure(click.ClickException):
    """Ends the command with one line and an exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class CommandGroup(click.Group):
    """A group that reports expected errors in one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; NgramspecError and OSError end it with `Error: ...` and a code."""
        try:
            return super().invoke(ctx)
        except (NgramspecError, OSError) as error:
            if ctx.params.get("debug") or getattr(error, "errno", None) == errno.EPIPE:
                raise
            bad_input = isinstance(error, (InputError, FileNotFoundError))
            code = EXIT_USAGE if bad_input or ctx.meta.get(TROUBLE_IS_2) else EXIT_FAILED
            raise Failure(_message(error), code) from error


class SectionOption(click.Option):
    """An option that --help shows under a heading of its own."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionCommand(click.Command):
    """A command whose --help lists its options by section, in the order of declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list per section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())
