"""How commands look and end: sections in --help, one line per error, exit codes, Ctrl-C."""

from __future__ import annotations

import copy
import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from ngramspec.cli.output import printable
from ngramspec.errors import InputError, NgramspecError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# What click says of ranges, and what people say.
NUMBERS = {"a valid integer range": "a whole number", "a valid float range": "a number"}
HELP_NAMES = ["-h", "--help"]
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of what is written to stdout
COLUMN, SHORT_COLUMN = 34, 26  # most of the names of an option beside its text in --help
_LOWER = re.compile(r"  \[x>=?-?[\d.]+\]$|; x>=?-?[\d.]+(?=\]$)")  # a bound in an option's text
WORD = "ngramspec.word"  # in ctx.meta: what options --help shows; "" = everyday ones, unset = all


class Failure(click.ClickException):
    """Ends the command with one line and an exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class CommandGroup(click.Group):
    """A group that reports expected errors in one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; expected errors end it with `Error: ...` and a code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except (NgramspecError, OSError, MemoryError) as error:
            if ctx.params.get("debug") or getattr(error, "errno", None) == errno.EPIPE:
                raise
            bad_input = isinstance(error, (InputError, FileNotFoundError, IsADirectoryError))
            code = EXIT_USAGE if bad_input else EXIT_FAILED
            raise Failure(error_line(error), code) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; an unknown one is answered with those that there are."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if error.possibilities:
                raise
            commands = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"{error.message} There are {commands}.", ctx) from None


class SectionOption(click.Option):
    """An option that --help shows under a heading of its own."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return its names and its text, without a lower bound that has no upper one."""
        record = super().get_help_record(ctx)
        return record and (record[0], _LOWER.sub("", record[1]))

    def short(self) -> SectionOption:
        """Return it as a short --help shows it: one short and one long name, no bounds."""
        one = copy.copy(self)
        one.opts, one.secondary_opts = _two_names(self.opts), _two_names(self.secondary_opts)
        if isinstance(self.type, (click.IntRange, click.FloatRange)):
            one.type = click.STRING
        return one

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return its names, and where its value is from if that is not the command line."""
        hint = super().get_error_hint(ctx)
        source = ctx and ctx.get_parameter_source(self.name or "")
        if source is ParameterSource.ENVIRONMENT:
            names = [name for name in self.envvar or () if name in os.environ]
            return f"{hint} from {' '.join(names) or 'the environment'}"  # which has LLAMA_ARG_NO_X
        return f"{hint} from --config" if source is ParameterSource.DEFAULT_MAP else hint

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return what the environment says, for switches in llama.cpp's words.

        LLAMA_ARG_NO_X turns off what LLAMA_ARG_X turns on, whatever its value is.
        """
        if self.secondary_opts:
            for name in self.envvar or ():
                if name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1) in os.environ:
                    return "false"
        value = super().resolve_envvar_value(ctx)
        if value is not None and isinstance(self.type, click.types.BoolParamType):
            return {"enabled": "true", "disabled": "false"}.get(value.lower(), value)
        return value

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return what the environment says, as one value for an option that is repeatable.

        Blanks do not separate there, as they may be in a name or in a key; commas do that later.
        """
        if self.multiple and self.nargs == 1:
            value = self.resolve_envvar_value(ctx)
            return None if value is None else (value,)
        return super().value_from_envvar(ctx)


def _two_names(names: list[str]) -> list[str]:
    """Return the first name with one hyphen and the first with two."""
    long = [name for name in names if name.startswith("--")]
    return [*[name for name in names if name not in long][:1], *long[:1]]


class SectionCommand(click.Command):
    """A command whose --help lists its options by section, in the order of declaration.

    everyday: Names of the parameters that --help shows, where that is not all; --help-all does.
    """

    def __init__(self, *args: Any, everyday: Collection[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.everyday = everyday
        option = partial(click.Option, expose_value=False, is_eager=True, callback=self._show_help)
        text = "Show this message, or the options that have WORD in their name or help."
        asked: dict[str, Any] = {"is_flag": False, "flag_value": "", "metavar": "[WORD]"}
        self._help = option(["--help"], help=text, **asked)
        text = "Show this message with all options."
        self._help_all = option(["--help-all"], help=text, is_flag=True)
        self._help_short = option(["-h"], help="The same as --help.", is_flag=True)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters and the options that show them."""
        shown = [self._help, self._help_all] if self.everyday else [self._help]
        return [*self.params, self._help_short, *shown]

    def _show_help(self, ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value in (None, False) or ctx.resilient_parsing:
            return
        if param is not self._help_all:
            ctx.meta[WORD] = value.lower() if param is self._help else ""
        click.echo(self.get_help(ctx), color=ctx.color)
        ctx.exit()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        An unknown option is named whole, not by its first letter, with those of other commands that
        have it.
        """
        args = self._split_pairs(args)
        try:
            return super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            flags = {flag for param in self.params for flag in (*param.opts, *param.secondary_opts)}
            letter = error.option_name[1:]
            words = (arg for arg in args if arg[:1] == "-" and arg[1:2] != "-" and letter in arg)
            whole = next((word for word in words if word not in flags), None)
            name = error.option_name
            if len(letter) == 1 and whole is not None:
                name = whole.partition("=")[0]
            if hint := self._elsewhere(ctx, name):
                raise click.NoSuchOption(
                    name, f"No such option {name!r}: {hint}.", ctx=ctx
                ) from None
            if name == error.option_name:
                raise
            raise click.NoSuchOption(name, ctx=ctx) from None
        except click.BadParameter as error:
            text = error.message
            for phrase, better in NUMBERS.items():
                text = text.replace(phrase, better)
            if text == error.message:
                raise
            raise click.BadParameter(text, error.ctx, error.param, error.param_hint) from None
        except click.UsageError as error:
            models = any("--model" in param.opts for param in self.params)
            if not (models and error.message.startswith("Got unexpected extra argument")):
                raise
            message = f"{error.message}; the model is given with --model"
            raise click.UsageError(message, ctx) from None

    def _split_pairs(self, args: list[str]) -> list[str]:
        """Return the words with "A B" as two, where an option of two values has that alone."""
        flags = {flag for param in self.params for flag in (*param.opts, *param.secondary_opts)}
        pairs = {flag for param in self.params if param.nargs == 2 for flag in param.opts}
        words: list[str] = []
        for at, word in enumerate(args):
            follows = args[at + 1].partition("=")[0] if at + 1 < len(args) else None
            alone = follows is None or follows in flags
            both = word.split(" ") if at and args[at - 1] in pairs and alone else [word]
            words += both if len(both) == 2 else [word]
        return words

    def _elsewhere(self, ctx: click.Context, name: str) -> str:
        """Return what an option of another command is called here, or where it is; "" if nowhere.

        Commands give some options more names than others do.
        """
        own = {flag for param in self.params for flag in param.opts if flag.startswith("--")}
        having = []
        for path, command in _commands(ctx.find_root().command):
            for param in command.params:
                if name in (*param.opts, *param.secondary_opts) and not vars(param).get("hidden"):
                    if same := sorted(own.intersection(param.opts)):
                        return f"here it is {same[0]}"
                    having.append(path)
        return f"it is an option of {', '.join(having)}" if having else ""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help; of a search the options alone."""
        if ctx.meta.get(WORD):
            self.format_options(ctx, formatter)
        else:
            super().format_help(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list per section, of the options that are asked for."""
        word = ctx.meta.get(WORD)
        short = word == "" and bool(self.everyday)
        sections: dict[str, list[tuple[str, str]]] = {}
        hidden = 0
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option):
                continue
            title = getattr(param, "section", "Options")
            if not self._is_shown(param, word, " ".join((title, *record))):
                hidden += 1
                continue
            if short and isinstance(param, SectionOption):
                record = param.short().get_help_record(ctx) or record
            sections.setdefault(title, []).append(record)
        if not sections:
            raise click.UsageError(f"no option has {word!r} in its name or help", ctx)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=SHORT_COLUMN if short else COLUMN)
        if hidden and not word:
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more options: --help-all lists all of them.")

    def _is_shown(self, param: click.Option, word: str | None, text: str) -> bool:
        if word:
            return word in text.lower()
        own = param in (self._help, self._help_all)
        return word is None or not self.everyday or own or param.name in self.everyday


def _commands(group: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the commands below a group, with their names as they are typed."""
    for name, command in getattr(group, "commands", {}).items():
        whole = f"{path} {name}".strip()
        yield from ((whole, command), *_commands(command, whole))


NOTE_MEASURED = "interrupted: what was measured follows; Ctrl-C again quits at once"


class Interrupt:
    """Interrupt(note): `requested` is True once Ctrl-C was pressed.

    note: Line to write to stderr then; `quiet` = do not, because something else shows it.
    """

    def __init__(self, note: str) -> None:
        self.note = note
        self.quiet = False
        self.requested = False

    def press(self, *_: Any) -> None:
        """Handle the signal: ask to stop, raise KeyboardInterrupt the second time."""
        if self.requested:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.requested = True
        if not self.quiet:  # print is not safe here: the signal can arrive inside a print
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{self.note}\n".encode())


@contextmanager
def interruptible(note: str) -> Iterator[Interrupt]:
    """Handle Ctrl-C in the block; only in the main thread, which gets all signals."""
    interrupt = Interrupt(note)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    old = signal.signal(signal.SIGINT, interrupt.press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, old)


def error_line(error: Exception) -> str:
    """Return an error in one line, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        name = error.filename or ("the output cannot be written" if error.errno in FULL else "")
        return printable(f"{name}: {error.strerror}" if name else error.strerror)
    return printable(" ".join(str(error).split())) or "out of memory"
