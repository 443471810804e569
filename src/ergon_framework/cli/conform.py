"""``ergon conform``: whether a command is an executor, and what it does wrong."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.output import printable, progress, show_list, show_one
from ergon_framework.cli.session import JsonFlag, finite
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.testing.suites.executor.subject import HandlerCall
    from ergon_framework.testing.suites.framework import CheckResult, SuiteReport

COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def conform(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="The executor to start, after --."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, callback=finite, help="Seconds to wait for an answer.")
    ] = 10.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this check; may be repeated.")
    ] = None,
    required_only: Annotated[
        bool, typer.Option("--required-only", help="Leave out what is only recommended.")
    ] = False,
    handler: Annotated[
        str | None, typer.Option(metavar="NAME", help="A handler that succeeds, if not echo.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="That handler's positional arguments.")
    ] = None,
    kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="That handler's keyword arguments.")
    ] = None,
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and start nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Try a command against the Executor Protocol v1.

    It is used as an orchestrator would use it. Exit code 0 when every required check passes, 1 when
    one fails.
    """
    from ergon_framework.testing.suites.executor import chosen_checks, exercise_executor

    checks = chosen_checks(only or (), required_only=required_only)
    if list_checks:
        rows = [
            {"name": one.name, "weight": _weight(one.required), "sentence": one.sentence}
            for one in checks
        ]
        show_list(rows, ["name", "weight", "sentence"], as_json=as_json)
        return 0
    if not command:
        raise ConfigurationError(
            "there is no command to try", remedy="ergon conform -- ./my-executor"
        )
    call = _call(handler, args, kwargs)
    with (
        _ended_by_sigterm(),
        progress("looking for handlers", len(checks), has_text_last=True) as move,
    ):
        report = exercise_executor(
            command,
            timeout=timeout,
            progress=lambda result: move(advance=1, description=result.name),
            call=call,
            only=only or (),
            required_only=required_only,
        )
    _show(report, as_json=as_json)
    return 0 if report.ok else 1


def _call(handler: str | None, args: str | None, kwargs: str | None) -> HandlerCall | None:
    from ergon_framework.testing.suites.executor.subject import HandlerCall

    if handler is None:
        if args is not None or kwargs is not None:
            raise ConfigurationError(
                "--args and --kwargs are for a handler, and none is named",
                remedy="name it with --handler",
            )
        return None
    return HandlerCall(
        handler, _json("--args", args or "[]", list), _json("--kwargs", kwargs or "{}", dict)
    )


def _json(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{option} is no JSON: {error}", remedy="quote it for the shell"
        ) from error
    if not isinstance(value, kind):
        wanted = "an array" if kind is list else "an object"
        raise ConfigurationError(f"{option} is not {wanted}", remedy=f"write {option} as {wanted}")
    return value


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack: an executor that ignores signals must not be left."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where Python lets nobody handle signals
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(report: SuiteReport, *, as_json: bool) -> None:
    counts = {
        _weight(required): {
            outcome: sum(
                one.required is required and one.outcome == outcome for one in report.results
            )
            for outcome in COLOURS
        }
        for required in (True, False)
    }
    if as_json:
        show_one({**report.to_dict(), "counts": counts}, as_json=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    last_reason = ""
    for one in report.results:
        console.print(Text.assemble(*_parts(one, is_same_reason=one.reason == last_reason)))
        last_reason = one.reason
    console.print()
    for weight, numbers in counts.items():
        counted = ", ".join(f"{number} {outcome}" for outcome, number in numbers.items())
        console.print(Text(f"{weight}: {counted}"))
    if report.failed:
        console.print(Text(f"failed: {', '.join(report.failed)}"))
    verdict = "conforms" if report.ok else "does not conform"
    summary = f"{printable(report.subject)} {verdict} to the Executor Protocol v1"
    console.print(Text(summary, "green" if report.ok else "bold red"))


def _parts(one: CheckResult, *, is_same_reason: bool) -> Iterator[str | tuple[str, str]]:
    """One result as text: how it ended, what was checked, and why."""
    yield (f"{one.outcome:<8}", COLOURS.get(one.outcome, ""))
    yield f" {_weight(one.required):<12} "
    yield (one.name, "bold")
    yield f": {one.sentence}"
    if one.reason and not is_same_reason:  # a row of skipped checks needs it once
        yield f"\n         {printable(one.reason)}"


def _weight(required: bool) -> str:
    return "required" if required else "recommended"
