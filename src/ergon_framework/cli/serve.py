"""``ergon serve``: how everything stands, over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ergon_framework.cli.command_run import (
    ConfigPath,
    JsonFlag,
    LogFormat,
    LogLevel,
    announce,
    observed_service,
)
from ergon_framework.cli.job_client import StoreUrl

if TYPE_CHECKING:
    from ergon_framework.app.settings.sections import ServerSettings


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help=(
                "The address to listen on [default: server.host of the settings]. All but "
                "loopback addresses need a token."
            ),
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="The port to listen on [default: server.port of the settings]; 0 is any free one.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "A file with the token that callers must send [default: the variable "
                "ERGON_SERVER_TOKEN]."
            ),
        ),
    ] = None,
    config: ConfigPath = None,
    store: StoreUrl = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    as_json: JsonFlag = False,
) -> None:
    """Serve the console, the JSON API and metrics of jobs, providers and zones over HTTP.

    Prints one line when it is ready: listening on http://HOST:PORT. With a token every request
    needs the header Authorization: Bearer TOKEN; without one, only this machine is served. Webhooks
    of the settings are accepted at /webhooks/NAME by their signature, without the token.

    It runs until SIGTERM or SIGINT. The first signal lets running requests finish, and the exit
    code is 0; a second one ends the process at once.

    Example: ergon serve --port 8400
    """
    from ergon_framework.app.observability import finish_telemetry, set_up_logging
    from ergon_framework.app.settings import check_server_packages, load_settings, revealed
    from ergon_framework.app.webhooks import webhooks_of
    from ergon_framework.jobs.store_urls import check_url
    from ergon_framework.storage.urls import file_of
    from ergon_framework.web.application import check_place
    from ergon_framework.web.application import serve as run
    from ergon_framework.web.backends import backends_of
    from ergon_framework.web.tokens import tokens_from

    check_server_packages()
    set_up_logging(log_level, log_format)
    if store is not None:
        # A server that is down is waited for; an unknown kind of store is an error now.
        check_url(store)
    settings = load_settings(config)
    server = _placed(settings.server, host, port)
    tokens = tokens_from(token_file, os.environ, revealed(server.token))
    check_place(server.host, tokens, server.proxy)
    sources = backends_of(settings, store)
    receivers = webhooks_of(settings)
    if store is not None and file_of(store) is not None and sources.jobs is not None:
        sources.jobs.check()  # a file that was named and is not there is a mistake

    def ready(url: str) -> None:
        announce(f"listening on {url}", {"url": url}, as_json=as_json)

    def issue_login_link(link: str) -> None:
        # Not where programs read, and not as JSON: it is for the person at this terminal.
        if not as_json:
            print(f"to change jobs in the console, sign in (works once): {link}", file=sys.stderr)

    try:
        with observed_service(settings, "server", as_json=as_json):
            run(server, sources, tokens, ready, issue_login_link, [*receivers.values()])
    finally:
        finish_telemetry()


def _placed(server: ServerSettings, host: str | None, port: int | None) -> ServerSettings:
    """The settings, unless the options say otherwise."""
    given = {"host": host, "port": port}
    return server.model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )
