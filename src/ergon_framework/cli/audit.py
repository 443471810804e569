"""``ergon jobs audit``: who changed what in the console and through the API, from their log."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_filters import instant_of
from ergon_framework.cli.output import note, show_list
from ergon_framework.errors import ConfigurationError, SettingsError, StoreUnavailableError

_COLUMNS = ["at", "actor", "action", "target", "outcome", "number", "detail"]


def audit(
    actor: Annotated[
        str | None, typer.Option(metavar="WHO", help="Only what this person or token did.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="ACTION",
            help="Only this, such as cancel or look.",
            autocompletion=completion.audited_actions,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "--job",
            metavar="ID",
            help="Only what was done to this job or flow.",
            autocompletion=completion.job_ids,
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only then or later: 10m ago, or a time.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This log, not that of the settings.")
    ] = None,
    config: ConfigPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Show who did what in the console or through the API.

    The newest first. The log is a file on the machine of the server, beside its settings. Commands
    of a terminal are not in it: the histories of the jobs tell of them.
    """
    from ergon_framework.web.audit import AUDITED, AuditSearch, entry_view, read_entries

    if action is not None and action not in AUDITED:
        raise ConfigurationError(
            f"the log tells of no {action!r}", remedy=f"it tells of {', '.join(AUDITED)}"
        )
    path = _file(file, config)
    search = AuditSearch(
        actor=actor,
        action=action,
        target=target,
        # By the clock of this machine, whose server writes the log.
        since=None if since is None else instant_of(since, time.time()),
    )
    try:
        found = read_entries(path, search, limit)
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailableError(
            f"the audit log {path} cannot be read: {error}",
            remedy="read it as the user whose server writes it, or name another with --file",
        ) from error
    show_list([entry_view(each) for each in found], _COLUMNS, as_json=as_json)
    if not path.exists():
        note(f"there is no {path} yet: a server makes it when somebody acts in the console")


def _file(given: Path | None, config: Path | None) -> Path:
    from ergon_framework.app.settings import load_settings
    from ergon_framework.app.settings.stores import without
    from ergon_framework.web.audit import audit_file

    if given is not None:
        if not given.exists():
            raise StoreUnavailableError(
                f"there is no audit log {given}", remedy="name the file that the server writes"
            )
        return given
    settings = load_settings(config)
    path = audit_file(settings)
    if path is not None:
        return path
    raise SettingsError(
        f"no audit log: {without(settings, 'wants none')}, so that a server keeps it in its memory",
        remedy='write audit = "ergon-audit.db" under [server] in ergon.toml, or name a file with'
        " --file",
    )
