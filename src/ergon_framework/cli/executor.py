"""``ergon executor``: run the handlers of a registry for an orchestrator."""

from __future__ import annotations

from typing import Annotated

import typer

from ergon_framework.cli.session import session_of


def executor(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Option(metavar="MODULE:REGISTRY", help="Where the handlers are; FILE.py:NAME works."),
    ],
) -> int:
    """Run handlers for an orchestrator.

    Answers execution requests on the standard input with outcomes on the standard output. An
    orchestrator starts this; by hand, end it with the end of input. SIGTERM lets what was taken
    finish, a second one ends it at once.
    """
    from ergon_framework.executor.process import serve

    session = session_of(context)
    return serve(app, is_debug=session.is_debug, is_process=session.is_process)
