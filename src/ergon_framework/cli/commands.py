"""The program ``ergon``, and what becomes of the errors of its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ergon_framework.cli.catalogue import CommandGroups
from ergon_framework.cli.command_run import Session
from ergon_framework.cli.distribution import version
from ergon_framework.cli.output import (
    is_about_a_disk,
    is_about_stdout,
    is_unread,
    leave_stdout,
    prepare_streams,
    show_error,
    show_traceback,
)
from ergon_framework.errors import ConfigurationError, ErgonError, JobNotFoundError, describe

# Typer brings its own click or uses the installed one, depending on its version; both name
# the base of all errors of usage here.
ClickException: Any = typer.BadParameter.__mro__[2]
_DEBUG = "--debug"
_MOST_DIGITS = len(str(2**63))

app = typer.Typer(
    name="ergon",
    cls=CommandGroups,
    help="Runs work that must not get lost: every unit ends in exactly one recorded outcome.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong configuration or use, 130 SIGINT, 143 SIGTERM.",
    add_completion=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"ergon {version()}")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    _debug: Annotated[
        bool,
        typer.Option(
            _DEBUG, help="Show a traceback with each error. May stand anywhere on the line."
        ),
    ] = False,
) -> None:
    """Options of all commands."""


def run_command(arguments: Sequence[str], *, is_process: bool = False) -> int:
    """Run one command. Its error is printed on one line and becomes an exit code."""
    given = list(arguments) or ["--help"]
    ours = given.index("--") if "--" in given else len(given)  # what follows is somebody else's
    # By hand, because it may stand anywhere: Click takes options of the program only before the
    # name of the command.
    is_debug = _DEBUG in given[:ours]
    given = [each for each in given[:ours] if each != _DEBUG] + given[ours:]
    session = Session(is_debug, is_process, given)
    try:
        try:
            if is_process:
                prepare_streams()  # what was printed before is written then, or cannot be
                _do_without_rich()
            code = _main(given, session)
            sys.stdout.flush()
        # Before the clause below, which would tell it as an error: the outer one ends quietly.
        except BrokenPipeError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if is_debug:
                show_traceback(error)
            code = _refuse(_of_argument(error, given), as_json="--json" in given[:ours])
    except BrokenPipeError:  # the reader, for example head, has seen enough
        leave_stdout()
        return 1
    return code


def _do_without_rich() -> None:
    """Let Typer offer a shell our help as it is: rich, if it is there, takes longer to import than
    all the rest, and our texts have no markup.
    """
    if "_ERGON_COMPLETE" in os.environ:
        modules: dict[str, Any] = sys.modules
        # None in sys.modules makes an import of it fail, and Typer goes on without.
        modules.setdefault("rich", None)


def _main(given: list[str], session: Session) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(given, prog_name="ergon", standalone_mode=False, obj=session)
    except SystemExit:
        # Click ends the process by itself when the reader is gone, and leaves what was not written
        # in the buffer: Python 3.13 reports that when it takes the stream down.
        if is_unread():
            raise BrokenPipeError from None
        raise
    return code if isinstance(code, int) else 0


def _refuse(error: BaseException, *, as_json: bool) -> int:
    from ergon_framework.app.outcome import exit_code_of

    if isinstance(error, ClickException):
        error = _usage_error(error)
    # Before the next case: it is an error of a disk as well, but the work of the command is done.
    elif is_about_stdout(error):
        leave_stdout()
        error = ErgonError(
            f"standard output cannot be written: {describe(error)}",
            remedy="what the command did is done: look before you do it again",
        )
    elif is_about_a_disk(error):
        error = ErgonError(
            f"the command did not end: {describe(error)}",
            remedy="make room on the disk that it writes to, and do it again",
        )
    elif isinstance(error, OSError) and error.filename is not None:
        # Whose file it is, nobody here knows: its name may be too long, or a folder not ours.
        error = ErgonError(
            f"the command did not end: {describe(error)}",
            remedy="see that this file can be used, or name another one",
        )
    elif not isinstance(error, ErgonError | KeyboardInterrupt):
        hint = "this is a defect of Ergon; --debug shows where"
        error = ErgonError(f"unexpected {describe(error)}", remedy=hint)
    show_error(error, as_json=as_json)
    return int(exit_code_of(error))


def _of_argument(error: BaseException, given: Sequence[str]) -> BaseException:
    """The error of an argument that no store can take, where that is what it is about.

    Python hands over bytes that are no UTF-8 as lone surrogates: a path may have them, and an id or
    a name cannot. No database has numbers of more than 64 bits.
    """
    # A client that looks for an id knows that no store has such a one, and does not ask.
    is_unknown = isinstance(error, JobNotFoundError)
    if is_unknown or isinstance(error, UnicodeEncodeError):
        for each in given:
            is_meant = not is_unknown or repr(each) in str(error)
            if is_meant and each.encode(errors="replace").decode() != each:
                remedy = "write ids, names and texts in UTF-8"
                return ConfigurationError(f"{each!r} is no UTF-8", remedy=remedy)
    elif isinstance(error, OverflowError):
        for each in given:
            digits = each.rpartition("=")[2].lstrip("-")
            if digits.isdecimal() and len(digits) >= _MOST_DIGITS:
                return ConfigurationError(f"{each} is too large", remedy="give a smaller number")
    return error


def _usage_error(error: Any) -> ConfigurationError:
    context = getattr(error, "ctx", None)
    path = "ergon" if context is None else context.command_path
    return ConfigurationError(error.format_message().rstrip("."), remedy=f"see {path} --help")
