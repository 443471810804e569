"""``ergon serve``: probes and the provider health summary over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.db import StoreUrl
from ergon_framework.cli.output import show_one
from ergon_framework.cli.provider_desk import check_tables, named_store
from ergon_framework.cli.session import ConfigPath, JsonFlag, LogFormat, LogLevel
from ergon_framework.errors import StoreUnavailableError


def serve(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to listen; elsewhere only with a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 is any free one.")
    ] = 8400,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What callers must show [default: env ERGON_SERVER_TOKEN]."
        ),
    ] = None,
    config: ConfigPath = None,
    store: StoreUrl = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> None:
    """Tell over HTTP how providers stand, until SIGTERM or SIGINT.

    Prints one line when it is ready: listening on http://HOST:PORT. With a token every request
    needs Authorization: Bearer TOKEN; without one, only this machine is served. The first signal
    lets running requests finish, exit code 0; a second one ends the process at once.
    """
    from ergon_framework.app.observation import finish_telemetry, set_up_logging
    from ergon_framework.web.serving import ServerSettings
    from ergon_framework.web.serving import serve as run
    from ergon_framework.web.tokens import found_token

    set_up_logging(log_level, log_format)
    token = found_token(token_file, os.environ)
    settings = ServerSettings(named_store(config, store), host, port, token)
    _check_store(settings.store)

    def ready(url: str) -> None:
        try:
            if as_json:
                show_one({"url": url}, as_json=True)
            else:
                print(f"listening on {url}", flush=True)
        except OSError:  # nobody has to listen
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    try:
        run(settings, ready)
    finally:
        finish_telemetry()


def _check_store(url: str) -> None:
    """A file that is not there is a mistake; a server that is away comes back."""
    from ergon_framework.providers.migrations.database import database_of

    database = database_of(url)
    try:
        check_tables(database)
    except StoreUnavailableError:
        if database.file is not None:
            raise
