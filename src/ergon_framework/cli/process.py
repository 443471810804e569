"""``ergon process``: one transaction by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.output import keep_stdout, show_error, show_one, standard_input, waiting
from ergon_framework.cli.session import (
    ConfigPath,
    JsonFlag,
    LogFormat,
    LogLevel,
    PolicyPath,
    TargetName,
    session_of,
)
from ergon_framework.errors import ConfigurationError

MAX_TEXT = 64 * 1024 * 1024


def process(
    context: typer.Context,
    target: TargetName,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The payload; @FILE reads a file, - the standard input."),
    ] = None,
    transaction_id: Annotated[
        str | None, typer.Option("--id", help="The transaction's id [default: a new one].")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="The metadata; @FILE and - as above.")
    ] = None,
    by_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Let the task's connector look it up.")
    ] = None,
    config: ConfigPath = None,
    policy: PolicyPath = None,
    shows_result: Annotated[
        bool, typer.Option("--show-result", help="Show the result, not only its type.")
    ] = False,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> int:
    """Run one transaction through a task. It is not settled with its source."""
    from ergon_framework.app.observability import finish_telemetry, set_up_logging
    from ergon_framework.app.run import Run
    from ergon_framework.app.run_once import process_by_id, process_one, transaction_from
    from ergon_framework.app.signals import Shutdown
    from ergon_framework.app.wiring import Overrides

    _check(payload, transaction_id, metadata, by_id)
    set_up_logging(log_level, log_format)
    with keep_stdout(as_json), Shutdown() as shutdown, waiting("processing"):
        wiring = Run(target, config, Overrides(policy)).wired()
        if by_id is not None:
            outcome = process_by_id(wiring, by_id, shutdown)
        else:
            texts = _read("payload", payload), _read("metadata", metadata)
            transaction = transaction_from(texts[0] or "", transaction_id, texts[1])
            outcome = process_one(wiring, transaction, shutdown)
    view = outcome.to_dict(shows_result=shows_result)
    if not as_json:
        view = {name: value for name, value in view.items() if name not in ("error", "exit_code")}
        if shows_result:
            view["result"] = outcome.result_text
    show_one(view, as_json=as_json)
    if outcome.error is not None:
        show_error(outcome.error)
    # Inside of another program its telemetry goes on.
    if session_of(context).is_process:
        finish_telemetry()
    return int(outcome.exit_code)


def _check(
    payload: str | None, transaction_id: str | None, metadata: str | None, by_id: str | None
) -> None:
    if (payload is None) == (by_id is None):
        raise ConfigurationError(
            "a transaction is needed, and only one", remedy="give either --payload or --by-id"
        )
    if by_id is not None and (transaction_id is not None or metadata is not None):
        raise ConfigurationError(
            "--by-id takes the transaction as it is", remedy="leave out --id and --metadata"
        )
    if payload == "-" and metadata == "-":
        raise ConfigurationError(
            "the standard input can be read once", remedy="give --metadata as @FILE"
        )


def _read(what: str, text: str | None) -> str | None:
    """The text itself, or what it points to."""
    if text is None or (text != "-" and not text.startswith("@")):
        return text
    try:
        if text == "-":
            content = standard_input().buffer.read(MAX_TEXT + 1)
        else:
            with Path(text[1:]).open("rb") as file:
                content = file.read(MAX_TEXT + 1)
        if len(content) > MAX_TEXT:
            raise ConfigurationError(
                f"the {what} is longer than {MAX_TEXT} bytes", remedy="give a smaller one"
            )
        return content.decode()
    except OSError as error:
        problem, remedy = f"cannot read {text[1:]!r}: {error.strerror}", "name a readable file"
        raise ConfigurationError(f"the {what}: {problem}", remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the {what} is not UTF-8 text", remedy="encode it so") from error
